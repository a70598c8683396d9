"""Access to the admin API: keys, roles, cross-origin pages, and the audit."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from starlette.types import Message

from gateway.admin import keyring
from gateway.admin.access import Access
from gateway.admin.api_keys import KeysError, Role, entry_fields, make_key, read_keys
from gateway.admin.app import make_app
from gateway.admin.audit_log import AuditFile
from gateway.admin.auth import admin, operator, viewer
from gateway.admin.keyring import Attempts, Keyring, TooManyAttemptsError
from tests.admin.test_app import ACCESS, BASE, State

# Open to load balancers and monitoring, and to browsers with a one-time token.
OPEN = {"/metrics", "/healthz", "/readyz", "/sign-in"}


def write_keys(path: Path, **roles: Role) -> dict[str, str]:
    """Write a keys file. Returns the keys by name."""
    made = {name: make_key(name, role) for name, role in roles.items()}
    path.write_text(yaml.safe_dump([dict(entry_fields(entry)) for _, entry in made.values()]))
    return {name: key for name, (key, _) in made.items()}


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    return write_keys(tmp_path / "keys.yaml", vera=Role.viewer, otto=Role.operator, anna=Role.admin)


@pytest.fixture
def client(tmp_path: Path, keys: dict[str, str]) -> TestClient:
    access = Access(Keyring(tmp_path / "keys.yaml"))
    return TestClient(make_app(State(), access, AuditFile(tmp_path)), "http://gateway.example:8002")


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


DRAIN = ("POST", "/engines/mac/endpoints/drain", {"url": "http://c:1", "by": "somebody else"})


@pytest.mark.parametrize(
    "who, call, status",
    [
        (None, ("GET", "/engines", None), 401),
        (None, ("GET", "/metrics", None), 401),
        (None, ("GET", "/nowhere", None), 401),
        (None, ("GET", "/healthz", None), 200),
        ("vera", ("GET", "/engines", None), 200),
        ("vera", ("GET", "/metrics", None), 200),
        ("vera", DRAIN, 403),
        ("otto", DRAIN, 200),
        ("anna", DRAIN, 200),
        ("otto", ("GET", "/audit", None), 403),
        ("anna", ("GET", "/audit", None), 200),
    ],
)
def test_a_role_may_what_the_roles_below_it_may(
    client: TestClient, keys: dict[str, str], who: str | None, call: tuple[str, str, Any], status: int
) -> None:
    """Reading needs a viewer's key, changes an operator's, the audit an admin's; health needs none."""
    method, path, body = call
    answer = client.request(method, path, json=body, headers=bearer(keys[who]) if who else {})
    assert answer.status_code == status, answer.text


MIB = 1024 * 1024


@pytest.mark.parametrize(
    "who, path, length, status, said",
    [
        ("vera", "/rules/validate", 33 * MIB, 403, "role admin"),  # the role comes before the length
        ("vera", "/playground", 33 * MIB, 403, "role operator"),
        ("vera", "/rules/explain", MIB + 1, 413, "1048576 bytes"),
        ("otto", "/models/m/load", MIB + 1, 413, "1048576 bytes"),
        ("otto", "/playground", 5 * MIB, 413, "4259840 bytes"),
        ("anna", "/rules/validate", 33 * MIB, 413, "33554432 bytes"),
        ("anna", "/models/m/load", 33 * MIB, 413, "33554432 bytes"),
        ("anna", "/engines/mac/endpoints/drain", 33 * MIB, 413, "1048576 bytes"),
    ],
)
def test_a_body_is_read_if_the_role_admits_it(
    client: TestClient, keys: dict[str, str], who: str, path: str, length: int, status: int, said: str
) -> None:
    """What the role does not permit, and what says that it is longer than the role may send there, is refused before
    any of the body is read."""
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("the body was read")

    async def send(message: Message) -> None:
        sent.append(message)

    fields = {**bearer(keys[who]), "host": "gateway.example", "content-type": "application/json"}
    headers = [(name.encode(), value.encode()) for name, value in (fields | {"content-length": str(length)}).items()]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    asyncio.run(client.app(scope, receive, send))
    assert (sent[0]["status"], said in sent[1]["body"].decode()) == (status, True), sent


