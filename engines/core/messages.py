"""Requests and responses of inferences, the same for every front."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, dataclass_transform

from engines.core.errors import EngineError

Scalar = bool | int | float | str
Raw = bytes | memoryview


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def _value(cls: type) -> type:
    """An immutable class, enforced by the type checker alone: a frozen dataclass takes four times as long to create,
    and each inference creates several."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


@_value
class SharedMemory:
    """Part of a POSIX shared memory object that a client has registered: `key` is its name ("/region"), `offset` and
    `num_bytes` locate the tensor in the object. `region` is the name of the registration, "" in an instance."""

    key: str
    offset: int
    num_bytes: int
    region: str = ""


@_value
class TensorData:
    """`data` is row-major and little-endian, BOOL as a byte, each element of BYTES behind its length as four bytes."""

    name: str
    datatype: str  # as the V2 protocol names it: FP32, BYTES
    shape: tuple[int, ...]
    data: Raw | SharedMemory


@_value
class WantedOutput:
    """A requested output. `num_classes` is for the classification extension, 0 without it. `shared_memory` is the place
    of the data, None if it goes with the reply."""

    name: str
    num_classes: int = 0
    shared_memory: SharedMemory | None = None


@_value
class InferRequest:
    """One inference. `parameters` are the client's, without those that are fields here.

    `version` is "" if the policy chooses it; no `outputs` means all; a `sequence_id` of 0 or "" means none; `priority`
    0 is the model's default; `timeout_us` 0 means none. `trace` is W3C trace context (`traceparent`, `tracestate`) by
    name. `chat` is a conversation that the front has parsed, in builtins, in place of a prompt among the inputs.
    """

    model: str
    version: str = ""
    id: str = ""
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    inputs: tuple[TensorData, ...] = ()
    outputs: tuple[WantedOutput, ...] = ()
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_us: int = 0
    trace: Mapping[str, str] = field(default_factory=dict)
    chat: Mapping[str, Any] | None = None


@_value
class InferResponse:
    """One response: outputs, or an error in place of them."""

    outputs: tuple[TensorData, ...] = ()
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    error: EngineError | None = None
