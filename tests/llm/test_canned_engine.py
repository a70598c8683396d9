"""The canned engine fails on request, and reports the requests that it got."""

import http.client
import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.canned_llm import CannedLLM
from tests.support.llm import ENSEMBLE, MODEL, VLLM
from tests.support.waiting import eventually
from tests.support.wire import Reply, Wire, send

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
ENDLESS = {"model": MODEL, "messages": [{"role": "user", "content": "endless"}]}


def ask(engine: CannedLLM, body: Mapping[str, Any], fault: str = "", path: str = "/v1/chat/completions") -> Reply:
    return send(engine.http_port, "POST", path, json.dumps(body).encode(), {"x-test-fault": fault})


def events(body: bytes) -> list[Any]:
    """The data of each event, parsed if it is JSON."""
    found = [line.removeprefix(b"data: ") for line in body.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(data) if data.endswith(b"}") else data.decode() for data in found]


def texts(body: bytes) -> list[str]:
    return [
        event["choices"][0]["delta"]["content"]
        for event in events(body)
        if isinstance(event, dict) and event.get("choices") and event["choices"][0]["delta"].get("content")
    ]


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        ("close", http.client.RemoteDisconnected),
        ("reset", ConnectionResetError),
        ("die=0", ConnectionResetError),
        ("die=2", ConnectionResetError),
        ("cut=2", http.client.IncompleteRead),
    ],
)
def test_broken_connection(canned: CannedLLM, fault: str, failure: type[Exception]) -> None:
    """The connection ends before the reply does; the next connection is served."""
    with pytest.raises(failure):
        ask(canned, {**CHAT, "stream": True}, fault)
    assert ask(canned, CHAT).status == 200
    assert [sight["state"] for sight in canned.seen()] == ["broken", "done"]


def test_tokens_come_before_a_reset(canned: CannedLLM) -> None:
    """Tokens produced before the engine dies reach its client."""
    body = json.dumps({**CHAT, "stream": True}).encode()
    with Wire(canned.http_port) as wire:
        wire.send(b"POST /v1/chat/completions HTTP/1.1\r\nx-test-fault: die=2\r\n")
        wire.send(b"host: engine\r\ncontent-length: %d\r\n\r\n" % len(body), body)
        lines = []
        with pytest.raises(ConnectionResetError):
            while True:
                lines.append(wire.read_line())
    assert texts(b"".join(lines)) == ["one", " two"]


@pytest.mark.parametrize(
    ("fault", "seen", "ends"),
    [
        ("truncate=2", ["one", " two"], None),
        ("error=2", ["one", " two"], "[DONE]"),
        ("garbage=2", ["one", " two", " three", " four"], "[DONE]"),
        ("no-done", ["one", " two", " three", " four"], None),
        ("comments,split=7", ["one", " two", " three", " four"], "[DONE]"),
        ("unframed", ["one", " two", " three", " four"], "[DONE]"),
    ],
)
def test_broken_stream(canned: CannedLLM, fault: str, seen: list[str], ends: str | None) -> None:
    """The HTTP reply is valid, but its stream is broken."""
    reply = ask(canned, {**CHAT, "stream": True}, fault)
    assert reply.status == 200
    assert texts(reply.body) == seen
    assert (events(reply.body)[-1] == "[DONE]") == (ends == "[DONE]")
    assert (b'"error":' in reply.body) == fault.startswith("error")


@pytest.mark.parametrize(("fault", "status"), [("status=503", 503), ("status=400", 400), ("error=1", 500)])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_error_status(canned: CannedLLM, fault: str, status: int, path: str) -> None:
    """An error has the form of the request's dialect."""
    reply = ask(canned, {**CHAT, "input": "hi"}, fault, path)
    assert reply.status == status
    report = json.loads(reply.body)
    assert isinstance(report["error"]["message"], str)
    assert ("type" in report) == (path == "/v1/messages")


def test_faults_without_a_header(canned: CannedLLM) -> None:
    """Faults apply to a given number of requests, or until they are removed."""
    canned.break_down("status=503", times=1)
    assert [ask(canned, CHAT).status for _ in range(2)] == [503, 200]
    canned.break_down("status=429")
    assert [ask(canned, CHAT).status for _ in range(2)] == [429, 429]
    canned.break_down("")
    assert ask(canned, CHAT).status == 200


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("fault", ["slow=0.01", "slow=0.01,stall=3", "hang"])
def test_client_that_leaves(canned: CannedLLM, fault: str, streams: bool) -> None:
    """The engine notices a client that leaves, and reports the tokens produced for it."""
    body = json.dumps({**ENDLESS, "stream": streams}).encode()
    with Wire(canned.http_port) as wire:
        wire.send(b"POST /v1/chat/completions HTTP/1.1\r\nx-test-fault: " + fault.encode() + b"\r\n")
        wire.send(b"host: engine\r\ncontent-length: %d\r\n\r\n" % len(body), body)
        wanted = 0 if fault == "hang" else 3
        eventually(lambda: (seen := canned.seen()) and seen[-1]["tokens"] >= wanted)
        assert canned.seen()[-1]["state"] == "running"
    eventually(lambda: canned.seen()[-1]["state"] == "cancelled")
    assert canned.seen()[-1]["tokens"] < 4000


