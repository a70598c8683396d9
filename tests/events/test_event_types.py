"""Serialized events."""

import pytest

from gateway.events.event_types import (
    KINDS,
    ConditionChanged,
    EndpointDrained,
    ExperimentChanged,
    FeedbackAccepted,
    FeedbackSubmitted,
    Item,
    RulesActivated,
    SessionMoved,
    read_item,
    write_item,
)

WRITTEN = [
    (RulesActivated("ab12", 3, "here:1"), "rules", '{"digest":"ab12","number":3,"by":"here:1","base":""}'),
    (
        EndpointDrained("it", "http://a:1", True, 17.5, "here:1"),
        "drain",
        '{"engine":"it","url":"http://a:1","is_draining":true,"since":17.5,"by":"here:1"}',
    ),
    (
        ConditionChanged("it", "http://a:1", "down"),
        "condition",
        '{"engine":"it","url":"http://a:1","condition":"down"}',
    ),
    (SessionMoved("s-1"), "session", '{"name":"s-1"}'),
    (
        FeedbackSubmitted("t", "r-1", "rating", 0.5),
        "feedback",
        '{"token":"t","request_id":"r-1","name":"rating","value":0.5,"label":null,"experiment":null,"tenant":null}',
    ),
    (FeedbackAccepted("t"), "feedback_taken", '{"token":"t"}'),
    (ExperimentChanged("x"), "experiment", '{"name":"x"}'),
]


@pytest.mark.parametrize("item, kind, body", WRITTEN)
def test_round_trip(item: Item, kind: str, body: str) -> None:
    """Each kind is written as exactly this text, and read from it."""
    assert write_item(item) == (kind, body)
    assert read_item(kind.encode(), body.encode()) == item


def test_every_kind_is_shown_here() -> None:
    """The table above has every kind."""
    assert {kind for _, kind, _ in WRITTEN} == set(KINDS)


@pytest.mark.parametrize(
    "kind, body",
    [
        (b"weather", b'{"name":"s"}'),
        (b"session", b"{"),
        (b"session", b'["s"]'),
        (b"session", b'{"title":"s"}'),
        (b"\xff", b"{}"),
    ],
)
def test_what_is_not_known_is_passed_over(kind: bytes, body: bytes) -> None:
    """Kinds of other versions and malformed events are read as None."""
    assert read_item(kind, body) is None


def test_fields_to_come_are_passed_over() -> None:
    """Unknown fields from a newer gateway are ignored."""
    assert read_item(b"session", b'{"name":"s","why":"drained"}') == SessionMoved("s")
