"""Every error under Anthropic's paths is its error object, from whatever part of the gateway."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from tests.support import plain_http
from tests.support.canned_llm import MODEL, CannedLLM
from tests.support.llm import rules_of
from tests.support.ports import free_port
from tests.support.servers import GatewayProcess
from tests.support.wire import Wire

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
TURNS: list[Any] = [{"role": "user", "content": "hi"}]
MAX_BODY_BYTES = 10_000


@pytest.fixture(scope="module")
def gateway(canned_process: CannedLLM, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Routes for each failure; `chat` is translated."""
    canned_process.forget()
    url = canned_process.http_url
    engines = {
        "chat": {"protocol": "openai", "endpoints": [url], "dialects": ["chat"]},
        "slow": {"protocol": "openai", "endpoints": [url], "dialects": ["messages"], "timeout": "50ms"},
        "dead": {"protocol": "openai", "endpoints": [f"http://127.0.0.1:{free_port()}"], "dialects": ["chat"]},
    }
    names = {"chat": "chat", "limited": "chat", "slow": "slow", "dead": "dead"}
    routes = [
        {"name": name, "match": {"model": name, "operation": "chat"}, "engine": it, "model": MODEL}
        for name, it in names.items()
    ]
    limits = [{"name": "none", "routes": ["limited"], "requests_per_second": 0.0001, "burst": 1}]
    directory = tmp_path_factory.mktemp("errors")
    options = ("--max-body-bytes", str(MAX_BODY_BYTES))
    started = GatewayProcess.start(rules_of(engines, routes, limits=limits), directory, extra_args=options)
    yield started.wait_ready()
    started.stop()


def body(model: str, **more: Any) -> bytes:
    return json.dumps({"model": model, "max_tokens": 5, "messages": TURNS} | more).encode()


CASES: dict[str, tuple[str, str, bytes, str, int, str]] = {
    "bad JSON": ("POST", PATH, b"{nope", "", 400, "invalid_request_error"),
    "no model": ("POST", PATH, b"{}", "", 400, "invalid_request_error"),
    "no max_tokens": ("POST", PATH, body("chat", max_tokens=None), "", 400, "invalid_request_error"),
    "an unsupported field": ("POST", PATH, body("chat", made_up=1), "", 400, "invalid_request_error"),
    "no credentials": ("POST", PATH, body("chat"), "status=401", 401, "authentication_error"),
    "no permission": ("POST", PATH, body("chat"), "status=403", 403, "permission_error"),
    "no route": ("POST", PATH, body("nobody"), "", 404, "not_found_error"),
    "no route of a count": ("POST", COUNT, body("nobody"), "", 404, "not_found_error"),
    "no such path": ("POST", "/v1/messages/batches", b"{}", "", 404, "not_found_error"),
    "another method": ("GET", PATH, b"", "", 405, "invalid_request_error"),
    "another method of a count": ("GET", COUNT, b"", "", 405, "invalid_request_error"),
    "a long body": ("POST", PATH, body("chat", system="x" * MAX_BODY_BYTES), "", 413, "request_too_large"),
    "a limit": ("POST", PATH, body("limited"), "", 429, "rate_limit_error"),
    "an engine that fails": ("POST", PATH, body("chat"), "status=500", 500, "api_error"),
    "an engine that cannot count": ("POST", COUNT, body("chat"), "status=500", 500, "api_error"),
    "no engine": ("POST", PATH, body("dead"), "", 503, "overloaded_error"),
    "no engine to count": ("POST", COUNT, body("dead"), "", 503, "overloaded_error"),
    "no answer in time": ("POST", PATH, body("slow"), "hang", 504, "timeout_error"),
}


@pytest.mark.parametrize("case", CASES)
def test_an_error_is_anthropics(gateway: GatewayProcess, case: str) -> None:
    """The error has Anthropic's form: the type of its status, a message, and the id of the request."""
    method, path, sent, fault, status, kind = CASES[case]
    headers = {"x-request-id": "mine", "x-test-fault": fault}
    for _ in range(2 if case == "a limit" else 1):
        reply = plain_http.request(method, gateway.http_url + path, content=sent, headers=headers)
    error = reply.json()
    assert (reply.status_code, error["type"], error["error"]["type"]) == (status, "error", kind)
    assert error["error"]["message"]
    assert error["request_id"] == reply.headers["x-request-id"] == reply.headers["request-id"] == "mine"
    assert len(reply.headers.get_list("request-id")) == 1


@pytest.mark.parametrize("path", [PATH, COUNT])
def test_an_error_has_an_id(gateway: GatewayProcess, path: str) -> None:
    """A client that sends no id reads the gateway's, also where the body is too long to be read."""
    for sent in (b"{}", b" " * (MAX_BODY_BYTES + 1)):
        reply = plain_http.post(gateway.http_url + path, content=sent)
        assert len(reply.json()["request_id"]) > 8
        assert reply.json()["request_id"] == reply.headers["x-request-id"]


def test_a_count_is_no_inference(gateway: GatewayProcess) -> None:
    """A count goes where rules send chats, and is subject to no limit: it generates nothing."""
    statuses = [plain_http.post(gateway.http_url + PATH, content=body("limited")).status_code for _ in range(2)]
    assert statuses[-1] == 429
    reply = plain_http.post(gateway.http_url + COUNT, content=body("limited"))
    assert (reply.json(), reply.headers["x-pointsman-route"]) == ({"input_tokens": 1}, "limited")


def test_an_error_before_the_path_is_known(gateway: GatewayProcess) -> None:
    """A head that cannot be read is refused in V2's form: nothing tells what its client speaks."""
    with Wire(gateway.http_port) as wire:
        wire.send(b"POST /v1/messages HTTP/1.1\r\nbad head\r\n\r\n")
        assert list(json.loads(wire.read_reply().body)) == ["error"]


def test_a_translated_reply_names_its_request(gateway: GatewayProcess) -> None:
    """Anthropic's client finds the request's id, whole and streamed."""
    with anthropic.Anthropic(base_url=gateway.http_url, api_key="none", max_retries=0) as client:
        headers = {"x-request-id": "mine"}
        more: Any = {"model": "chat", "messages": TURNS, "max_tokens": 3, "extra_headers": headers}
        assert client.messages.create(**more)._request_id == "mine"
        with client.messages.stream(**more) as stream:
            assert stream.response.headers["request-id"] == "mine"
        counted = client.messages.count_tokens(model="chat", messages=TURNS, extra_headers=headers)
        assert counted._request_id == "mine"


def test_errors_over_http2(gateway: GatewayProcess) -> None:
    """Over HTTP/2 they are the same, also of a body that is too long."""
    with httpx.Client(http1=False, http2=True, trust_env=False, timeout=120) as client:
        for sent, status in ((b"{}", 400), (b" " * (MAX_BODY_BYTES + 1), 413)):
            reply = client.post(gateway.http_url + PATH, content=sent, headers={"x-request-id": "mine"})
            assert (reply.status_code, reply.json()["type"], reply.json()["request_id"]) == (status, "error", "mine")


def test_the_client_raises_its_own_errors(gateway: GatewayProcess) -> None:
    """Anthropic's client finds the type, and raises the error of the status."""
    with (
        anthropic.Anthropic(base_url=gateway.http_url, api_key="none", max_retries=0) as client,
        pytest.raises(anthropic.NotFoundError, match="unknown model: 'nobody'") as raised,
    ):
        client.messages.count_tokens(model="nobody", messages=TURNS)
    assert raised.value.body["type"] == "error"  # type: ignore[index,call-overload]
