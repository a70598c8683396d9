"""Shared test helpers: real servers as child processes, and clients that show the bytes."""