@pytest.mark.parametrize(
    "who, path, body, status",
    [
        ("vera", "/rules/explain", b'{"model": [' + b"[]," * 300_000 + b"[]]}", 413),
        ("vera", "/rules/explain", b'{"model": "' + b"[]," * 300_000 + b'"}', 422),  # a text
        ("anna", "/rules/validate", b'{"files": [' + b"[]," * 3_000_000 + b"[]]}", 413),
        ("anna", "/rules/activate", b'{"version": 1, "files": {"r": "' + b"{a: [1, 2]}\\n" * 100_000 + b'"}}', 400),
    ],
)
def test_values_are_counted_before_they_are_made(
    client: TestClient, keys: dict[str, str], who: str, path: str, body: bytes, status: int
) -> None:
    """A short body with hundreds of thousands of lists is refused before any is made; texts of any kind pass."""
    answer = client.post(path, content=body, headers={**bearer(keys[who]), "content-type": "application/json"})
    assert answer.status_code == status, answer.text
    assert status != 413 or "values and keys" in answer.json()["detail"]


def test_who_one_is(client: TestClient, keys: dict[str, str]) -> None:
    """/whoami reports a key's name and role."""
    assert client.get("/whoami", headers=bearer(keys["otto"])).json() == {"name": "otto", "role": "operator"}
    own = TestClient(make_app(State(), ACCESS), BASE).get("/whoami")
    assert own.json() == {"name": "local", "role": "admin"}


def test_a_key_is_not_in_its_file(tmp_path: Path, keys: dict[str, str]) -> None:
    """The keys file does not contain the keys."""
    text = (tmp_path / "keys.yaml").read_text()
    assert not any(key in text or key.split("-", 2)[2] in text for key in keys.values())


def test_a_key_taken_out_of_the_file_opens_nothing_more(
    tmp_path: Path, client: TestClient, keys: dict[str, str]
) -> None:
    """A removed key is refused at once, even if it was just used; the others stay valid, and a changed role takes
    effect."""
    assert client.get("/engines", headers=bearer(keys["otto"])).status_code == 200
    entries = [entry for entry in yaml.safe_load((tmp_path / "keys.yaml").read_text()) if entry["name"] != "otto"]
    entries[0]["role"] = "operator"
    (tmp_path / "keys.yaml").write_text(yaml.safe_dump(entries))
    assert client.get("/engines", headers=bearer(keys["otto"])).status_code == 401
    assert client.request(DRAIN[0], DRAIN[1], json=DRAIN[2], headers=bearer(keys["vera"])).status_code == 200


def test_a_broken_keys_file_opens_nothing_until_it_is_mended(
    tmp_path: Path, client: TestClient, keys: dict[str, str]
) -> None:
    """While the keys file is invalid every key is refused, because the edit may have meant to remove one."""
    before = (tmp_path / "keys.yaml").read_text()
    (tmp_path / "keys.yaml").write_text("- name: x")
    answer = client.get("/engines", headers=bearer(keys["anna"]))
    assert (answer.status_code, "log says why" in answer.text) == (503, True)
    (tmp_path / "keys.yaml").write_text(before)
    assert client.get("/engines", headers=bearer(keys["anna"])).status_code == 200


