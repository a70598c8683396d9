"""What the rules may ask of a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.protocol.body_facts import NO_BODY, BodyFacts, InputFacts, Scalar
from gateway.protocol.operations import Operation
from gateway.routing.forced_arms import Forced

__all__ = ["NO_BODY", "BodyFacts", "Facts", "InputFacts", "Scalar"]


@dataclass(slots=True)
class Facts:
    """A request as the rules see it. `body` is None until somebody reads it; header names are in lower case.

    `session` is the one that its head names, by a header or a cookie; with `session_is_told` False, each request with
    these facts may have its own, and its own header that an experiment assigns by.
    """

    model: str
    version: str | None = None
    protocol: str = "rest"
    operation: Operation = Operation.INFER
    headers: Mapping[str, str] = field(default_factory=dict)
    body: BodyFacts | None = None
    session: str | None = None
    session_is_told: bool = True
    forced: Forced | None = None  # somebody who may has chosen an arm
