"""The shared base of all handlers: rules in force, heads, bodies, sessions, counters, and interfaces."""