@pytest.mark.parametrize(
    "text, message",
    [
        ("- {name: a, role: king, id: 01234567, hash: x}", "keys.yaml:1:19: error: unknown value 'king'"),
        (
            "- {name: a, role: admin, id: 01234567, hash: x, scope: 'engines:a'}",
            "keys.yaml:1:56: error: 'engines:a' is not a scope: write engine:NAME, model:NAME or experiment:NAME",
        ),
        ("- {name: a, role: admin, id: 01234567, hash: x, expires: soon}", "keys.yaml:1:58: error: 'soon' is not a"),
        ("- name: a\n  role: admin", "keys.yaml:1:3: error: a key needs 'id'"),
        ("a: b", "keys.yaml:1:1: error: expected a list of keys, found a map"),
        ("- {name: a, role: admin, id: 01234567, hash: 'scrypt:3:8:1:aa:bb'}", "keys.yaml:1:46: error: not a hash"),
        (
            "- {name: a, role: admin, id: 01234567, hash: 'scrypt:2:8:-1:aaaa:bbbb'}",
            "keys.yaml:1:46: error: not a hash",
        ),
        ("- {name: a, role: admin, id: 01234567, hash: 'scrypt:2:8:9999999:aaaa:bbbb'}", "keys.yaml:1:46: error: not"),
        ("- {name: a, rolle: admin, id: 01234567, hash: x}", "did you mean 'role'"),
    ],
)
def test_a_mistake_in_a_keys_file_has_its_place(tmp_path: Path, text: str, message: str) -> None:
    """The error for a keys file has file, line and column, and the valid form."""
    (tmp_path / "keys.yaml").write_text(text)
    with pytest.raises(KeysError, match=r"keys\.yaml") as raised:
        read_keys(tmp_path / "keys.yaml")
    assert message in str(raised.value)


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the rate limit stands still, however long a busy machine takes for the hashes."""
    monkeypatch.setattr(keyring, "monotonic", lambda: 0.0)


@pytest.mark.usefixtures("stopped_clock")
def test_who_guesses_is_held_back(client: TestClient, keys: dict[str, str]) -> None:
    """After ten wrong keys further attempts get 429; a key that was accepted before still works."""
    assert client.get("/engines", headers=bearer(keys["vera"])).status_code == 200
    for whose in (keys["otto"], keys["vera"]):
        wrong = [client.get("/engines", headers=bearer(f"{whose[:12]}{n:043}")).status_code for n in range(12)]
        assert wrong == [401] * 10 + [429] * 2
    assert client.get("/engines", headers=bearer(keys["otto"])).status_code == 429
    assert client.get("/engines", headers=bearer(keys["vera"])).status_code == 200


@pytest.mark.usefixtures("stopped_clock")
def test_a_page_left_open_with_a_key_that_is_no_more_holds_back_nobody(
    client: TestClient, keys: dict[str, str]
) -> None:
    """Repeated requests with an unknown key do not block a valid key from the same address."""
    gone = [client.get("/engines", headers=bearer(f"pm-01234567-{n:043}")).status_code for n in range(12)]
    assert gone == [401] * 10 + [429] * 2
    assert client.get("/engines", headers=bearer(keys["otto"])).status_code == 200


def test_patience_comes_back() -> None:
    """One attempt is restored every six seconds, per address and key id."""
    attempts = Attempts()
    for _ in range(10):
        attempts.check("peer", "1", 0.0)
        attempts.count("peer", "1", 0.0)
    with pytest.raises(TooManyAttemptsError):
        attempts.check("peer", "1", 5.9)
    attempts.check("peer", "1", 6.1)
    attempts.check("peer", "2", 0.0)
    attempts.check("another", "1", 0.0)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8002",
        "127.0.0.1.evil.example",
        "192.0.2.1:8002",
        "[::1].evil.example",
        "[[::1",
        "",
    ],
)
def test_a_name_bound_anew_is_no_name_of_ours(host: str) -> None:
    """A host name of another site is refused, even if it resolves to 127.0.0.1 (DNS rebinding)."""
    answer = TestClient(make_app(State(), ACCESS), BASE).get("/engines", headers={"host": host})
    assert answer.status_code == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8002", "[::1]:8002", "127.1.2.3"])
def test_names_of_this_host(host: str) -> None:
    """Names and addresses of the loopback are accepted as host."""
    assert TestClient(make_app(State(), ACCESS), BASE).get("/engines", headers={"host": host}).status_code == 200


def test_every_endpoint_names_its_role() -> None:
    """Every endpoint requires exactly one role, except those that are open on purpose."""

    def roles(route: APIRoute) -> set[Any]:
        return {dependency.call for dependency in route.dependant.dependencies} & {viewer, operator, admin}

    routes = [route for route in make_app(State(), ACCESS).routes if isinstance(route, APIRoute)]
    files = {"/", "/assets/{path:path}", "/openapi-inference.json"}
    assert {route.path for route in routes if len(roles(route)) != 1} - files == OPEN
    changing = [route for route in routes if route.methods - {"GET", "HEAD"}]
    asking = {"/rules/explain", "/rules/replay"}  # whose input is too long for a query string
    assert {route.path for route in changing if roles(route) == {viewer}} <= asking


SCOPED = [
    ("POST", "/engines/mac/endpoints/drain", {"url": "http://c:1"}, 200),
    ("POST", "/engines/cuda/endpoints/drain", {"url": "http://a:1"}, 403),
    ("PUT", "/log-level", {"level": "debug"}, 403),
    ("DELETE", "/requests/1", None, 403),
    ("POST", "/models/llama-1/load", {"quorum": 0}, 422),
    ("POST", "/models/other/load", {"quorum": 0}, 403),
    ("GET", "/engines", None, 200),
]


@pytest.mark.parametrize("method, path, body, status", SCOPED)
def test_a_key_may_be_for_some_engines_and_models(
    tmp_path: Path, method: str, path: str, body: Any, status: int
) -> None:
    """A key with a scope changes what its scope names, by name or glob, and nothing else; it reads everything."""
    key = write_keys(tmp_path / "keys.yaml", otto=Role.operator)["otto"]
    text = (tmp_path / "keys.yaml").read_text()
    (tmp_path / "keys.yaml").write_text(text + "  scope: engine:mac, model:llama-*\n")
    client = TestClient(make_app(State(), Access(Keyring(tmp_path / "keys.yaml"))))
    answer = client.request(method, path, json=body, headers=bearer(key))
    assert answer.status_code == status, answer.text
    if status == 403:
        assert "not in the scope of the key of 'otto': engine:mac, model:llama-*" in answer.json()["detail"]


@pytest.mark.parametrize("parameters", [{"config": "{}"}, {"file:1/model.py": "cGFzcw=="}])
def test_code_for_engines_needs_an_admin(tmp_path: Path, parameters: dict[str, str]) -> None:
    """An operator loads models, and brings none; nor does an admin whose key is for some models."""
    keys = write_keys(tmp_path / "keys.yaml", otto=Role.operator, ada=Role.admin)
    body = {"parameters": parameters, "engine": "nowhere"}

    def load(name: str) -> tuple[int, bool]:
        client = TestClient(make_app(State(), Access(Keyring(tmp_path / "keys.yaml"))))
        answer = client.post("/models/llama-1/load", json=body, headers=bearer(keys[name]))
        return answer.status_code, "role admin without a scope" in answer.text

    assert load("otto") == (403, True)
    assert load("ada") == (404, False)
    with (tmp_path / "keys.yaml").open("a") as file:
        file.write("  scope: model:*\n")  # of the last key
    assert load("ada") == (403, True)


def test_a_key_may_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From `expires` on a key is refused, also one that was just used, and event streams by it end."""
    key = write_keys(tmp_path / "keys.yaml", vera=Role.viewer)["vera"]
    text = (tmp_path / "keys.yaml").read_text()
    (tmp_path / "keys.yaml").write_text(text + "  expires: 2027-01-31\n")
    now = [datetime(2027, 1, 30, 23, 59, tzinfo=UTC).timestamp()]
    monkeypatch.setattr("gateway.admin.access.time", lambda: now[0])
    access = Access(Keyring(tmp_path / "keys.yaml"))
    client = TestClient(make_app(State(), access))
    assert client.get("/engines", headers=bearer(key)).status_code == 200
    assert access.keyring is not None
    caller = asyncio.run(access.keyring.caller(key, "me"))
    assert caller is not None and access.holds(caller)
    now[0] += 60
    answer = client.get("/engines", headers=bearer(key))
    assert (answer.status_code, answer.json()["detail"]) == (401, "this key has expired")
    assert not access.holds(caller)


