"""Traffic recorded at real gateways and replayed against other rules."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton_grpc
from typer.testing import CliRunner

from gateway.cli.app import make_app
from gateway.demo.triton import TritonProcess
from tests.support.canned_engine import CannedEngine
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

app = make_app()

StartGateway = Callable[..., GatewayProcess]

CLIENT = httpx.Client(timeout=120, trust_env=False)


@pytest.fixture
def engine() -> Iterator[CannedEngine]:
    with CannedEngine("one") as running:
        yield running


def rules(engine: CannedEngine, premium: str = "gold") -> str:
    return (
        "version: 1\n"
        "engines:\n"
        f"  big: {{endpoints: ['{engine.url}'], health: {{interval: 0}}}}\n"
        f"  small: {{endpoints: ['{engine.url}'], health: {{interval: 0}}}}\n"
        "routes:\n"
        f"  - {{name: premium, match: {{header: {{x-tier: {premium}, x-api-key: '*'}}}}, engine: big}}\n"
        "  - {name: urgent, match: {parameter: {priority: 1}}, engine: big}\n"
        "  - {name: split, match: {model: s}, experiment: move}\n"
        "  - {name: rest, match: {model: m}, engine: small}\n"
        "experiments:\n"
        "  move: {arms: [{name: old, engine: small, weight: 1}, {name: new, engine: big, weight: 1}]}\n"
    )


def call(gateway: GatewayProcess, method: str, path: str, status: int = 200, **body: Any) -> Any:
    answer = CLIENT.request(method, gateway.admin_url + path, json=body or None)
    assert answer.status_code == status, answer.text
    return answer.json()


def infer(gateway: GatewayProcess, model: str = "m", parameters: Any = None, **headers: str) -> int:
    """One inference, with a text and a number among its parameters."""
    tensor = {"name": "PROMPT", "datatype": "BYTES", "shape": [1], "data": ["a secret text"]}
    body = {"inputs": [tensor], "parameters": {"note": "a secret note", "priority": 2, **(parameters or {})}}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return CLIENT.post(f"{gateway.http_url}/v2/models/{model}/infer", json=body, headers=named).status_code


def record(gateway: GatewayProcess, facts: int, send: Callable[[], None]) -> list[dict[str, Any]]:
    """The lines of a recording of all requests that are sent while it runs."""
    call(gateway, "POST", "/recordings", name="r", sample=1.0, seconds=60, max_facts=facts)
    send()
    eventually(lambda: call(gateway, "GET", "/recordings/r")["ended"] == "it is full")
    text = CLIENT.get(gateway.admin_url + "/recordings/r/file").text
    return [json.loads(line) for line in text.splitlines()]


def test_facts_are_recorded_and_no_bodies(start_gateway: StartGateway, engine: CannedEngine) -> None:
    """A recording holds the facts that rules can read and their decisions: only the headers that rules use, numeric and
    boolean parameters, and the shapes of inputs. It holds no user's text and no key."""
    gateway = start_gateway(rules(engine), workers=2)

    def send() -> None:
        assert infer(gateway, x_tier="gold", x_api_key="key-1234", x_other="unasked") == 200
        assert infer(gateway, parameters={"priority": 1}) == 200
        assert infer(gateway, "s", x_session_id="alice") == 200
        assert infer(gateway, "unknown") == 404
        assert CLIENT.get(gateway.http_url + "/v2/health/live").status_code == 200
        assert CLIENT.get(gateway.http_url + "/v2/models/m").status_code == 200

    first, *decisions, last = record(gateway, 5, send)
    assert (first["recording"], first["share"], first["by"]) == (1, 1.0, "local")
    assert first["headers"] == ["x-api-key", "x-tier"]
    assert (last["end"], last["facts"]) == ("it is full", 5)
    by_route = {each["route"]: each for each in decisions if each["operation"] == "infer"}
    assert by_route.keys() == {"premium", "urgent", "split", None}
    assert by_route["premium"]["facts"]["header"] == {"x-tier": "gold", "x-api-key": "***"}
    urgent = by_route["urgent"]
    assert (urgent["engine"], urgent["endpoint"], urgent["status"]) == ("big", engine.url, 200)
    assert urgent["facts"]["parameter"] == {"priority": 1}
    assert urgent["facts"]["left_out"] == ["note"]
    assert urgent["facts"]["input"] == [{"name": "PROMPT", "datatype": "BYTES", "shape": [1], "bytes": 13}]
    assert by_route["split"]["arm"] in ("old", "new")
    assert (by_route["split"]["session"], by_route["split"]["experiment"]) == ("alice", "move")
    assert (by_route[None]["status"], by_route[None]["reason"]) == (404, "no_route")
    assert all(each["seconds"] > 0 for each in decisions)
    (requested,) = [each for each in decisions if each["operation"] != "infer"]
    assert (requested["operation"], requested["route"]) == ("metadata", "rest")
    text = json.dumps([first, *decisions])
    for secret in ("secret text", "secret note", "key-1234", "unasked"):
        assert secret not in text


