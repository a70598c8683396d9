"""What the rules may ask of a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.protocol.operations import Operation

Scalar = str | int | float | bool


@dataclass(frozen=True, slots=True)
class InputFacts:
    """One input tensor as its JSON head declares it; `num_bytes` is the size of its data."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class BodyFacts:
    """What stands in the body's JSON: read only when a rule that could still match asks for it."""

    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    inputs: tuple[InputFacts, ...] = ()


NO_BODY = BodyFacts()


@dataclass(slots=True)
class Facts:
    """A request as the rules see it. `body` is None until somebody reads it; header names are in lower case."""

    model: str
    version: str | None = None
    protocol: str = "rest"
    operation: Operation = Operation.INFER
    headers: Mapping[str, str] = field(default_factory=dict)
    body: BodyFacts | None = None
