"""Experiments on two real gateways of two workers each, with and without a shared Redis: assignment, shared counts,
feedback."""

from __future__ import annotations

import json
import queue
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from tests.support import plain_http
from tests.support.canned_engine import CannedEngine
from tests.support.redis_server import RedisServer
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually
from tests.support.wire import send

INFER = "/v2/models/m/infer"
KEY = "swordfish"


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, CannedEngine]]:
    with CannedEngine("old") as old, CannedEngine("new") as new:
        yield {"old": old, "new": new}


def rules(engines: dict[str, CannedEngine], unit: str = "header:x-user", new: int = 50) -> str:
    return f"""
version: 1
engines:
  old: {{endpoints: ['{engines["old"].url}']}}
  new: {{endpoints: ['{engines["new"].url}']}}
routes: [{{name: all, experiment: x}}]
experiments:
  x:
    unit: {unit}
    arms: [{{name: old, engine: old, weight: {100 - new}}}, {{name: new, engine: new, weight: {new}}}]
forcing: {{keys: {sha256(KEY.encode()).hexdigest()}}}
"""


@pytest.fixture(params=["redis", "off"])
def gateways(
    request: pytest.FixtureRequest, engines: dict[str, CannedEngine], tmp_path: Path
) -> Iterator[list[GatewayProcess]]:
    """Two gateways that share a Redis, or one gateway without Redis."""
    if request.param == "off":
        gateway = GatewayProcess.start(rules(engines), tmp_path, workers=2)
        yield [gateway.wait_ready()]
        gateway.stop()
        return
    with RedisServer(tmp_path / "redis") as redis:
        started = [
            GatewayProcess.start(rules(engines), tmp_path / str(n), workers=2, redis=redis.url) for n in range(2)
        ]
        yield [gateway.wait_ready() for gateway in started]
        for gateway in started:
            gateway.stop()


def arm_of(gateway: GatewayProcess, user: str, request_id: str = "") -> str:
    """The arm that answers this user, over a new connection, so that any worker may accept it."""
    reply = send(gateway.http_port, "POST", INFER, b"{}", {"x-user": user, "x-request-id": request_id or "r"})
    assert reply.status == 200, reply.body
    assert json.loads(reply.body)["served_by"] == reply.headers["x-pointsman-arm"]
    return reply.headers["x-pointsman-arm"]


def counted(gateway: GatewayProcess, name: str) -> Counter[str]:
    """One metric's value for each arm."""
    found: Counter[str] = Counter()
    for line in plain_http.get(f"{gateway.admin_url}/metrics").text.splitlines():
        if line.startswith(f"pointsman_arm_{name}_total{{"):
            labels, _, number = line.rpartition(" ")
            found[labels.partition('arm="')[2].partition('"')[0]] += int(float(number))
    return found


def test_all_workers_assign_count_and_take_feedback_alike(gateways: list[GatewayProcess]) -> None:
    """Every worker of every gateway assigns a user to the same arm, counts are summed over all workers, and feedback is
    counted once, whichever worker receives it. Feedback for an unknown request is 404."""
    arms = {f"u{number}": arm_of(gateways[0], f"u{number}", f"r{number}") for number in range(24)}
    assert set(arms.values()) == {"old", "new"}
    for gateway in gateways:
        for user, name in arms.items():
            assert arm_of(gateway, user) == name
    per_arm = Counter(arms.values())
    assert counted(gateways[0], "requests") == Counter({name: 2 * number for name, number in per_arm.items()})
    for number in range(24):
        gateway = gateways[number % len(gateways)]
        body = json.dumps({"request_id": f"r{number}", "value": 1}).encode()
        reply = send(gateway.http_port, "POST", "/feedback", body)
        assert (reply.status, reply.body) == (200, b'{"counted":true}')
    total = sum((counted(gateway, "feedback_values") for gateway in gateways), Counter())
    assert total == per_arm
    reply = send(gateways[-1].http_port, "POST", "/feedback", b'{"request_id": "nobody", "value": 1}')
    assert reply.status == 404


