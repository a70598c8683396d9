"""Authentication on the inference ports: credentials to principals."""
