"""What a session or a sequence is called, in this process and in Redis.

A session is a caller's own text. A sequence is Triton's: a model's correlation id, which another model may have too.
"""

from __future__ import annotations

import re

from gateway.protocol.sequence import Sequence
from gateway.protocol.session_id import digest_of

PREFIX = "pointsman:1:"

# What may stand in a key as it is; anything else, and what is longer, by its digest: keys stay short and readable, and
# no braces of a caller's choosing send them all to one slot of a cluster.
_PLAIN = re.compile(r"[A-Za-z0-9_.:@/+=-]{1,96}\Z")


def session_key(session: str) -> str:
    """Where Redis has it: `pointsman:1:session:{id}`, `pointsman:1:sequence:{model:id}`."""
    if isinstance(session, Sequence):
        return f"{PREFIX}sequence:{{{_sequence_id(session)}}}"
    return f"{PREFIX}session:{{{_readable(session)}}}"


def inputs_key(sequence: Sequence) -> str:
    """Where Redis has what a sequence was told: `pointsman:1:inputs:{model:id}`, beside the sequence in a cluster."""
    return f"{PREFIX}inputs:{{{_sequence_id(sequence)}}}"


def _sequence_id(sequence: Sequence) -> str:
    """A colon in a model's name could be the one between both: such a name is told by its digest."""
    return _readable(sequence.name if ":" in sequence.model else f"{sequence.model}:{sequence}")


def _readable(text: str) -> str:
    return text if _PLAIN.match(text) else digest_of(text)
