"""Short constructors of MLServer translations for tests."""

from __future__ import annotations

from typing import Any

from gateway.protocol.mlserver.translator import (
    InferStreamTranslator,
    MLServerGenerateTranslator,
    MLServerInferTranslator,
)
from gateway.protocol.operations import Operation
from gateway.protocol.translator import V2Request


def generate(body: bytes, **named: Any) -> MLServerGenerateTranslator:
    return MLServerGenerateTranslator(V2Request(Operation.GENERATE, body, **named))


def generate_stream(body: bytes, **named: Any) -> MLServerGenerateTranslator:
    return MLServerGenerateTranslator(V2Request(Operation.GENERATE_STREAM, body, **named))


def infer(body: bytes, head_bytes: int | None = None, **named: Any) -> MLServerInferTranslator:
    return MLServerInferTranslator(V2Request(Operation.INFER, body, head_bytes, **named))


def infer_stream(body: bytes, **named: Any) -> InferStreamTranslator:
    return InferStreamTranslator(V2Request(Operation.GENERATE_STREAM, body, **named))