def test_parameters_choose_an_arm_by_real_clients(engines: dict[str, CannedEngine], tmp_path: Path) -> None:
    """A parameter forces an arm over gRPC, in unary calls and in streams, where the rules allow it."""
    texts = rules(engines).replace("forcing: {", "forcing: {parameter: arm, key_parameter: key, ")
    gateway = GatewayProcess.start(texts, tmp_path).wait_ready()
    tensor = triton_grpc.InferInput("x", [1], "FP32")
    tensor.set_data_from_numpy(np.zeros(1, dtype=np.float32))
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{gateway.port('grpc')}") as client:
        for _ in range(4):
            client.infer("m", [tensor], parameters={"arm": "x=new", "key": KEY})
        with pytest.raises(InferenceServerException, match="is not one that may choose arms"):
            client.infer("m", [tensor], parameters={"arm": "x=new", "key": "wrong"})
        text: queue.Queue[Any] = queue.Queue()
        client.start_stream(lambda result, error: text.put(error))
        for key in (KEY, "wrong", KEY):
            client.async_stream_infer("m", [tensor], parameters={"arm": "x=new", "key": key})
        errors = [text.get(timeout=120) for _ in range(3)]
        client.stop_stream()
    assert sorted(error is None for error in errors) == [False, True, True]
    assert counted(gateway, "forced") == Counter({"new": 6})
    gateway.stop()


def test_forcing_by_real_clients(gateways: list[GatewayProcess]) -> None:
    """tritonclient with the key gets the arm that its header names; without the key it gets PERMISSION_DENIED."""
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{gateways[0].port('grpc')}") as client:
        tensor = triton_grpc.InferInput("x", [1], "FP32")
        tensor.set_data_from_numpy(np.zeros(1, dtype=np.float32))
        forced = {"x-pointsman-force": "x=new", "x-pointsman-force-key": "wrong"}
        with pytest.raises(InferenceServerException, match="is not one that may choose arms") as refused:
            client.infer("m", [tensor], headers=forced)
        assert refused.value.status() == "StatusCode.PERMISSION_DENIED"
    headers = {"x-pointsman-force": "x=new", "x-pointsman-force-key": KEY}
    for number in range(6):
        reply = send(gateways[0].http_port, "POST", INFER, b"{}", {**headers, "x-user": f"u{number}"})
        assert reply.headers["x-pointsman-arm"] == "new"
    assert counted(gateways[0], "forced") == Counter({"new": 6})
    assert KEY not in gateways[0].log()


def test_a_ramp_by_the_file_flips_nobody_back(engines: dict[str, CannedEngine], tmp_path: Path) -> None:
    """While a ramp grows from 5 % to 20 % and 60 %, a user of the new arm stays in it on every worker."""
    users = [f"u{number}" for number in range(80)]
    gateway = GatewayProcess.start(rules(engines, new=5), tmp_path, workers=2).wait_ready()
    exposed: set[str] = set()
    for number, share in enumerate((5, 20, 60), 1):
        gateway.rules_path.write_text(rules(engines, new=share))
        eventually(lambda n=number: rules_number(gateway) >= n)
        now = {user for user in users if arm_of(gateway, user) == "new"}
        assert exposed <= now
        exposed = now
    assert 30 < len(exposed) < 66
    gateway.stop()


def rules_number(gateway: GatewayProcess) -> int:
    """The number of the rules that both workers use."""
    return int(plain_http.get(f"{gateway.admin_url}/rules").json()["number"])


def test_a_ramp_that_begins_again_begins_at_its_first_step(engines: dict[str, CannedEngine], tmp_path: Path) -> None:
    """When a ramp restarts at its first step, sessions that the earlier ramp had in its arm count no longer toward its
    share, on any worker."""
    ramped = rules(engines, unit="session", new=0).replace(
        "unit: session", "unit: session\n    ramp: {steps: [1%, 60%], min_requests: 1000000}"
    )
    with RedisServer(tmp_path / "redis") as redis:
        gateway = GatewayProcess.start(ramped, tmp_path, workers=2, redis=redis.url).wait_ready()
        at = f"{gateway.admin_url}/experiments/x"

        def share_of_new() -> float:
            return float(next(arm["share"] for arm in plain_http.get(at).json()["arms"] if arm["name"] == "new"))

        def at_new() -> int:
            requests = [send(gateway.http_port, "POST", INFER, b"{}", {"x-session-id": f"s{n}"}) for n in range(60)]
            return Counter(reply.headers["x-pointsman-arm"] for reply in requests)["new"]

        assert plain_http.post(f"{at}/start", json={"step": 2}).status_code == 200
        eventually(lambda: share_of_new() == 0.6)
        eventually(lambda: at_new() > 20)
        assert plain_http.post(f"{at}/rollback", json={}).status_code == 200
        assert plain_http.post(f"{at}/start", json={}).status_code == 200
        eventually(lambda: share_of_new() == 0.01)
        eventually(lambda: at_new() < 6)
        assert at_new() < 6
        gateway.stop()
