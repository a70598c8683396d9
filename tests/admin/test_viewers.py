"""What viewers see of sessions, by whose names conversations go on: digests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from gateway.admin.access import Access
from gateway.admin.api_keys import Role
from gateway.admin.app import make_app
from gateway.admin.keyring import Keyring
from gateway.config.rules import load_texts
from gateway.protocol.credentials import digest_of, is_credential
from tests.admin.test_app import State
from tests.admin.test_auth import bearer, write_keys

SESSION = "support-1"
DIGEST = State.digests.of(SESSION)
FACTS = {"header": {"x-session-id": SESSION, "x-tier": "gold"}, "body": False}
DECISION = {"id": "i", "model": "m", "version": "", "protocol": "rest", "operation": "infer", "session": SESSION}
DECISION |= {"route": "old", "engine": "e", "experiment": None, "arm": None, "facts": FACTS}
RULES = "version: 1\nengines: {e: {endpoints: ['http://e:1']}}\nroutes: [{name: new, engine: e}]\n"


class Recorded(State):
    """A gateway with one recording."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self.rules = load_texts({"r.yaml": RULES}).rules

    recordings = State.rule_manager

    def path(self, name: str) -> Path:
        return self._path


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Calls the admin API as an operator or a viewer."""
    recording = tmp_path / "r.jsonl"
    recording.write_text(f'{json.dumps({"recording": 1, "headers": []})}\n{json.dumps(DECISION)}\n{{"time"')

    async def conversations(*_: Any, **__: Any) -> Any:
        return [{"session": SESSION, "tenant": "acme", "tokens": 1}], 0

    monkeypatch.setattr("gateway.admin.sessions.list_conversations", conversations)
    monkeypatch.setattr("gateway.admin.sessions.store_of", lambda *_: None)
    keys = write_keys(tmp_path / "keys.yaml", viewer=Role.viewer, operator=Role.operator)
    client = TestClient(make_app(Recorded(recording), Access(Keyring(tmp_path / "keys.yaml"))), "http://localhost")

    def call(role: str, path: str, body: Any = None) -> str:
        method = "GET" if body is None else "POST"
        reply = client.request(method, path, json=body, headers=bearer(keys[role]))
        assert reply.status_code == 200, reply.text
        return reply.text

    return call


CALLS = [
    ("/conversations", None),
    ("/recordings/r/file", None),
    ("/rules/replay", {"recording": "r", "against_rules_in_force": False}),
]


@pytest.mark.parametrize("path, body", CALLS)
def test_viewers_see_digests_of_sessions(read: Any, path: str, body: Any) -> None:
    """Operators read the names of sessions in conversations, recordings and replays; viewers read digests."""
    assert SESSION in read("operator", path, body)
    seen = read("viewer", path, body)
    assert SESSION not in seen and DIGEST in seen and digest_of(SESSION.encode()) not in seen


CREDENTIALS = (
    "authorization",
    "Proxy-Authorization",
    "cookie",
    "set-cookie",
    "x-api-key",
    "api-key",
    "apikey",
    "api_key",
)
CREDENTIALS += ("x-goog-api-key", "x-auth-token", "x-amz-security-token", "token", "accessToken", "clientSecret")
CREDENTIALS += ("password", "passphrase", "x-jwt", "header:cookie", "x.credentials")
NO_CREDENTIALS = (
    "max_tokens",
    "x-tier",
    "monkey",
    "tokenizer",
    "x-session-id",
    "session",
    "header:x-user",
    "keyboard",
    "",
)


@pytest.mark.parametrize("name", CREDENTIALS + NO_CREDENTIALS)
def test_credentials_are_known_by_their_names(name: str) -> None:
    """One predicate for rules, accounts, recordings, events and the audit: a name that ends as those of credentials."""
    assert is_credential(name) == (name in CREDENTIALS)
