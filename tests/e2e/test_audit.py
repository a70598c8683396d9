"""The audit in Redis covers all gateways that share it and survives their restarts."""

from pathlib import Path

from tests.support import plain_http
from tests.support.servers import GatewayProcess

RULES = "{version: 1, engines: {it: {endpoints: ['http://127.0.0.1:1']}}, routes: [{name: all, engine: it}]}"


def test_the_audit_is_of_all_gateways_and_outlives_them(tmp_path: Path) -> None:
    """Two gateways on one embedded Redis, and a third after both have stopped, all report the calls that either
    received."""

    def start(name: str) -> GatewayProcess:
        started = GatewayProcess.start(RULES, tmp_path / name, redis="embedded", data_dir=tmp_path / "state")
        return started.wait_ready()

    def told(gateway: GatewayProcess) -> list[tuple[str, int]]:
        entries = plain_http.get(f"{gateway.admin_url}/audit").json()["audit"]
        return [(entry["path"], entry["status"]) for entry in entries]

    one, other = start("one"), start("other")
    assert plain_http.put(f"{one.admin_url}/log-level", json={"level": "info"}).status_code == 200
    assert plain_http.post(f"{other.admin_url}/engines/none/endpoints/drain", json={"url": "u"}).status_code == 404
    expected = [("/engines/none/endpoints/drain", 404), ("/log-level", 200)]
    assert told(one) == told(other) == expected
    one.stop()
    other.stop()
    later = start("later")
    assert told(later) == expected
    assert plain_http.put(f"{later.admin_url}/log-level", json={"level": "loud"}).status_code == 422
    assert told(later) == [("/log-level", 422), *expected]
    later.stop()
