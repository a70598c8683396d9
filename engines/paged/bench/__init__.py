"""How fast an engine is on this machine, and how much of what the machine could do that is."""