@pytest.mark.parametrize("path", ["/rules/validate", "/rules/explain"])
def test_rules_of_his_own_are_judged_for_who_may_put_them_in_force(
    client: TestClient, keys: dict[str, str], path: str
) -> None:
    """Checking one's own rules needs the role admin, because they may read variables of the gateway's environment and
    reveal an engine's API key."""
    files = {"rules.yaml": "routes: [{name: r, engine: e, model: '${API_KEY}'}]"}
    for who in ("vera", "otto"):
        answer = client.post(path, json={"model": "m", "files": files}, headers=bearer(keys[who]))
        assert answer.status_code == 403 and "role admin" in answer.json()["detail"]
    assert client.post("/rules/explain", json={"model": "m"}, headers=bearer(keys["vera"])).status_code == 200


def test_changes_are_written_down(client: TestClient, keys: dict[str, str], tmp_path: Path) -> None:
    """The audit records each call that is not a read, with caller, request and status but no secrets; a gateway started
    later reports it too."""
    drain = DRAIN[2] | {"reason": "r"}
    path = DRAIN[1] + "?note=n&api_key=k1"
    client.request(DRAIN[0], path, json=drain | {"authorization": "k2"}, headers=bearer(keys["otto"]))
    client.post("/engines/mac/endpoints/drain", json={"url": 3}, headers=bearer(keys["vera"]))
    client.post("/engines/mac/endpoints/drain", content=b"{x", headers=bearer(keys["anna"]))
    client.get("/engines", headers=bearer(keys["anna"]))
    client.post("/engines/mac/endpoints/drain", json={"url": "http://c:1"})  # without a key: logged only
    later = TestClient(
        make_app(State(), Access(Keyring(tmp_path / "keys.yaml")), AuditFile(tmp_path)), "http://gateway.example:8002"
    )
    entries = later.get("/audit", headers=bearer(keys["anna"])).json()["audit"]
    assert [(entry["name"], entry["role"], entry["status"], entry["body"]) for entry in entries] == [
        ("anna", "admin", 422, "{x"),
        ("vera", "viewer", 403, None),  # not read
        ("otto", "operator", 200, drain | {"authorization": "***"}),
    ]
    assert entries[2]["query"] == {"note": "n", "api_key": "***"}
    assert entries[2]["path"] == "/engines/mac/endpoints/drain" and entries[2]["method"] == "POST"
    assert later.get("/audit?limit=1", headers=bearer(keys["anna"])).json()["audit"] == entries[:1]


