"""The audit in Redis covers all gateways that share it and survives their restarts; it has the operations of the
inference ports that change engines."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from tritonclient.utils import InferenceServerException

from tests.support import plain_http
from tests.support.canned_engine import CannedEngine
from tests.support.command_line import pointsman
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

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


def test_operations_of_the_inference_ports_are_in_the_audit(start_gateway: Callable[..., GatewayProcess]) -> None:
    """An allowed operation that changes engines has an entry: its client, its body without secrets, its status; reading
    and what is refused have none."""
    with CannedEngine("it") as engine:
        gateway = start_gateway(
            RULES.replace("http://127.0.0.1:1", engine.url), extra_args=["--allow-control", "load,logging"]
        )

        def audited() -> list[dict[str, Any]]:
            entries: list[dict[str, Any]] = plain_http.get(f"{gateway.admin_url}/audit").json()["audit"]
            return entries[::-1]

        with http_client.InferenceServerClient(f"127.0.0.1:{gateway.http_port}") as rest:
            rest.load_model("a model", config='{"name":"x"}', files={"file:1/model.py": b"print()" * 1000})
            rest.get_log_settings()
            assert is_refused(rest.unload_model, "a model")
        with grpc_client.InferenceServerClient(gateway.grpc_url) as rpc:
            rpc.load_model("other")
            rpc.get_log_settings()
            assert is_refused(rpc.unload_model, "other")
        plain_http.post(f"{gateway.http_url}/v2/logging", json={"log_file": "f", "api_key": "hidden"})
        eventually(lambda: len(audited()) == 3)
        by_rest, by_grpc, logging = audited()
        who = ("anonymous", "client", "127.0.0.1", 200)
        assert [(each["name"], each["role"], each["peer"], each["status"]) for each in audited()] == [who] * 3
        assert (by_rest["protocol"], by_rest["path"]) == ("rest", "/v2/repository/models/a%20model/load")
        parameters = by_rest["body"]["parameters"]
        assert parameters["config"] == '{"name":"x"}' and parameters["file:1/model.py"].startswith("<9336 characters")
        assert (by_grpc["protocol"], by_grpc["path"]) == ("grpc", "/v2/repository/models/other/load")
        assert logging["body"] == {"log_file": "f", "api_key": "***"}
        shown = pointsman("audit", "--admin", gateway.admin_url, env={"COLUMNS": "250"})
        assert shown.stdout.count("client") == 3 and "127.0.0.1" in shown.stdout


def is_refused(call: Callable[[str], Any], model: str) -> bool:
    try:
        call(model)
    except InferenceServerException as error:
        return "--allow-control" in error.message()
    return False
