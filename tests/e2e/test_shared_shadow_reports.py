"""Reports of mirrored routes over two gateways, and over a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import plain_http
from tests.support.canned_engine import CannedEngine
from tests.support.redis_server import RedisServer
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually
from tests.support.wire import send


def rules(old: CannedEngine, new: CannedEngine) -> str:
    return f"""
version: 1
engines:
  old: {{endpoints: ['{old.url}']}}
  new: {{endpoints: ['{new.url}']}}
routes:
  - {{name: r, engine: old, shadow: {{engine: new, sample: 100%, max_in_flight: 1000}}}}
"""


def ask(gateway: GatewayProcess, times: int) -> None:
    for _ in range(times):
        assert send(gateway.http_port, "POST", "/v2/models/m/infer", b"{}").status == 200


def report(gateway: GatewayProcess) -> dict[str, Any]:
    answer = plain_http.get(f"{gateway.admin_url}/shadows/r")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def mirrored(gateway: GatewayProcess) -> tuple[int, int]:
    found = report(gateway)
    return found["mirrored"], found["captured"]


@pytest.mark.parametrize("where", ["redis", "folder"])
def test_reports_are_summed_and_kept(where: str, tmp_path: Path) -> None:
    """Each gateway that shares a Redis shows the sum of all; a restart loses nothing, with a Redis or without; a reset
    begins anew everywhere."""
    with CannedEngine("old") as old, CannedEngine("new") as new, RedisServer(tmp_path / "redis") as redis:
        text, url = rules(old, new), redis.url if where == "redis" else "off"
        one = GatewayProcess.start(text, tmp_path / "one", redis=url)
        other = GatewayProcess.start(text, tmp_path / "other", redis=url) if where == "redis" else one
        one.wait_ready()
        other.wait_ready()
        ask(one, 3)
        eventually(lambda: mirrored(one) == (3, 3))
        ask(other, 4)
        for gateway in (one, other):
            eventually(lambda gateway=gateway: mirrored(gateway) == (7, 7))
        one.stop()
        one = GatewayProcess.start(text, tmp_path / "one", redis=url).wait_ready()
        other = other if where == "redis" else one
        assert mirrored(one) == (7, 7)
        ask(one, 2)
        for gateway in (one, other):
            eventually(lambda gateway=gateway: mirrored(gateway) == (9, 9))
        eventually(lambda: report(other)["compared"] + report(other)["both_failed"] == 9)
        assert plain_http.delete(f"{other.admin_url}/shadows/r").status_code == 200
        eventually(lambda: mirrored(one) == (0, 0))
        ask(one, 1)
        for gateway in (one, other):
            eventually(lambda gateway=gateway: mirrored(gateway) == (1, 1))
        for gateway in {one, other}:
            gateway.stop()
