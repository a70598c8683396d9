"""What the audit gets of an operation on the inference ports that changes engines."""

from __future__ import annotations

from dataclasses import dataclass

# How much of a body goes to the audit.
MAX_BODY_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One operation that was allowed: its client, what it is, and the status of the reply. `principal` is the client's
    verified name, "" where it has none; `body` is at most MAX_BODY_BYTES of `num_body_bytes`."""

    time: float
    principal: str
    peer: str
    protocol: str
    method: str
    target: str
    body: bytes
    num_body_bytes: int
    status: int
