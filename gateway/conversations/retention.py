"""How much of a conversation is kept: whole exchanges, the oldest of them gone first.

An exchange begins with a user's message and goes on to the next one, so that no answer stands without its question and
no tool's result without the call. The system message is beside the turns: it counts, and it stays.

`num_dropped` says in Python what the script in `store.py` does in Redis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.config.specs import HistorySpec
from gateway.conversations.turns import Turn, estimated_of_bytes


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """Of one conversation, the system message included."""

    max_turns: int
    max_tokens: int
    max_bytes: int

    @classmethod
    def of(cls, spec: HistorySpec) -> RetentionLimits:
        return cls(spec.max_turns, spec.max_tokens, spec.max_bytes)

    def hold(self, num_turns: int, tokens: int, num_bytes: int, system_bytes: int) -> bool:
        """Whether so much may be kept."""
        return (
            num_turns <= self.max_turns
            and tokens + estimated_of_bytes(system_bytes) <= self.max_tokens
            and num_bytes + system_bytes <= self.max_bytes
        )


def num_dropped(turns: Sequence[Turn], sizes: Sequence[int], system_bytes: int, limits: RetentionLimits) -> int:
    """How many turns must go from the front so that the rest is within the limits; `sizes` are their bytes."""
    at, tokens, num_bytes = 0, sum(turn.tokens for turn in turns), sum(sizes)
    while at < len(turns) and not limits.hold(len(turns) - at, tokens, num_bytes, system_bytes):
        while True:
            tokens -= turns[at].tokens
            num_bytes -= sizes[at]
            at += 1
            if at == len(turns) or turns[at].begins_exchange:
                break
    return at
