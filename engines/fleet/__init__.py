"""The fleet: several engines as child processes, started, supervised, restarted, and registered with the gateway.

    cli/fleet > supervisor > agent > judgement | ports, processes, cgroups, power | config > spec

README.md beside this file is the language of `fleet.yaml` in one page.
"""