def test_a_candidate_is_tried_on_what_was_recorded(
    start_gateway: StartGateway, engine: CannedEngine, tmp_path: Path
) -> None:
    """Replay by the admin API and by the command line shows which decisions change, with counts and examples; with
    --fail-on-change the exit code does too."""
    gateway = start_gateway(rules(engine))

    def send() -> None:
        for _ in range(3):
            infer(gateway, x_tier="gold", x_api_key="k")
        for session in ("alice", "bob", "carol", "dave"):
            infer(gateway, "s", x_session_id=session)
        infer(gateway, parameters={"priority": 1})
        infer(gateway)

    record(gateway, 9, send)
    same = call(gateway, "POST", "/rules/replay", recording="r")
    assert (same["facts"], same["changed"], same["unknown"], same["unrecorded"]) == (9, 0, 0, [])

    candidate = rules(engine, premium="platinum").replace("{name: old, engine: small, weight: 1}", "")
    candidate = candidate.replace("[, ", "[").replace("model: m}", "model: other}")
    reply = call(gateway, "POST", "/rules/replay", recording="r", files={"rules.yaml": candidate})
    (moved, lost) = sorted(reply["changes"]["route"], key=lambda change: change["from"])[:2]
    assert (moved["from"], moved["to"], moved["count"]) == ("premium", "none", 3)
    assert (lost["from"], lost["to"], lost["count"]) == ("rest", "none", 1)
    assert moved["examples"][0]["header"] == {"x-tier": "gold", "x-api-key": "***"}
    assert reply["without_route"] == 4
    arms = sum(change["count"] for change in reply["changes"]["arm"])
    assert reply["changed"] == 4 + arms
    assert reply["decide_p50"] > 0

    recording, current, other = (tmp_path / name for name in ("r.jsonl", "current.yaml", "candidate.yaml"))
    recording.write_bytes(CLIENT.get(gateway.admin_url + "/recordings/r/file").content)
    current.write_text(rules(engine))
    other.write_text(candidate)
    run = CliRunner().invoke
    good = run(app, ["replay", str(recording), "--rules", str(current), "--fail-on-change"])
    assert (good.exit_code, "9 facts: 9 unchanged" in good.output) == (0, True), good.output
    bad = run(app, ["replay", str(recording), "--rules", str(other), "--against", str(current), "--fail-on-change"])
    assert bad.exit_code == 1
    assert "premium" in bad.output and "without a route" in bad.output
    assert run(app, ["replay", str(recording), "--rules", str(other)]).exit_code == 0


def test_recordings_end_and_are_deleted(start_gateway: StartGateway, engine: CannedEngine) -> None:
    """The first DELETE stops a recording and the second deletes it; a name is used once; a missing recording is 404."""
    gateway = start_gateway(rules(engine))
    call(gateway, "POST", "/recordings", name="a", sample=1.0)
    assert "already" in call(gateway, "POST", "/recordings", 409, name="a")["detail"]
    infer(gateway)
    eventually(lambda: call(gateway, "GET", "/recordings/a")["facts"] == 1)
    assert call(gateway, "DELETE", "/recordings/a")["deleted"] is False
    (reply,) = call(gateway, "GET", "/recordings")["recordings"]
    assert (reply["name"], reply["facts"], reply["ended"]) == ("a", 1, "stopped")
    infer(gateway)
    assert call(gateway, "DELETE", "/recordings/a")["deleted"] is True
    assert call(gateway, "GET", "/recordings")["recordings"] == []
    assert "there is no recording 'a'" in call(gateway, "GET", "/recordings/a", 404)["detail"]
    call(gateway, "POST", "/recordings", 422, name="../a")
    call(gateway, "POST", "/rules/replay", 404, recording="a")
    call(gateway, "POST", "/recordings", name="short", seconds=0.2)
    eventually(lambda: call(gateway, "GET", "/recordings/short")["ended"] == "its time is over")


