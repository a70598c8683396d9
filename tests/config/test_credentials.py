"""Credentials of engines: texts, files and environment variables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.config import host_access
from gateway.config.rules import LoadedRules, load_rules, load_texts

SECRET = "sk-0123456789"


def load(folder: Path, api_key: str, header: str = "x", **environment: str) -> LoadedRules:
    """Rules with an engine that has these, at lines 5 and 6."""
    file = folder / "rules.yaml"
    file.write_text(
        "version: 1\n"
        "engines:\n"
        "  hosted:\n"
        "    endpoints: ['http://127.0.0.1:1']\n"
        f"    api_key: {api_key}\n"
        f"    headers: {{x-key: {header}}}\n"
        "routes: [{name: all, engine: hosted}]\n"
    )
    return load_rules([file], environment)


def key_file(folder: Path, content: bytes = SECRET.encode(), mode: int = 0o600) -> Path:
    file = folder / "secrets" / "key"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    file.chmod(mode)
    os.utime(file, (1, 1))  # nobody writes to it any more
    return file


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_a_file_or_a_variable_has_a_credential(tmp_path: Path, end: bytes) -> None:
    """`file:` is relative to the rule file, and may end with a line break; `env:` names a variable."""
    file = key_file(tmp_path, SECRET.encode() + end)
    loaded = load(tmp_path, "{file: secrets/key}", "{env: KEY}", KEY="k2")
    assert loaded.problems == () and loaded.rules is not None
    engine = loaded.rules.engines["hosted"]
    assert (engine.api_key, engine.headers) == (SECRET, {"x-key": "k2"})
    assert loaded.followed_files == (file,)
    assert SECRET not in repr(loaded) and "k2" not in repr(engine)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (SECRET.encode() + b"\nb\n", "it has more than one line"),
        (SECRET.encode() + b"\n\n", "it has more than one line"),
        (SECRET.encode() + b"\x00", "control characters"),
        (SECRET.encode() + b"\xff", "it is no text in UTF-8"),
        ("sk-\N{SNOWMAN}".encode(), "a character that no header can carry, at place 4"),
        (b"k" * 8193, "it is longer than 8192 bytes"),
    ],
)
def test_a_file_without_a_credential_is_an_error(tmp_path: Path, content: bytes, why: str) -> None:
    """The error names file and line, and the file of the credential, and quotes nothing of it."""
    key_file(tmp_path, content)
    loaded = load(tmp_path, "{file: secrets/key}")
    (problem,) = map(str, loaded.problems)
    assert loaded.rules is None
    assert f"{tmp_path}/rules.yaml:5:14" in problem and "the file 'secrets/key' has no credential" in problem
    assert why in problem and SECRET not in problem


@pytest.mark.parametrize(
    ("api_key", "why"),
    [
        ("{file: none}", "the credential file 'none' cannot be read: there is no such file"),
        ("{file: secrets}", "the credential file 'secrets' cannot be read: it is not a regular file"),
        ("{env: NONE}", "the environment variable NONE has no credential: it is not set"),
        ("{env: EMPTY}", "the environment variable EMPTY has no credential: an empty text"),
        ("{env: LINES}", "the environment variable LINES has no credential: the text has control characters"),
        ("{}", "a credential is in one place: {file: PATH}, or {env: NAME}"),
        ("{env: KEY, file: secrets/key}", "a credential is in one place"),
        ("{fiel: secrets/key}", "unknown key 'fiel' in a credential"),
        ("[a]", "expected one value, found a list"),
    ],
)
def test_a_credential_that_is_nowhere_is_an_error(tmp_path: Path, api_key: str, why: str) -> None:
    """What is missing, and what is written wrongly, is named with its line."""
    key_file(tmp_path)
    loaded = load(tmp_path, api_key, EMPTY="", LINES="a\nb", KEY="k")
    assert loaded.rules is None
    assert any(f"{tmp_path}/rules.yaml:5:" in str(problem) and why in str(problem) for problem in loaded.problems)


def test_a_file_that_others_may_change_is_refused(tmp_path: Path) -> None:
    """Who may write a credential decides who the gateway is at an engine; one that others may read is a warning."""
    key_file(tmp_path, mode=0o602)
    refused = load(tmp_path, "{file: secrets/key}")
    assert refused.rules is None and "may write to the credential file 'secrets/key': chmod o-w" in str(refused.errors)
    key_file(tmp_path, mode=0o644)
    warned = load(tmp_path, "{file: secrets/key}")
    assert warned.rules is not None and "may read the credential file 'secrets/key'" in str(warned.problems[0])


def test_a_file_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that has got half way is waited for; one that never ends is an error."""
    file = key_file(tmp_path, SECRET[:5].encode())
    now = 1000.0
    os.utime(file, (now, now))

    def sleep(seconds: float) -> None:
        nonlocal now
        if file.read_bytes() != SECRET.encode():
            file.write_bytes(SECRET.encode())
            os.utime(file, (now + 0.1, now + 0.1))
        now += seconds

    monkeypatch.setattr(host_access.time, "time", lambda: now)
    monkeypatch.setattr(host_access.time, "sleep", sleep)
    rules = load(tmp_path, "{file: secrets/key}").rules
    assert rules is not None and rules.engines["hosted"].api_key == SECRET

    def sleep_while_it_changes(seconds: float) -> None:
        nonlocal now
        now += seconds
        os.utime(file, (now, now))

    os.utime(file, (now, now))
    monkeypatch.setattr(host_access.time, "sleep", sleep_while_it_changes)
    assert "it changes all the time" in str(load(tmp_path, "{file: secrets/key}").errors)


def test_a_credential_without_a_rule_file_on_disk(tmp_path: Path) -> None:
    """Rules as texts name files beside the place that they have."""
    key_file(tmp_path)
    text = (
        "{version: 1, engines: {e: {endpoints: ['http://127.0.0.1:1'], api_key: {file: secrets/key}}}, "
        "routes: [{name: all, engine: e}]}"
    )
    rules = load_texts({str(tmp_path / "rules.yaml"): text}).rules
    assert rules is not None and rules.engines["e"].api_key == SECRET
