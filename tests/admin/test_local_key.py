"""The gateway's own key: no other user of this host is an admin, and its own user types no key."""

import base64
import contextlib
import os
import pty
import re
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from gateway.admin import local_key
from gateway.admin.access import Access
from gateway.admin.api_keys import Role
from gateway.admin.app import make_app
from gateway.admin.audit_log import AuditFile
from gateway.admin.keyring import Keyring
from gateway.admin.local_key import LocalKey
from gateway.cli.admin_client import Gateway
from gateway.config.settings import Settings
from tests.admin.test_app import ACCESS, KEY, State
from tests.admin.test_auth import write_keys
from tests.support import plain_http
from tests.support.command_line import pointsman
from tests.support.servers import GatewayProcess

RULES = "{version: 1, engines: {it: {endpoints: ['http://127.0.0.1:1']}}, routes: [{name: all, engine: it}]}"
NO_KEY = "http://localhost:8002"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway without a keys file, on a folder whose path is short enough for a socket."""
    server = GatewayProcess.start(RULES, tmp_path_factory.mktemp("g")).wait_ready()
    yield server
    server.stop()


def test_no_other_user_of_this_host_is_an_admin(gateway: GatewayProcess) -> None:
    """Without a key every call is refused, and nothing is activated: only this gateway's user can read its key."""
    files = {"rules.yaml": RULES.replace("all", "mine")}
    assert plain_http.get(f"{gateway.page_url}/engines").status_code == 401
    assert plain_http.post(f"{gateway.page_url}/rules/activate", json={"files": files}).status_code == 401
    assert plain_http.get(f"{gateway.admin_url}/rules").json()["number"] == 1
    path = gateway.data_dir / "admin.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert gateway.admin_key not in gateway.log()


def test_an_admin_key_reads_nothing_of_the_host(gateway: GatewayProcess, tmp_path: Path) -> None:
    """Rules by the API that name a file or a variable of the gateway's user are refused, with the cure."""
    (tmp_path / "secret").write_text("the secret")
    rules = RULES.replace("endpoints", f"chat_template: {tmp_path}/secret, headers: {{x-a: '${{PATH}}'}}, endpoints")
    for path in ("validate", "activate"):
        reply = plain_http.post(f"{gateway.admin_url}/rules/{path}", json={"files": {"rules.yaml": rules}})
        messages = [problem["message"] for problem in reply.json()["problems"]]
        assert len(messages) == 2 and reply.status_code == (200 if path == "validate" else 422), reply.text
        assert "--rules-api-env PATH" in messages[1] and "is outside of" in messages[0]
        assert "the secret" not in reply.text and os.environ["PATH"] not in reply.text


def test_the_audit_has_the_address_of_the_connection(gateway: GatewayProcess) -> None:
    """A caller cannot choose the address that the audit and the bound on wrong keys see, nor pass for the socket."""
    for forged in ("192.0.2.1", "unix"):
        fields = {"x-forwarded-for": forged, "x-forwarded-proto": "https"}
        assert plain_http.get(f"{gateway.page_url}/engines", headers=fields).status_code == 401
        url = f"{gateway.admin_url}/log-level"
        assert plain_http.put(url, json={"level": "info"}, headers=fields).status_code == 200
        assert plain_http.get(f"{gateway.admin_url}/audit?limit=1").json()["audit"][0]["peer"] == "127.0.0.1"


def test_what_reveals_little_is_open_on_this_host(gateway: GatewayProcess) -> None:
    """Scrapers and health checks of this host need no key, as before."""
    for path in ("/metrics", "/healthz", "/"):
        assert plain_http.get(gateway.page_url + path).status_code == 200, path


def test_commands_of_its_user_need_no_key(gateway: GatewayProcess) -> None:
    """A command with the same data folder uses the Unix socket, without it the key; another folder has neither."""
    own = ["--admin", gateway.page_url, "--data-dir", str(gateway.data_dir)]
    socket = gateway.data_dir / f"admin-{gateway.admin_port}.sock"
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    assert "127.0.0.1:1" in pointsman("engines", *own).stdout
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), base_url=NO_KEY) as client:
        assert client.get("/whoami").json() == {"name": "local", "role": "admin"}
    socket.rename(socket.with_suffix(".away"))
    try:
        assert "127.0.0.1:1" in pointsman("engines", *own).stdout
    finally:
        socket.with_suffix(".away").rename(socket)
    other = pointsman("engines", "--admin", gateway.page_url, "--data-dir", str(gateway.data_dir / "none"))
    assert (other.returncode, "asks for a key" in other.stderr) == (1, True)


