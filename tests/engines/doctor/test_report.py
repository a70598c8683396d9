"""The file for an issue: complete, and without secrets."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from engines.doctor.finding import fail, ok
from engines.doctor.report import markdown, redacted, redacted_values


@pytest.mark.parametrize(
    "text, shown",
    [
        ("redis://ann:hunter2@10.0.0.7:6379/0", "redis://***@10.0.0.7:6379/0"),
        ("https://token@host/x and http://a:b@c", "https://***@host/x and http://***@c"),
        ("OPENAI_API_KEY=sk-abc123 done", "OPENAI_API_KEY=*** done"),
        ('"password": "hunter2", "x": 1', '"password": ***", "x": 1'),
        ("authorization: Bearer abc.def", "authorization: ***"),
        ("curl -H 'Bearer abc.def'", "curl -H 'Bearer ***'"),
        ("http://10.0.0.7:8000 refused", "http://10.0.0.7:8000 refused"),
        ("71 tokens/s with 1, 124 tokens/s with 8", "71 tokens/s with 1, 124 tokens/s with 8"),
    ],
)
def test_secrets_are_left_out(text: str, shown: str) -> None:
    """Credentials in URLs and values of secrets are removed; addresses and figures stay."""
    assert redacted(text) == shown


def test_the_home_folder_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's name is removed where it is a word."""
    monkeypatch.setenv("HOME", "/Users/ann")
    monkeypatch.setattr(getpass, "getuser", lambda: "ann")
    text = "/Users/ann/models, /private/ann, ann's, annotated, /Users/anna"
    assert Path.home() == Path("/Users/ann")
    assert redacted(text) == "~/models, /private/USER, USER's, annotated, /Users/anna"


def test_values_stay_json() -> None:
    """A secret inside a text of JSON is removed, and the rest is still JSON."""
    values = {"url": "http://a:b@c", "lines": ["token=abc", 1.5, None, True]}
    assert redacted_values(values) == {"url": "http://***@c", "lines": ["token=***", 1.5, None, True]}


def test_a_report_has_every_finding() -> None:
    """The report has a row for each finding and its figures below. Characters that would break the table are
    escaped."""
    text = markdown({"one": ok("a | b\nc", rate=1.5), "two": fail("broken", "mend it")})
    assert "| one | ok | a \\| b c |  |" in text
    assert "| two | fail | broken | mend it |" in text
    assert '"rate": 1.5' in text
