"""Where a unit's text stands in a request: what an experiment keeps on its arm, and what a session is known by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.config.specs import IdentitySpec
from gateway.protocol.operations import INFERENCE_OPERATIONS
from gateway.protocol.sequence import Sequence
from gateway.protocol.session_id import bounded
from gateway.routing.decision import Facts, Scalar
from gateway.routing.matchers import as_text

_SEQUENCE_ID = "sequence_id"


class UnitMatch(NamedTuple):
    """The outcome of a lookup: the text, None where the request has none; `in_head` when the body was not asked."""

    text: str | None
    in_head: bool


# Each request tells its own.
LATER = UnitMatch(None, in_head=True)


@dataclass(frozen=True, slots=True)
class Lookup:
    """A header, and where it is missing, parameters of the body, the first that says something."""

    header: str | None = None
    parameters: tuple[str, ...] = ()

    def find(self, facts: Facts) -> UnitMatch | None:
        """Look in the head, then in the body; None where only a body that nobody has read can tell; LATER where these
        are not one request's facts."""
        text = facts.headers.get(self.header) if self.header is not None else None
        return self._find(text, facts)

    def in_parameters(self, model: str, parameters: Mapping[str, Scalar]) -> str | None:
        """The text that the parameters of a model's request have."""
        told = self._first(parameters)
        return told[1] if told is not None else None

    def _find(self, in_head: str | None, facts: Facts) -> UnitMatch | None:
        if in_head:
            return UnitMatch(in_head, in_head=True)
        if not self.parameters or facts.operation not in INFERENCE_OPERATIONS:
            return UnitMatch(None, in_head=True)
        if facts.body is None:
            return None
        return UnitMatch(self.in_parameters(facts.model, facts.body.parameters), in_head=False)

    def _first(self, parameters: Mapping[str, Scalar]) -> tuple[str, str] | None:
        """The name and the text of the first parameter that says something."""
        for name in self.parameters:
            value = parameters.get(name)
            if value:  # Triton's sequence_id 0 and an empty text mean: no sequence
                return name, as_text(value)
        return None


@dataclass(frozen=True, slots=True)
class HeaderLookup(Lookup):
    """A header that tells whose a request is: few requests share it."""

    def find(self, facts: Facts) -> UnitMatch | None:
        return self._find(facts.headers.get(self.header or ""), facts) if facts.session_is_told else LATER


@dataclass(frozen=True, slots=True)
class SessionUnitLookup(Lookup):
    """A session: as any text, or what a cookie has; Triton's sequences are known as such."""

    def find(self, facts: Facts) -> UnitMatch | None:
        if not facts.session_is_told:
            return LATER
        return self._find(facts.session or facts.headers.get(self.header or ""), facts)

    def in_parameters(self, model: str, parameters: Mapping[str, Scalar]) -> str | None:
        """The session that the parameters of a model's request name; a `Sequence` where it is one."""
        told = self._first(parameters)
        if told is None:
            return None
        text = bounded(told[1])
        return _sequence(text, model, parameters) if told[0] == _SEQUENCE_ID else text


def _sequence(text: str, model: str, told: Mapping[str, Scalar]) -> Sequence:
    """Triton's parameters of one request of a sequence: flags are true where they are neither false nor 0."""
    return Sequence(text, bounded(model), starts=bool(told.get("sequence_start")), ends=bool(told.get("sequence_end")))


def session_lookup(identity: IdentitySpec) -> SessionUnitLookup:
    """Where a request says its session."""
    return SessionUnitLookup(identity.session_header, identity.session_parameters)


def unit_lookup(unit: str, identity: IdentitySpec) -> Lookup:
    """Where a request says the unit of an experiment; `request` has none, so each request is assigned anew."""
    kind, _, name = unit.partition(":")
    match kind:
        case "session":
            return session_lookup(identity)
        case "header":
            return HeaderLookup(header=name)
        case "parameter":
            return Lookup(parameters=(name,))
        case _:
            return Lookup()
