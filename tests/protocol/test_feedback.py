"""Reading feedback of clients."""

from __future__ import annotations

import pytest

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.feedback import MAX_BYTES, Rating, read_rating

READ = [
    (b'{"request_id": "r", "value": 4}', Rating("r", value=4.0)),
    (b'{"request_id": "r", "value": true}', Rating("r", value=1.0)),
    (
        b'{"session": "s", "experiment": "x", "name": "thumb", "label": "up"}',
        Rating(None, "s", "x", "thumb", None, "up"),
    ),
    (b'{"request_id": "r", "session": null, "label": "gut \\u00e9"}', Rating("r", label="gut é")),
]


@pytest.mark.parametrize("body, rating", READ)
def test_what_is_read(body: bytes, rating: Rating) -> None:
    """Feedback has a value, a label or both, for a request or a session."""
    assert read_rating(body) == rating


def test_a_long_session_is_known_by_its_digest() -> None:
    """A long session id is replaced by its digest."""
    rating = read_rating(b'{"session": "%b", "value": 1}' % (b"s" * 300))
    assert rating.session is not None and rating.session.startswith("sha256-")


@pytest.mark.parametrize(
    "body, kind",
    [
        (b"", ErrorKind.BAD_REQUEST),
        (b"[1]", ErrorKind.BAD_REQUEST),
        (b'{"request_id": "r", "value": NaN}', ErrorKind.BAD_REQUEST),
        (b'{"request_id": "", "value": 1}', ErrorKind.BAD_REQUEST),
        (b'{"request_id": "%b", "value": 1}' % (b"r" * 129), ErrorKind.BAD_REQUEST),
        (b'{"request_id": "r", "label": "a\\nb"}', ErrorKind.BAD_REQUEST),
        (b'{"request_id": "r", "label": "%b"}' % (b"x" * MAX_BYTES), ErrorKind.BODY_TOO_LARGE),
    ],
)
def test_what_is_wrong_is_told(body: bytes, kind: ErrorKind) -> None:
    """Malformed or oversized feedback is rejected."""
    with pytest.raises(GatewayError) as caught:
        read_rating(body)
    assert caught.value.kind is kind
