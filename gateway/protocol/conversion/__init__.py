"""The same request, by REST or by gRPC: bytes of one protocol in, bytes of the other out.

Every function is pure, and nothing is lost on the way: what one protocol has no place for is refused with a clear
error.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestBody:
    """A body of Triton's REST protocol. `head_bytes` is what `Inference-Header-Content-Length` tells: how much of it is
    JSON, with raw tensors behind; None where all of it is."""

    data: bytes
    head_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RestRequest:
    """A request of Triton's REST protocol: `GET /v2/models/m/config`, say."""

    method: str
    target: str
    body: RestBody = RestBody(b"")
