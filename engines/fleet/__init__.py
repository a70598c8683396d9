"""The fleet: several engines as child processes, started, supervised, restarted, and registered with the gateway.

    cli/fleet > supervisor > agent > health_state | ports, child, cgroups | config > spec

README.md beside this file is the language of `fleet.yaml` in one page.
"""
