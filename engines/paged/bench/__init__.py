"""Measures an engine's speed on this machine, and its share of the machine's memory bandwidth."""
