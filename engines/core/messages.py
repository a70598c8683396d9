"""What an inference asks and answers, whichever front it came by: tensors by name, and what is said beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, dataclass_transform

from engines.core.errors import EngineError

Scalar = bool | int | float | str
Raw = bytes | memoryview


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def _value(made: type) -> type:
    """A class whose values never change. The type checker sees to that: a dataclass that does so itself takes four
    times as long to make, and each inference makes several."""
    return dataclass(slots=True, unsafe_hash=True)(made)


@_value
class SharedMemory:
    """A piece of a POSIX shared memory object that a client has registered: `key` is its name ("/region"), `offset`
    and `num_bytes` are what the tensor has in the whole object."""

    key: str
    offset: int
    num_bytes: int


@_value
class TensorData:
    """`data` is row-major and little-endian, BOOL as a byte, each element of BYTES behind its length as four bytes."""

    name: str
    datatype: str  # as the V2 protocol names it: FP32, BYTES
    shape: tuple[int, ...]
    data: Raw | SharedMemory


@_value
class WantedOutput:
    """An output that the client names. `num_classes`: the classification extension asks for so many, 0 where it is not
    asked. `shared_memory`: where the data goes; None where it goes with the reply."""

    name: str
    num_classes: int = 0
    shared_memory: SharedMemory | None = None


@_value
class InferRequest:
    """One inference. `parameters` are the client's own, without those that stand as fields here.

    `version` is "" where the client leaves it to the policy; no `outputs` means all of them; a `sequence_id` of 0 or ""
    means none; `priority` 0 is the model's default; `timeout_us` 0 means none. `trace` is W3C trace context as it came
    (`traceparent`, `tracestate`), by name. `chat` is a conversation that the front has parsed, in builtins alone, in
    place of a language model's prompt among the inputs.
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
    """One answer to an inference: outputs, or the error that stands in for them."""

    outputs: tuple[TensorData, ...] = ()
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    error: EngineError | None = None
