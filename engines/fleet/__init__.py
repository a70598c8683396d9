"""The fleet: several engines as child processes of one, started, watched, restarted, and made known to the gateway.

    cli/fleet > supervisor > agent > judgement | ports, processes, cgroups, power | config > spec

README.md beside this file is the language of `fleet.yaml` in one page.
"""