def test_a_key_goes_to_no_other_host(tmp_path: Path) -> None:
    """Where there is no socket, loopback addresses get a key of one minute, others none, nor one with a key in it."""
    own = LocalKey.kept_in(tmp_path)
    addresses = ("http://127.0.0.1:8002", "http://localhost", "http://gateway.example:8002", "http://a:b@[::1]")
    one, two, *others = [Gateway(address, "", tmp_path)._local_access()[1] for address in addresses]
    assert others == ["", ""]
    for key, port in ((one, 8002), (two, 80)):
        assert own.caller(key, port + 1) is None and own.caller(key.replace(f"-{port}-", "-1-"), 1) is None
        caller = own.caller(key, port)
        assert caller is not None and caller.expires is not None and caller.expires <= time() + 60


def test_a_link_signs_in_once(gateway: GatewayProcess) -> None:
    """`pointsman page` prints a link; its token opens one session, whose key does what the gateway's does."""
    link = pointsman("page", "--admin", gateway.page_url, "--data-dir", str(gateway.data_dir)).stdout.strip()
    address, token = link.split("/#token=")
    assert address == gateway.page_url
    opened = plain_http.post(f"{address}/sign-in", json={"token": token}).json()
    bearer = {"authorization": f"Bearer {opened['key']}"}
    assert plain_http.get(f"{address}/whoami", headers=bearer).json() == {"name": "local", "role": "admin"}
    again = plain_http.post(f"{address}/sign-in", json={"token": token})
    assert (again.status_code, "has been used" in again.json()["detail"]) == (410, True)
    audit = plain_http.get(f"{gateway.admin_url}/audit").text
    for secret in (token, opened["key"], gateway.admin_key):
        assert secret not in audit and secret not in gateway.log()


def test_a_caught_key_becomes_no_session(gateway: GatewayProcess, tmp_path: Path) -> None:
    """Neither the key of a command nor that of a session makes the token of a further session, and a key for another
    port is refused: who gets one has no access without end. The gateway's own key makes tokens."""
    caught = [LocalKey(gateway.admin_key).make_session(60, port) for port in (gateway.admin_port, 1)]
    keys = [*caught, LocalKey(gateway.admin_key).make_session(60), gateway.admin_key]
    found = []
    for key in keys:
        bearer = {"authorization": f"Bearer {key}"}
        known = plain_http.get(f"{gateway.page_url}/whoami", headers=bearer).status_code
        found.append((known, plain_http.post(f"{gateway.page_url}/sign-in-tokens", headers=bearer).status_code))
    assert found == [(200, 403), (401, 401), (200, 403), (200, 200)]


def test_a_terminal_gets_a_link_and_a_log_none(tmp_path: Path, gateway: GatewayProcess) -> None:
    """`serve` prints a sign-in link where a user reads it; a log gets none."""
    assert "#token=" not in gateway.log() and "`pointsman page`" in gateway.log()
    (tmp_path / "rules.yaml").write_text(RULES)
    command = [sys.executable, "-m", "gateway", "serve", "--rules", str(tmp_path / "rules.yaml"), "--redis", "off"]
    command += ["--data-dir", str(tmp_path), "--http-port", "0", "--grpc-port", "0", "--admin-port", "0"]
    terminal, other_end = pty.openpty()
    with subprocess.Popen(command, stderr=other_end, stdin=subprocess.DEVNULL) as process:
        os.close(other_end)
        shown = b""
        try:
            while not (found := re.search(rb"(http://\S+)/#token=(\S+)\r", shown)):
                shown += os.read(terminal, 4096)  # an error once the process has ended
            address, token = found[1].decode(), found[2].decode()
            assert plain_http.post(f"{address}/sign-in", json={"token": token}).status_code == 200
        finally:
            process.terminate()
            drained = threading.Thread(target=_drain, args=(terminal,), daemon=True)
            drained.start()
    assert process.returncode == 0


