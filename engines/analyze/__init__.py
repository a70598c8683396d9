"""`pointsman analyze`: which configuration of a model gives the most throughput within a latency and a memory budget.

    cli/analyze > study > measuring > load, inputs | server | search, pareto, steady > points

`points`, `search`, `pareto`, `steady` and `override` are pure: configurations and measurements in, decisions out.
"""
