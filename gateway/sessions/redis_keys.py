"""The Redis keys of sessions and sequences.

A session is a text of the caller. A sequence is Triton's: a correlation id, unique within its model only.
"""

from __future__ import annotations

import re

from gateway.protocol.sequence import Sequence, digest_of

PREFIX = "pointsman:1:"

# Ids that match stand in a key unchanged; all others are replaced by their digest, so that keys stay short and a
# caller's braces cannot direct them all to one cluster slot.
_PLAIN = re.compile(r"[A-Za-z0-9_.:@/+=-]{1,96}\Z")


def session_key(session: str) -> str:
    """`pointsman:1:session:{id}` or `pointsman:1:sequence:{model:id}`."""
    if isinstance(session, Sequence):
        return f"{PREFIX}sequence:{{{_sequence_id(session)}}}"
    return f"{PREFIX}session:{{{_readable(session)}}}"


def inputs_key(sequence: Sequence) -> str:
    """`pointsman:1:inputs:{model:id}`: a sequence's inputs, in the sequence's cluster slot."""
    return f"{PREFIX}inputs:{{{_sequence_id(sequence)}}}"


def _sequence_id(sequence: Sequence) -> str:
    """`model:id`; a model name that contains a colon would be ambiguous and is replaced by a digest."""
    return _readable(sequence.name if ":" in sequence.model else f"{sequence.model}:{sequence}")


def _readable(text: str) -> str:
    return text if _PLAIN.match(text) else digest_of(text)
