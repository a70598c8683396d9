"""Lookup of units in requests: the text by which an experiment assigns, or that identifies a session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.config.specs import IdentitySpec
from gateway.protocol.operations import INFERENCE_OPERATIONS
from gateway.protocol.principal import Principal, tenant_of
from gateway.protocol.sequence import AnySession, Sequence, TenantSession, bounded
from gateway.routing.decision import Facts, Scalar
from gateway.routing.matchers import as_text

_SEQUENCE_ID = "sequence_id"


class UnitMatch(NamedTuple):
    """The result of a lookup: the unit, None if the request has none; `in_head`: the body was not used."""

    value: AnySession | None
    in_head: bool


# These facts stand for several requests, each with its own value.
LATER = UnitMatch(None, in_head=True)


@dataclass(frozen=True, slots=True)
class Lookup:
    """A header, or if it is missing, the first non-empty one of several body parameters."""

    header: str | None = None
    parameters: tuple[str, ...] = ()

    def find(self, facts: Facts) -> UnitMatch | None:
        """Look in the head, then in the body; None if an unread body is needed; LATER if the facts are not those of one
        request."""
        text = facts.headers.get(self.header) if self.header is not None else None
        return self._find(text, facts)

    def in_parameters(
        self, model: str, parameters: Mapping[str, Scalar], principal: Principal | None
    ) -> AnySession | None:
        """The unit in the parameters of a model's request, which this caller sends."""
        match = self._first(parameters)
        return match[1] if match is not None else None

    def _find(self, in_head: str | None, facts: Facts) -> UnitMatch | None:
        if in_head:
            return UnitMatch(in_head, in_head=True)
        if not self.parameters or facts.operation not in INFERENCE_OPERATIONS:
            return UnitMatch(None, in_head=True)
        if facts.body is None:
            return None
        return UnitMatch(self.in_parameters(facts.model, facts.body.parameters, facts.principal), in_head=False)

    def _first(self, parameters: Mapping[str, Scalar]) -> tuple[str, str] | None:
        """The name and text of the first non-empty parameter."""
        for name in self.parameters:
            value = parameters.get(name)
            if value:  # Triton's sequence_id 0 and an empty text mean: no sequence
                return name, as_text(value)
        return None


@dataclass(frozen=True, slots=True)
class HeaderLookup(Lookup):
    """A header that identifies a user: few requests share its value."""

    def find(self, facts: Facts) -> UnitMatch | None:
        return self._find(facts.headers.get(self.header or ""), facts) if facts.has_session else LATER


@dataclass(frozen=True, slots=True)
class SessionUnitLookup(Lookup):
    """A session: any text, a cookie's value, or a Triton sequence. `by_tenant`: each tenant has its own."""

    by_tenant: bool = False

    def find(self, facts: Facts) -> UnitMatch | None:
        if not facts.has_session:
            return LATER
        return self._find(facts.session or facts.headers.get(self.header or ""), facts)

    def in_parameters(
        self, model: str, parameters: Mapping[str, Scalar], principal: Principal | None
    ) -> AnySession | None:
        """The session in the parameters of a model's request; a `Sequence` for Triton's sequences."""
        match = self._first(parameters)
        if match is None:
            return None
        text = bounded(match[1])
        if self.by_tenant:
            text = TenantSession(text, tenant_of(principal))
        if match[0] != _SEQUENCE_ID:
            return text
        starts, ends = bool(parameters.get("sequence_start")), bool(parameters.get("sequence_end"))
        return Sequence(text, bounded(model), starts=starts, ends=ends)


def session_lookup(identity: IdentitySpec, *, by_tenant: bool = False) -> SessionUnitLookup:
    """The lookup of sessions; `by_tenant`: the rules have `auth:`."""
    return SessionUnitLookup(identity.session_header, identity.session_parameters, by_tenant)


def unit_lookup(unit: str, identity: IdentitySpec, *, by_tenant: bool = False) -> Lookup:
    """The lookup of an experiment's unit; `request` has none: each request is assigned at random."""
    kind, _, name = unit.partition(":")
    match kind:
        case "session":
            return session_lookup(identity, by_tenant=by_tenant)
        case "header":
            return HeaderLookup(header=name)
        case "parameter":
            return Lookup(parameters=(name,))
        case _:
            return Lookup()
