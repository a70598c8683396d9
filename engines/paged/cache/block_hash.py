"""The names of cached blocks: a chain of sha256 over the tokens, the same in each process and on each machine."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

_SCHEME = b"pointsman kv 1"


def root(namespace: str) -> bytes:
    """What the chain of a sequence begins with. Sequences of different namespaces (adapter, tenant) share nothing."""
    return hashlib.sha256(_SCHEME + namespace.encode()).digest()


def extend(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The name of the block with these tokens behind the one named `parent`."""
    return hashlib.sha256(parent + array("i", tokens).tobytes()).digest()