def test_seen(canned: CannedLLM) -> None:
    """The engine reports each request's body and headers."""
    ask(canned, CHAT)
    (sight,) = canned.seen()
    assert sight["body"] == CHAT
    assert sight["headers"]["x-test-fault"] == ""
    assert (sight["method"], sight["path"], sight["tokens"]) == ("POST", "/v1/chat/completions", 4)
    canned.forget()
    assert canned.seen() == []


def test_metrics(canned: CannedLLM) -> None:
    """The load metrics have vLLM's names."""
    body = json.dumps(ENDLESS).encode()
    with Wire(canned.http_port) as wire:
        wire.send(b"POST /v1/chat/completions HTTP/1.1\r\nx-test-fault: hang\r\ncontent-length: %d\r\n\r\n" % len(body))
        wire.send(body)
        line = b'vllm:num_requests_running{model_name="canned"} 1.0\n'
        eventually(lambda: line in send(canned.http_port, "GET", "/metrics").body)


def test_strict_engine(start_canned: Any) -> None:
    """The engine serves only its dialects and models, and only with its key. Like vLLM it continues an assistant's
    message only if the request's flags say so."""
    extra = ["--dialects", "chat", "--api-key", "secret", "--models", "a,b", "--prefill", "flagged"]
    engine = start_canned(extra_args=extra)
    beginning = [*CHAT["messages"], {"role": "assistant", "content": "one two"}]  # type: ignore[misc]

    def asked(path: str = "chat/completions", key: str = "secret", **more: Any) -> tuple[int, str]:
        body = json.dumps({**CHAT, "model": "b", "max_tokens": 1, **more}).encode()
        reply = send(engine.http_port, "POST", f"/v1/{path}", body, {"authorization": f"Bearer {key}"})
        report = json.loads(reply.body)
        return reply.status, report["choices"][0]["message"]["content"] if "choices" in report else ""

    assert asked() == (200, "one")
    assert asked(key="wrong")[0] == 401
    assert asked(path="completions")[0] == 404
    assert asked(model="c")[0] == 404
    assert asked(messages=beginning) == (200, "one")
    assert asked(messages=beginning, continue_final_message=True)[0] == 400
    assert asked(messages=beginning, continue_final_message=True, add_generation_prompt=False) == (200, " three")


@pytest.mark.parametrize(
    ("model", "body", "expected"),
    [
        (VLLM, {"text_input": "one two"}, "one two three four"),
        (VLLM, {"text_input": "one two", "exclude_input_in_output": True}, " three four"),
        (ENSEMBLE, {"text_input": "one two", "max_tokens": 2}, "one two three four"),
        (ENSEMBLE, {"text_input": "one two", "max_tokens": 5, "stop_words": ["four"]}, "one two three "),
    ],
)
def test_generate(canned_v2: CannedLLM, model: str, body: dict[str, Any], expected: str) -> None:
    """The reply has the prompt before the text unless the request excludes it, which an ensemble does not support."""
    report = {**body, "parameters": {"max_tokens": 2}} if model == VLLM else body
    reply = ask(canned_v2, report, path=f"/v2/models/{model}/generate")
    assert json.loads(reply.body)["text_output"] == expected


def test_generate_stream(canned_v2: CannedLLM) -> None:
    """A stream brings only the tokens; vLLM's backend adds the finish reason on request."""
    options = {"sampling_parameters": '{"max_tokens": 2}', "return_finish_reason": True, "stream": True}
    reply = ask(canned_v2, {"text_input": "one", **options}, path=f"/v2/models/{VLLM}/generate_stream")
    assert [(event["text_output"], event["finish_reason"]) for event in events(reply.body)] == [
        (" two", "None"),
        (" three", "length"),
    ]
    body = {"text_input": "one", "max_tokens": 2, "stream": True}
    reply = ask(canned_v2, body, path=f"/v2/models/{ENSEMBLE}/generate_stream")
    assert [event["text_output"] for event in events(reply.body)] == [" two", " three"]


def test_infer(canned_v2: CannedLLM) -> None:
    """An ensemble accepts infer requests too; vLLM's decoupled model refuses them."""
    inputs = [
        {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["one"]},
        {"name": "max_tokens", "datatype": "INT32", "shape": [1, 1], "data": [[2]]},
    ]
    reply = ask(canned_v2, {"inputs": inputs}, path=f"/v2/models/{ENSEMBLE}/infer")
    assert json.loads(reply.body)["outputs"][0]["data"] == ["one two three"]
    assert ask(canned_v2, {"inputs": inputs}, path=f"/v2/models/{VLLM}/infer").status == 400


def test_v2_metadata(canned_v2: CannedLLM) -> None:
    """Each model's metadata lists its tensors, by which a client can distinguish the two."""
    for model, datatype in ((VLLM, "BYTES"), (ENSEMBLE, None)):
        reply = json.loads(send(canned_v2.http_port, "GET", f"/v2/models/{model}").body)
        inputs = {tensor["name"]: tensor["datatype"] for tensor in reply["inputs"]}
        assert inputs["text_input"] == "BYTES"
        assert inputs.get("sampling_parameters") == datatype
        assert json.loads(send(canned_v2.http_port, "GET", f"/v2/models/{model}/config").body)["name"] == model
        assert send(canned_v2.http_port, "GET", f"/v2/models/{model}/ready").status == 200
