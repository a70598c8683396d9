"""Request descriptions and test cases in rule files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.yaml.problems import Location


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input of a request."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    bytes: int | None = None  # None: the size of the shape; 0 for BYTES, whose elements have any length


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """The facts of a request that rules may use, under their names in `match:`."""

    model: str
    version: str | None = None
    protocol: str = "rest"  # rest | grpc | openai
    operation: str = "infer"
    header: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    parameter: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    input: tuple[TensorSpec, ...] = ()
    session: str | None = None  # as the session header has it
    tenant: str | None = None  # as the tenant header has it
    has_image: bool = False
    force: str | None = None  # EXPERIMENT=ARM, of a caller who may choose


@dataclass(frozen=True, slots=True)
class ExpectSpec:
    """The expected decision; None accepts anything."""

    route: str | None = None
    engine: str | None = None
    model: str | None = None  # as sent to the engine
    experiment: str | None = None
    arm: str | None = None
    no_route: bool = False  # the request is refused

    @property
    def needs_arm(self) -> bool:
        """Whether it depends on an experiment's choice."""
        return not self.no_route and (self.arm or self.engine or self.model) is not None


@dataclass(frozen=True, slots=True)
class RuleTestSpec:
    """A test case in a rule file."""

    name: str
    request: RequestSpec
    expect: ExpectSpec
    location: Location | None = field(default=None, compare=False)
    places: Mapping[str, Location] = field(default_factory=dict, compare=False)  # the location of each expectation
