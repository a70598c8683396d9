"""The stream of news in Redis: entries that are numbered without a gap, so that whoever has missed one sees it.

Entry: `n` (its number), `from` (a process), `kind`, `body`. About the last 10,000 are kept: one who comes back after
more of them, or to a Redis that has lost its data or failed over to a replica that lacked the last ones, does not find
the entry that he read last, and reads all state anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.redis.script import Command, Script

STREAM = "pointsman:1:news"

_KEPT = 10_000
# How long one read waits in Redis for an entry, which ends it at once. A connection that says nothing for much longer
# is dead.
BLOCK_SECONDS = 5.0
# Read at a time: a burst of them must not keep the event loop from requests for long.
_AT_ONCE = 100

# KEYS[1]; ARGV: how many to keep, from, kind, body. The number of the new entry follows that of the last one.
_ADD = Script(
    """
    local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
    local n = (last and tonumber(last[2][2]) or 0) + 1
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*',
               'n', string.format('%d', n), 'from', ARGV[2], 'kind', ARGV[3], 'body', ARGV[4])
    """
)


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """One entry of the stream."""

    id: bytes
    number: int
    sender: bytes
    kind: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Position:
    """What was read last: the entry's id and number; before the first one 0-0 and 0."""

    id: bytes = b"0-0"
    number: int = 0


def add(sender: str, kind: str, body: str) -> Command:
    return _ADD.command([STREAM], [_KEPT, sender, kind, body])


def last_entry() -> Command:
    return ("XREVRANGE", STREAM, "+", "-", "COUNT", 1)


def entry_at(position: Position) -> Command:
    """Where nothing was read yet: the first entry of all."""
    if not position.number:
        return ("XRANGE", STREAM, "-", "+", "COUNT", 1)
    return ("XRANGE", STREAM, position.id, position.id)


def after(position: Position) -> Command:
    """Those that follow; it waits for one where there is none."""
    block = int(BLOCK_SECONDS * 1000)
    return ("XREAD", "COUNT", _AT_ONCE, "BLOCK", block, "STREAMS", STREAM, position.id)


def continues(position: Position, found: Sequence[StreamEntry]) -> bool:
    """Whether the stream is the one that was read up to there, by the answer to `entry_at`."""
    if not position.number:
        return not found or found[0].number == 1
    return bool(found) and found[0].number == position.number


def read_entries(answer: Any) -> list[StreamEntry]:
    """The entries of an answer to XRANGE, XREVRANGE or XREAD, however deep the protocol's version puts them. What
    somebody else has added has number 0."""
    if isinstance(answer, dict):
        return [entry for part in answer.values() for entry in read_entries(part)]
    if isinstance(answer, list):
        return [entry for part in answer for entry in read_entries(part)]
    if not isinstance(answer, tuple):
        return []
    id, told = answer
    try:
        return [StreamEntry(id, int(told[b"n"]), told[b"from"], told[b"kind"], told[b"body"])]
    except (KeyError, TypeError, ValueError):
        return [StreamEntry(id, 0, b"", b"", b"")]