def _drain(terminal: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(terminal, 4096):
            pass


def test_a_sign_in_costs_little() -> None:
    """Without a key a body of a few kilobytes is all that is read."""
    client = TestClient(make_app(State(), ACCESS), NO_KEY)
    answer = client.post("/sign-in", content=b'{"token": "' + b"x" * 5000 + b'"}')
    assert (answer.status_code, "longer than 4096 bytes" in answer.text) == (413, True)


def test_guesses_push_nothing_out_of_the_audit(tmp_path: Path) -> None:
    """A sign-in with a wrong token is no entry, a right one is."""
    client = TestClient(make_app(State(), ACCESS, AuditFile(tmp_path)), NO_KEY)
    token = ACCESS.local.make_token()[0] if ACCESS.local is not None else ""
    found = [client.post("/sign-in", json={"token": each}).status_code for each in ("wrong", token, "wrong")]
    assert found == [410, 200, 410]
    (entry,) = client.get("/audit", headers={"authorization": f"Bearer {KEY}"}).json()["audit"]
    assert (entry["path"], entry["body"], entry["role"]) == ("/sign-in", {"token": "***"}, "none")


def test_sessions_and_tokens_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token is valid for ten minutes, a session for twelve hours, also in a restarted gateway; a changed expiry is
    refused."""
    now = [1_000_000.0]
    monkeypatch.setattr(local_key, "time", lambda: now[0])
    key = LocalKey(KEY)
    early, late = key.make_token()[0], key.make_token()[0]
    opened = key.open_session(early)
    assert opened is not None
    session = opened[0]
    later = LocalKey(KEY).caller(session)
    assert later is not None and later.expires == now[0] + 12 * 3600
    now[0] += 601
    assert key.open_session(late) is None
    now[0] += 12 * 3600
    assert key.caller(session) is None
    assert key.caller(session.replace("-1043200-", "-9043200-")) is None
    assert LocalKey.unkept().caller(session) is None


def test_a_session_that_has_expired_is_held_no_more() -> None:
    """Event streams of an expired session end."""
    caller = ACCESS.local and ACCESS.local.caller(KEY)
    assert caller is not None and ACCESS.holds(caller)
    assert not ACCESS.holds(replace(caller, expires=1.0))


def test_replicas_and_restarts_have_one_key(tmp_path: Path) -> None:
    """Gateways that start at once on one new folder agree on its key, and so does a later one."""

    def secret(_: int) -> Any:
        return LocalKey.kept_in(tmp_path / "new")._key

    with ThreadPoolExecutor(8) as starts:
        assert len({*starts.map(secret, range(32)), secret(0)}) == 1
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["admin.key"]
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


@pytest.mark.parametrize("flaw", ["readable", "broken"])
def test_a_key_that_is_no_secret_is_replaced(tmp_path: Path, flaw: str, caplog: pytest.LogCaptureFixture) -> None:
    """A key file that others could read, or without a key, is replaced, with a warning; commands do not use it."""
    before = LocalKey.kept_in(tmp_path)._key
    path = tmp_path / "admin.key"
    if flaw == "readable":
        path.chmod(0o640)
    else:
        path.write_text("pm-")
    assert local_key.find_access(tmp_path, 1) == (None, "")
    assert LocalKey.kept_in(tmp_path)._key != before
    assert "replaced by a new one" in caplog.text and before.decode() not in caplog.text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_link_in_place_of_the_key_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A symbolic link is no key; the gateway has a key for this run then, and says what to do."""
    (tmp_path / "theirs").write_text(KEY)
    (tmp_path / "theirs").chmod(0o600)
    (tmp_path / "admin.key").symlink_to("theirs")
    access = Access.of(Settings(data_dir=tmp_path))
    assert access.local is not None and access.local.caller(KEY) is None
    assert "--data-dir" in caplog.text and "--admin-keys" in caplog.text


def test_a_folder_that_cannot_be_written_leaves_no_gateway_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the key cannot be kept, there is one for this run, not none."""
    (tmp_path / "file").write_text("")
    access = Access.of(Settings(data_dir=tmp_path / "file" / "state"))
    assert TestClient(make_app(State(), access), NO_KEY).get("/engines").status_code == 401
    assert "a key for this run alone" in caplog.text


@pytest.mark.parametrize("user_info, status", [(f"any:{KEY}", 200), (f"{KEY}:", 200), ("any:wrong", 401), (":", 401)])
def test_the_key_may_be_the_password_of_basic(user_info: str, status: int) -> None:
    """HTTP Basic does where a client knows no Bearer; the challenge stays Bearer, so that no browser asks by itself."""
    client = TestClient(make_app(State(), ACCESS), NO_KEY)
    value = base64.b64encode(user_info.encode()).decode()
    answer = client.get("/engines", headers={"authorization": f"Basic {value}"})
    assert answer.status_code == status
    assert "Basic" not in answer.headers.get("www-authenticate", "")


def test_a_key_of_a_keys_file_may_be_the_password_of_basic(tmp_path: Path) -> None:
    """With a keys file, too; but a page elsewhere cannot use what a browser sends by itself."""
    key = write_keys(tmp_path / "keys.yaml", vera=Role.viewer)["vera"]
    client = TestClient(make_app(State(), Access(Keyring(tmp_path / "keys.yaml"))), f"http://vera:{key}@gateway:8002")
    assert client.get("/whoami").json() == {"name": "vera", "role": "viewer"}
    assert client.get("/whoami", headers={"origin": "http://evil.example"}).status_code == 403
