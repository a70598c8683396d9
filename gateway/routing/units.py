"""Where a unit's text stands in a request: what an experiment keeps on its arm, and what a session is known by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gateway.config.specs import IdentitySpec
from gateway.protocol.operations import INFERENCE_OPERATIONS
from gateway.routing.facts import Facts
from gateway.routing.matchers import as_text


class Found(NamedTuple):
    """The outcome of a lookup: the text, None where the request has none; `in_head` when the body was not asked."""

    text: str | None
    in_head: bool


@dataclass(frozen=True, slots=True)
class Lookup:
    """A header, and where it is missing, parameters of the body, the first that says something."""

    header: str | None = None
    parameters: tuple[str, ...] = ()

    def find(self, facts: Facts) -> Found | None:
        """Look in the head, then in the body; None where only a body that nobody has read can tell."""
        text = facts.headers.get(self.header) if self.header is not None else None
        if text:
            return Found(text, in_head=True)
        if not self.parameters or facts.operation not in INFERENCE_OPERATIONS:
            return Found(None, in_head=True)
        if facts.body is None:
            return None
        for name in self.parameters:
            value = facts.body.parameters.get(name)
            if value:  # Triton's sequence_id 0 and an empty text mean: no sequence
                return Found(as_text(value), in_head=False)
        return Found(None, in_head=False)


def session_lookup(identity: IdentitySpec) -> Lookup:
    """Where a request says its session."""
    return Lookup(identity.session_header, identity.session_parameters)


def unit_lookup(unit: str, identity: IdentitySpec) -> Lookup:
    """Where a request says the unit of an experiment; `request` has none, so each request is assigned anew."""
    kind, _, name = unit.partition(":")
    match kind:
        case "session":
            return session_lookup(identity)
        case "header":
            return Lookup(header=name)
        case "parameter":
            return Lookup(parameters=(name,))
        case _:
            return Lookup()
