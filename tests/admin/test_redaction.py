"""Redaction of calls in the audit."""

from typing import Any

import pytest

from gateway.admin.redaction import redacted, redacted_body, redacted_rules


@pytest.mark.parametrize(
    "value, kept",
    [
        ({"api_key": "s", "x-api-key": "s", "apiKey": "s", "Authorization": "s", "session_token": "s"},) * 1
        + ({"api_key": "***", "x-api-key": "***", "apiKey": "***", "Authorization": "***", "session_token": "***"},),
        (
            {"clientSecret": "s", "openaiAPIKey": "s", "accessToken": "s", "maxTokens": 5, "tokenizer": "t"},
            {"clientSecret": "***", "openaiAPIKey": "***", "accessToken": "***", "maxTokens": 5, "tokenizer": "t"},
        ),
        ({"config": '{"clientSecret": "s3"}'}, {"config": '{"clientSecret": ***'}),
        ('{"text": "{\\"apiKey\\": \\"s3\\"}"}', '{"text": "{\\"apiKey\\": ***'),
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


SECRET = "s3cret"
RULES = {
    "on its line": "api_key: s3cret",
    "behind a comment": "api_key:   # of the team\n  s3cret\n",
    "block": "api_key: |-\n  s3cret\n",
    "anchored block": "api_key: &k |-\n  s3cret\nother: *k\n",
    "anchor elsewhere": "x: &k s3cret\nengines: {a: {api_key: *k}}\n",
    "a line that goes on": 'api_key: "a\\\n  s3cret"\n',
    "folded": "api_key: >\n  a\n  s3cret\n\nb: 1\n",
    "plain on two lines": "api_key: a\n  s3cret\n",
    "list": "match:\n  header:\n    x-api-key:\n      - a\n      - s3cret\n",
    "flow list on two lines": "match: {header: {x-api-key: [a,\n  s3cret]}}\n",
    "a key in quotes": "'api_key':\n    's3cret'\n",
    "a question mark": "? api_key\n: s3cret\n",
    "any header": "engines: {a: {headers: {X-Team: s3cret}}}\n",
    "beyond the first plane": "b: \U0001f600\U0001f600\U0001f600\U0001f600\napi_key:\n  s3cret\n",
    "behind a byte order mark": "\ufeffapi_key:\n  s3cret\n",
    "no YAML": "api_key:\n  s3cret\n b: {",
    "an anchor in itself": "api_key: &a [s3cret, *a]\n",
}


@pytest.mark.parametrize("text", RULES.values(), ids=RULES)
def test_viewers_get_rules_without_secrets(text: str) -> None:
    """However YAML writes the value of a secret's key, it is cut."""
    assert SECRET not in redacted_rules(text)


def test_the_rest_of_the_rules_stays() -> None:
    """Only values are cut, and what looks like a key in comments and addresses."""
    text = (
        "# ü, before: api_key: s3cret\nengines:\n  a: {api_key: s3cret, endpoints: ['http://me:s3cret@e:1']}\n"
        "  b:\n    api_key: |\n      s3cret\n    url: u  # pm-01234567-abc\nroutes: []\n"
    )
    assert redacted_rules(text) == (
        "# ü, before: api_key: ***\nengines:\n  a: {api_key: ***, endpoints: ['http://***@e:1']}\n"
        "  b:\n    api_key: ***\n    url: u  # ***\nroutes: []\n"
    )


def test_comments_have_no_words_that_may_be_keys() -> None:
    """In a comment nothing says that a word is a key, so long words of letters and digits are left out; others stay."""
    text = "routes: []  # as agreed in 2026-11: sk-ant0123456789abc for premium-customers-only, see 20261124000000000\n"
    assert redacted_rules(text) == text.replace("sk-ant0123456789abc", "***")
