"""Benchmarks of the gateway against other proxies, all on one machine in one run."""
