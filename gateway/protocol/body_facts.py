"""What stands in a request's body, as values: every front reads its own wire into these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
    """What stands in the body: read only when a rule that could still match asks for it."""

    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    inputs: tuple[InputFacts, ...] = ()
    has_image: bool = False  # some message has an image in it


NO_BODY = BodyFacts()
