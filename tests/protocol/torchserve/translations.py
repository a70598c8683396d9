"""Short constructors of TorchServe translations for tests."""

from __future__ import annotations

from typing import Any

from gateway.protocol.operations import Operation
from gateway.protocol.torchserve.request import Envelope
from gateway.protocol.torchserve.translator import torchserve_translator
from gateway.protocol.translator import Translator, V2Request


def translator(
    operation: Operation,
    body: bytes = b"",
    head_bytes: int | None = None,
    *,
    envelope: Envelope = Envelope.BODY,
    **where: Any,
) -> Translator:
    return torchserve_translator(V2Request(operation, body, head_bytes, **where), envelope)