def test_a_drain_is_its_callers(tmp_path: Path, keys: dict[str, str]) -> None:
    """A drain's author is the name of the key, whatever the body claims."""
    state = State()
    client = TestClient(make_app(state, Access(Keyring(tmp_path / "keys.yaml"))))
    client.request(DRAIN[0], DRAIN[1], json=DRAIN[2], headers=bearer(keys["otto"]))
    assert state.wishes == [("mac", "http://c:1", True, "otto")]


def test_the_audit_of_a_gateway_without_redis_is_bounded(tmp_path: Path) -> None:
    """At most one older file is kept, and an incomplete line, as of a killed gateway, is skipped."""

    async def run() -> list[bytes]:
        log = AuditFile(tmp_path, max_bytes=200)
        for number in range(100):
            await log.write(b'{"number": %d}' % number)
        with (tmp_path / "audit.jsonl").open("ab") as file:
            file.write(b'{"number": 1')
        return await log.last(3)

    assert asyncio.run(run()) == [b'{"number": 99}', b'{"number": 98}', b'{"number": 97}']
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 500
    assert len(list(tmp_path.iterdir())) == 2


def test_an_audit_that_cannot_be_written_is_told_in_a_line(
    tmp_path: Path, keys: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """When the audit cannot be written, the call succeeds and one line is logged."""
    (tmp_path / "full").write_text("no folder")
    client = TestClient(make_app(State(), ACCESS, log=AuditFile(tmp_path / "full")), BASE)
    assert client.request(DRAIN[0], DRAIN[1], json=DRAIN[2]).status_code == 200
    (reply,) = [record for record in caplog.records if record.name == "pointsman"]
    assert reply.exc_info is None
    assert reply.getMessage().startswith("a call is not in the audit: POST /engines/mac/endpoints/drain: ")


def test_metrics_may_be_open(tmp_path: Path, keys: dict[str, str]) -> None:
    """With `--open-metrics` /metrics needs no key; everything else does."""
    access = Access(Keyring(tmp_path / "keys.yaml"), has_open_metrics=True)
    client = TestClient(make_app(State(), access), "http://gateway.example:8002")
    assert client.get("/metrics").status_code == 200
    assert client.get("/engines").status_code == 401
    assert client.get("/metrics", headers=bearer("nonsense")).status_code == 200
