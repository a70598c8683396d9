"""Credentials of engines that are replaced while a gateway serves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tests.support import plain_http
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

RULES = """\
version: 1
engines:
  hosted:
    endpoints: ["http://{address}"]
    api_key: {{file: secrets/key}}
    headers: {{x-account: {{file: secrets/account}}}}
    health: {{interval: 200ms, timeout: 60s}}
routes: [{{name: all, engine: hosted}}]
"""
INFER = {"inputs": [{"name": "i", "datatype": "BYTES", "shape": [1], "data": ["x"]}]}


class GuardedEngine:
    """An engine that remembers each credential that it receives, and from how many connections."""

    def __init__(self) -> None:
        keys = self.keys = set[tuple[str, str]]()
        probe_keys = self.probe_keys = set[tuple[str, str]]()
        connections = self.connections = set[tuple[str, int]]()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _key(self) -> tuple[str, str]:
                return self.headers.get("authorization", ""), self.headers.get("x-account", "")

            def do_GET(self) -> None:
                probe_keys.add(self._key())
                self._answer()

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                if self.path == "/v2/repository/index":
                    probe_keys.add(self._key())
                else:
                    keys.add(self._key())
                    connections.add(self.client_address)
                self._answer()

            def _answer(self) -> None:
                body = json.dumps({"model_name": "m", "outputs": []}).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.address = f"127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class SecretMount:
    """A volume as the kubelet makes it: files are links into `..data`, a link that one rename replaces."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        folder.mkdir()
        for name in ("key", "account"):
            (folder / name).symlink_to(f"..data/{name}")

    def publish(self, key: str, account: str) -> None:
        self._count += 1
        data = self._folder / f"..2026_{self._count}"
        data.mkdir()
        for name, text in (("key", key), ("account", account)):
            (data / name).write_text(text)
            (data / name).chmod(0o600)
        new = self._folder / "..data_tmp"
        new.symlink_to(data.name)
        new.rename(self._folder / "..data")


class Traffic:
    """Requests of one client over one connection, without a pause."""

    def __init__(self, url: str) -> None:
        self.statuses: list[int] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(f"{url}/v2/models/m/infer",))
        self._thread.start()

    def _run(self, url: str) -> None:
        with httpx.Client(timeout=120, trust_env=False) as client:
            while not self._is_over.is_set():
                self.statuses.append(client.post(url, json=INFER).status_code)

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()


@pytest.fixture
def engine() -> Iterator[GuardedEngine]:
    engine = GuardedEngine()
    yield engine
    engine.stop()


def test_credentials_are_replaced_under_traffic(
    engine: GuardedEngine, start_gateway: Callable[..., GatewayProcess], tmp_path: Path
) -> None:
    """A rotated secret reaches engines and probes without a restart: no request fails, none carries a part of a value,
    and the connection to the engine is kept. An empty file changes nothing. Neither the log nor the admin API has a
    credential."""
    folder = tmp_path / "gateway-0"
    folder.mkdir()
    mount = SecretMount(folder / "secrets")
    mount.publish("sk-first", "account-first\n")
    gateway = start_gateway(RULES.format(address=engine.address))

    def problems() -> list[str]:
        found: list[str] = plain_http.get(f"{gateway.admin_url}/rules").json()["problems"]
        return found

    traffic = Traffic(gateway.http_url)
    try:
        eventually(lambda: engine.keys)
        mount.publish("sk-second\n", "account-second")
        second = ("Bearer sk-second", "account-second")
        eventually(lambda: second in engine.keys and second in engine.probe_keys)
        mount.publish("", "account-third")
        (problem,) = eventually(problems)
        assert problem.startswith("rules.yaml:5:") and problem.endswith("'secrets/key' has no credential: it is empty")
        mount.publish("sk-fourth", "account-fourth")
        fourth = ("Bearer sk-fourth", "account-fourth")
        eventually(lambda: fourth in engine.keys and fourth in engine.probe_keys)
        eventually(lambda: not problems())
    finally:
        traffic.end()
    keys, accounts = zip(*engine.keys, strict=True)
    assert set(keys) == {"Bearer sk-first", "Bearer sk-second", "Bearer sk-fourth"}
    assert set(accounts) <= {"account-first", "account-second", "account-fourth"}
    assert set(traffic.statuses) == {200}
    assert len(engine.connections) == 1
    pages = ("rules", "rules/versions", "rules/versions/1", "rules/export", "engines", "audit", "metrics", "requests")
    shown = "".join(plain_http.get(f"{gateway.admin_url}/{page}").text for page in pages) + gateway.log()
    assert "hosted" in shown and "sk-" not in shown and "account-" not in shown
