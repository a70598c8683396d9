"""Lookup of a request's session and unit."""

from __future__ import annotations

import pytest

from gateway.config.specs import IdentitySpec
from gateway.protocol.operations import Operation
from gateway.protocol.sequence import Sequence
from gateway.routing.decision import NO_BODY, BodyFacts, Facts
from gateway.routing.unit_lookup import (
    LATER,
    HeaderLookup,
    Lookup,
    SessionUnitLookup,
    UnitMatch,
    session_lookup,
    unit_lookup,
)

IDENTITY = IdentitySpec()

CASES = [
    (Facts("m", headers={"x-session-id": "s1"}), UnitMatch("s1", True)),
    (Facts("m", headers={"x-session-id": "s1"}, body=BodyFacts({"session_id": "s2"})), UnitMatch("s1", True)),
    (Facts("m"), None),
    (Facts("m", headers={"x-session-id": ""}), None),
    (Facts("m", body=BodyFacts({"session_id": "s2", "sequence_id": 7})), UnitMatch("s2", False)),
    (Facts("m", body=BodyFacts({"sequence_id": 7})), UnitMatch(Sequence("7", "m"), False)),
    (Facts("m", body=BodyFacts({"sequence_id": 0})), UnitMatch(None, False)),
    (Facts("m", body=NO_BODY), UnitMatch(None, False)),
    (Facts("m", operation=Operation.MODEL_METADATA), UnitMatch(None, True)),
    (Facts("m", session="told"), UnitMatch("told", True)),  # by a cookie
    (Facts("m", headers={"x-session-id": "s1"}, has_session=False), LATER),
]


@pytest.mark.parametrize("facts, expected", CASES)
def test_a_session_is_in_the_header_or_else_in_the_body(facts: Facts, expected: UnitMatch | None) -> None:
    """None: only the unread body can contain it. Triton's sequence_id 0 is no sequence; metadata has no body to
    read."""
    assert session_lookup(IDENTITY).find(facts) == expected


@pytest.mark.parametrize(
    "unit, lookup",
    [
        ("session", SessionUnitLookup("x-session-id", ("session_id", "sequence_id"))),
        ("header:x-user", HeaderLookup("x-user")),
        ("parameter:user", Lookup(None, ("user",))),
        ("request", Lookup()),
    ],
)
def test_units_name_their_place(unit: str, lookup: Lookup) -> None:
    """Each kind of unit has one place in a request; `request` has none."""
    assert unit_lookup(unit, IDENTITY) == lookup


@pytest.mark.parametrize(
    "report, starts, ends",
    [
        ({"sequence_start": True}, True, False),
        ({"sequence_start": True, "sequence_end": True}, True, True),
        ({"sequence_end": 1}, False, True),
        ({"sequence_start": False, "sequence_end": 0}, False, False),
        ({}, False, False),
    ],
)
def test_a_sequence_knows_its_model_and_its_ends(report: dict[str, bool], starts: bool, ends: bool) -> None:
    """A sequence_id session carries its model, and whether the request starts or ends the sequence."""
    found = session_lookup(IDENTITY).find(Facts("m", body=BodyFacts({"sequence_id": 7, **report})))
    assert found is not None and found.value == Sequence("7", "m", starts=starts, ends=ends)
    other = session_lookup(IDENTITY).find(Facts("n", body=BodyFacts({"sequence_id": 7})))
    assert other is not None and isinstance(other.value, Sequence) and other.value.name != found.value.name
