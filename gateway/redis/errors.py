"""What can go wrong with Redis, in words of our own; this module needs no client."""

from __future__ import annotations


class StoreError(Exception):
    """Redis did not answer in time, cannot be reached, or cannot serve now; the message says which."""
