"""Redaction of calls in the audit."""

from typing import Any

import pytest

from gateway.admin.redaction import redacted, redacted_body


@pytest.mark.parametrize(
    "value, kept",
    [
        ({"api_key": "s", "x-api-key": "s", "apiKey": "s", "Authorization": "s", "session_token": "s"},) * 1
        + ({"api_key": "***", "x-api-key": "***", "apiKey": "***", "Authorization": "***", "session_token": "***"},),
        ({"max_tokens": 5, "requests_per_second": 1.5, "monkey": "b"},) * 2,
        ({"headers": [{"cookie": {"a": "s"}}]}, {"headers": [{"cookie": "***"}]}),
        ("engines:\n  a:\n    api_key: s3cret\n    url: u", "engines:\n  a:\n    api_key: ***\n    url: u"),
        ("a:\n  api_key: >-\n    s3\n    cret\nb: 1", "a:\n  api_key: ***\nb: 1"),
        ("a:\n  password: |\r\n    s3\r\nb: 1", "a:\n  password: ***\r\nb: 1"),
        ("max_tokens: 5, key=s", "max_tokens: 5, key=***"),
        ("authorization: Bearer abc", "authorization: ***"),
        ("use bearer abc here", "use bearer *** here"),
        ("redis://me:pw@host:1/0", "redis://***@host:1/0"),
        ("pm-01234567-abc_DEF", "***"),
        ("x" * 1001, "<1001 characters, sha256 0a7fc8de2bbcbcc5>"),
    ],
)
def test_secrets_are_cut(value: Any, kept: Any) -> None:
    """Secrets are redacted by field names, and in texts by the words before them; a long text is replaced by its
    digest."""
    assert redacted(value) == kept or (
        isinstance(value, str) and len(value) > 1000 and redacted(value)[:24] == kept[:24]
    )


@pytest.mark.parametrize("body, kept", [(b"", None), (b'{"a": 1}', {"a": 1}), (b"{x", "{x"), (b"\xff", "\ufffd")])
def test_a_body_is_json_or_text(body: bytes, kept: Any) -> None:
    """A body is stored as JSON if it parses, otherwise as text."""
    assert redacted_body(body, is_complete=True) == kept


def test_depth_is_bounded() -> None:
    """Deep nesting is cut off."""
    value: Any = "s"
    for _ in range(50):
        value = [value]
    assert str(redacted(value)).count("[") == 13
