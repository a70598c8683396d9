"""Hooks on real gateways: a changed module takes effect, a broken one changes nothing, only rule files name code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import plain_http
from tests.support.canned_engine import CannedEngine
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually
from tests.support.wire import Reply, send

INFER = "/v2/models/m/infer"
MARK = """
from gateway.hooks import ReplyChange

class Mark:
    reads_reply = True

    def __init__(self, text):
        self.text = text

    def on_reply(self, request, reply):
        return ReplyChange(headers={"x-mark": VERSION + self.text})
"""


@pytest.fixture
def engine() -> Iterator[CannedEngine]:
    with CannedEngine("it") as engine:
        yield engine


def rules(engine: CannedEngine, hooks: str = "[{use: mark:Mark, options: {text: a}, timeout: 60s}]") -> str:
    return f"""
version: 1
engines: {{it: {{endpoints: ['{engine.url}']}}}}
routes: [{{name: all, engine: it, hooks: {hooks}}}]
"""


def infer(gateway: GatewayProcess) -> Reply:
    return send(gateway.http_port, "POST", INFER, b"{}", {"x-request-id": "r"})


def test_modules_are_reloaded_with_the_rules(engine: CannedEngine, tmp_path: Path) -> None:
    """In all workers, without a restart; one that fails to import is reported with file and line, and the earlier one
    stays in force. Rules by the admin API may name the same hook with the same options, and no other."""
    module = tmp_path / "mark.py"
    module.write_text(f"VERSION = '1'\n{MARK}")
    gateway = GatewayProcess.start(rules(engine), tmp_path, workers=2).wait_ready()
    try:
        assert {infer(gateway).headers["x-mark"] for _ in range(10)} == {"1a"}
        module.write_text(f"VERSION = '2'\n{MARK}")
        eventually(lambda: {infer(gateway).headers["x-mark"] for _ in range(10)} == {"2a"})
        module.write_text(f"VERSION = '3'\nimport nothing_of_this_name\n{MARK}")
        admin = gateway.admin_url
        eventually(lambda: "mark.py:2:1" in str(plain_http.get(f"{admin}/rules").json()["problems"]))
        assert {infer(gateway).headers["x-mark"] for _ in range(10)} == {"2a"}
        module.write_text(f"VERSION = '4'\n{MARK}")
        eventually(lambda: {infer(gateway).headers["x-mark"] for _ in range(10)} == {"4a"})
        (tmp_path / "other.py").write_text("raise SystemExit\n")
        for hooks in ("os:system", "other:Mark", "[{use: mark:Mark, options: {text: b}}]"):
            files = {"files": {"rules.yaml": rules(engine, hooks)}}
            for call in ("activate", "validate"):
                reply = plain_http.post(f"{admin}/rules/{call}", json=files)
                assert "may use hooks only as those name them" in reply.text, reply.text
        same = rules(engine).replace("name: all", "name: every").replace("timeout: 60s", "timeout: 50s")
        assert plain_http.post(f"{admin}/rules/activate", json={"files": {"rules.yaml": same}}).status_code == 200
        eventually(lambda: infer(gateway).headers["x-pointsman-route"] == "every")
        assert infer(gateway).headers["x-mark"] == "4a"
    finally:
        gateway.stop()
