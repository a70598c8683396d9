"""Requests of sessions whose conversations are kept: here, or by their engine."""
