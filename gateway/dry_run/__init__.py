"""Dry runs of rules: request descriptions, rule tests, recorded traffic."""
