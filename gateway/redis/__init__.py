"""Redis, as the gateway and the engines use it: where it is, how it is reached, and what it may cost."""
