"""`pointsman analyze`: which configuration of a model gives the most throughput within a latency and a memory budget.

    cli/analyze > report > sweep > measurement > load, inputs, server, local_host | search, config_override > models

`models`, `search` and `config_override` are pure: configurations and measurements in, decisions out.
"""