def test_the_live_tail_tells_decisions(start_gateway: StartGateway, engine: CannedEngine) -> None:
    """A subscriber of decisions gets an event for each request within a second, also from a restarted worker."""
    gateway = start_gateway(rules(engine))
    with CLIENT.stream("GET", gateway.admin_url + "/events?decisions=true") as stream:
        lines = stream.iter_lines()
        next(line for line in lines if line.startswith("event: fleet"))
        infer(gateway, "s", x_session_id="alice")
        reply = _decision(lines)
        assert (reply["route"], reply["session"], reply["status"]) == ("split", "alice", 200)
        assert reply["facts"]["body"] is False
        (worker,) = [
            child for child in psutil.Process(gateway.process.pid).children() if "gateway.worker" in child.cmdline()
        ]
        worker.kill()
        eventually(lambda: _is_answered(gateway))
        assert _decision(lines)["session"] == "bob"


def _is_answered(gateway: GatewayProcess) -> bool:
    try:
        return infer(gateway, "s", x_session_id="bob") == 200
    except httpx.HTTPError:
        return False


def _decision(lines: Iterator[str]) -> Any:
    for line in lines:
        if line == "event: decision":
            return json.loads(next(lines).removeprefix("data: "))
    raise AssertionError("no decision came")


@pytest.mark.triton
def test_grpc_calls_and_chats_are_recorded_alike(
    start_gateway: StartGateway, triton: TritonProcess, engine: CannedEngine
) -> None:
    """A unary call, a stream and a converted REST call are recorded with their facts; a chat with its numbers and
    whether it has an image, never with its messages."""
    gateway = start_gateway(
        "version: 1\n"
        "engines:\n"
        f"  triton: {{endpoints: [{{url: '{triton.http_url}', grpc: '{triton.grpc_url}'}}]}}\n"
        f"  grpc-only: {{endpoints: ['grpc://{triton.grpc_url}']}}\n"
        f"  llm: {{protocol: openai, endpoints: ['{engine.url}'], health: {{interval: 0}}}}\n"
        "routes:\n"
        "  - {name: converted, match: {model: identity_fp32, header: {x-way: converted}}, engine: grpc-only}\n"
        "  - {name: tensors, match: {model: identity_fp32}, engine: triton}\n"
        "  - {name: chat, match: {model: chat}, engine: llm}\n"
    )

    def send() -> None:
        tensor = triton_grpc.InferInput("INPUT0", [1, 2], "FP32")
        tensor.set_data_from_numpy(np.array([[1, 2]], np.float32))
        with triton_grpc.InferenceServerClient(f"127.0.0.1:{gateway.port('grpc')}") as client:
            client.infer("identity_fp32", [tensor], request_id="unary", priority=3, parameters={"lora": "mine"})
        body = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
        for way in ("straight", "converted"):
            path = gateway.http_url + "/v2/models/identity_fp32/infer"
            answer = CLIENT.post(path, json=body, headers={"x-way": way, "x-request-id": way})
            assert answer.status_code == 200, answer.text
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        text = {"role": "user", "content": [{"type": "text", "text": "a secret text"}, image]}
        chat = {"model": "chat", "messages": [text], "temperature": 0.5, "user": "a secret name"}
        CLIENT.post(gateway.http_url + "/v1/chat/completions", json=chat, headers={"x-request-id": "chat"})

    _, *decisions, _ = record(gateway, 4, send)
    by_route = {(each["protocol"], each["route"]): each for each in decisions}
    assert by_route.keys() == {
        ("grpc", "tensors"),
        ("rest", "tensors"),
        ("rest", "converted"),
        ("openai", "chat"),
    }
    call = by_route["grpc", "tensors"]
    assert call["facts"]["input"] == [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "bytes": 8}]
    assert (call["facts"]["parameter"]["priority"], call["facts"]["left_out"]) == (3, ["lora"])
    assert call["status"] == 200
    assert by_route["rest", "tensors"]["facts"]["input"] == call["facts"]["input"]
    assert by_route["rest", "converted"]["facts"]["header"] == {"x-way": "converted"}
    talk = by_route["openai", "chat"]["facts"]
    assert (talk["has_image"], talk["parameter"]["temperature"]) == (True, 0.5)
    assert "a secret" not in json.dumps(decisions)
