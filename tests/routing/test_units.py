"""Where a request says its session and its unit."""

from __future__ import annotations

import pytest

from gateway.config.specs import IdentitySpec
from gateway.protocol.operations import Operation
from gateway.routing.facts import NO_BODY, BodyFacts, Facts
from gateway.routing.units import Found, Lookup, session_lookup, unit_lookup

IDENTITY = IdentitySpec()

CASES = [
    (Facts("m", headers={"x-session-id": "s1"}), Found("s1", True)),
    (Facts("m", headers={"x-session-id": "s1"}, body=BodyFacts({"session_id": "s2"})), Found("s1", True)),
    (Facts("m"), None),
    (Facts("m", headers={"x-session-id": ""}), None),
    (Facts("m", body=BodyFacts({"session_id": "s2", "sequence_id": 7})), Found("s2", False)),
    (Facts("m", body=BodyFacts({"sequence_id": 7})), Found("7", False)),
    (Facts("m", body=BodyFacts({"sequence_id": 0})), Found(None, False)),
    (Facts("m", body=NO_BODY), Found(None, False)),
    (Facts("m", operation=Operation.MODEL_METADATA), Found(None, True)),
]


@pytest.mark.parametrize("facts, expected", CASES)
def test_a_session_is_in_the_header_or_else_in_the_body(facts: Facts, expected: Found | None) -> None:
    """None: only the unread body can tell. Triton's sequence_id 0 is no sequence; metadata has no body to ask."""
    assert session_lookup(IDENTITY).find(facts) == expected


@pytest.mark.parametrize(
    "unit, lookup",
    [
        ("session", Lookup("x-session-id", ("session_id", "sequence_id"))),
        ("header:x-user", Lookup("x-user")),
        ("parameter:user", Lookup(None, ("user",))),
        ("request", Lookup()),
    ],
)
def test_units_name_their_place(unit: str, lookup: Lookup) -> None:
    """Each kind of unit stands in one place of a request; `request` stands nowhere."""
    assert unit_lookup(unit, IDENTITY) == lookup
