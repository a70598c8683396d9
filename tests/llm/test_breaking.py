"""Engines that break: before the first token another endpoint is tried; after it the client gets an error, or another
endpoint continues."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import APIError, InternalServerError, OpenAI

from tests.support import plain_http
from tests.support.canned_llm import MODEL, CannedLLM
from tests.support.llm import rules_for, rules_of
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

Start = Callable[[str], GatewayProcess]
HI: list[Any] = [{"role": "user", "content": "hi"}]
# Breakers are off, so that a test's failures do not affect the next test.
STEADY = {"breaker": {"failures": 0}}

# How an engine can fail before its first token.
BEFORE = ["close", "reset", "status=503", "die=0", "cut=0"]
# And after three tokens.
AMID = ["die=3", "cut=3", "truncate=3", "error=3"]


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[CannedLLM]]:
    with ExitStack() as stops:
        started = [CannedLLM.start(tmp_path_factory.mktemp("canned")) for _ in range(2)]
        yield [stops.enter_context(engine.running()) for engine in started]


@pytest.fixture
def two(two_processes: list[CannedLLM]) -> list[CannedLLM]:
    """Two engines without recorded requests or faults."""
    for engine in two_processes:
        engine.forget()
    return two_processes


@pytest.fixture(scope="module")
def gateway_for(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """A function that returns a gateway with these rules, one for all tests with the same rules."""
    started: dict[str, GatewayProcess] = {}

    def gateway(rules: str) -> GatewayProcess:
        if rules not in started:
            started[rules] = GatewayProcess.start(rules, tmp_path_factory.mktemp("gateway")).wait_ready()
        return started[rules]

    yield gateway
    for process in started.values():
        process.stop()


def openai(gateway: GatewayProcess) -> OpenAI:
    return OpenAI(base_url=f"{gateway.http_url}/v1", api_key="none", max_retries=0, timeout=120)


def words(stream: Any) -> list[str]:
    return [chunk.choices[0].delta.content for chunk in stream if chunk.choices and chunk.choices[0].delta.content]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", BEFORE)
def test_another_endpoint_before_the_first_token(
    two: list[CannedLLM], gateway_for: Start, fault: str, stream: bool
) -> None:
    """Whatever fails before the first token, another endpoint answers, and the client gets no error."""
    broken, whole = two
    broken.break_down(fault)
    rules = rules_for(
        broken.http_url, whole.http_url, engine={"balance": "round_robin", "retry": {"budget_floor": 1000}, **STEADY}
    )
    gateway = gateway_for(rules)
    with openai(gateway) as client:
        for _ in range(2):
            reply = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=3, stream=stream)
            text = "".join(words(reply)) if stream else reply.choices[0].message.content
            assert text == "one two three"
    assert len(broken.seen()) >= 1


@pytest.mark.parametrize("fault", BEFORE)
def test_no_endpoint_is_left(two: list[CannedLLM], gateway_for: Start, fault: str) -> None:
    """When no other endpoint is left, the client gets an error in its dialect."""
    broken = two[0]
    broken.break_down(fault)
    gateway = gateway_for(rules_for(broken.http_url, engine=STEADY))
    with openai(gateway) as client, pytest.raises(InternalServerError) as raised:
        client.chat.completions.create(model=MODEL, messages=HI, max_tokens=3, stream=True)
    assert raised.value.status_code in (502, 503)
    assert raised.value.body["message"]


@pytest.mark.parametrize("fault", AMID)
def test_an_honest_end(two: list[CannedLLM], gateway_for: Start, fault: str) -> None:
    """A stream that breaks in the middle ends with an error, and never looks complete."""
    broken = two[0]
    broken.break_down(fault)
    gateway = gateway_for(rules_for(broken.http_url, engine=STEADY))
    got: list[str] = []
    with openai(gateway) as client, pytest.raises(APIError):
        for chunk in client.chat.completions.create(model=MODEL, messages=HI, max_tokens=6, stream=True):
            got += words([chunk])
    assert "".join(got) == "one two three"


@pytest.mark.parametrize("fault", AMID)
def test_an_honest_end_for_anthropic(two: list[CannedLLM], gateway_for: Start, fault: str) -> None:
    """A translated stream that breaks in the middle ends with an error too."""
    broken = two[0]
    broken.break_down(fault)
    gateway = gateway_for(rules_for(broken.http_url, engine=STEADY))
    with Anthropic(base_url=gateway.http_url, api_key="none", max_retries=0, timeout=120) as client:
        got = ""
        with (
            pytest.raises(Exception, match=r"(?i)error|engine|broke|incomplete"),
            client.messages.stream(model=MODEL, messages=HI, max_tokens=6) as stream,
        ):
            for text in stream.text_stream:
                got += text
    assert got == "one two three"


def text_of(event: Any) -> str:
    choice = event["choices"][0]
    return choice.get("text") or choice.get("delta", {}).get("content") or ""


def counted(gateway: GatewayProcess, name: str) -> float:
    """The sum of a metric over its labels."""
    text = plain_http.get(f"{gateway.admin_url}/metrics").text
    lines = [line for line in text.splitlines() if line.startswith(f"pointsman_{name}{{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


@pytest.mark.parametrize("fault", ["die=3", "cut=3", "truncate=3"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_generation_goes_on(two: list[CannedLLM], gateway_for: Start, fault: str, path: str) -> None:
    """With `resume: true` another endpoint continues from the text that the client has; an event marks the seam."""
    broken, whole = two
    broken.break_down(fault)
    rules = rules_for(
        broken.http_url, whole.http_url, engine={"balance": "round_robin", **STEADY}, route={"resume": True}
    )
    gateway = gateway_for(rules)
    seams, before = 0, counted(gateway, "resumed_generations_total")
    for _ in range(2):
        body = {"model": MODEL, "messages": HI, "prompt": "", "max_tokens": 6, "stream": True}
        del body["prompt" if "chat" in path else "messages"]
        reply = plain_http.post(f"{gateway.http_url}{path}", json=body, timeout=120)
        events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
        assert "error" not in reply.text
        assert "".join(map(text_of, events)).strip() == "one two three four five six"
        assert reply.text.endswith("data: [DONE]\n\n")
        seams += sum("pointsman" in event for event in events)
    assert seams == counted(gateway, "resumed_generations_total") - before >= 1


def test_a_generation_goes_on_at_another_engine(two: list[CannedLLM], gateway_for: Start) -> None:
    """When the engine has no other endpoint, the other arm of the route's experiment continues."""
    broken, whole = two
    broken.break_down("die=3")
    rules = rules_of(
        {
            "first": {"protocol": "openai", "endpoints": [broken.http_url]},
            "second": {"protocol": "openai", "endpoints": [whole.http_url], "dialects": ["completions", "messages"]},
        },
        [{"name": "both", "experiment": "split", "resume": True}],
        experiments={
            "split": {
                "arms": [
                    {"name": "control", "engine": "first", "weight": 1},
                    {"name": "other", "engine": "second", "weight": 0},
                ]
            }
        },
    )
    with openai(gateway_for(rules)) as client:
        stream = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=6, stream=True)
        assert "".join(words(stream)) == "one two three four five six"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["chat", "messages"])
def test_a_client_that_leaves_stops_the_engine(
    canned: CannedLLM, gateway_for: Start, dialect: str, stream: bool
) -> None:
    """When a client leaves, streaming or not, in either dialect, the engine's request is cancelled, and the
    cancellation is counted."""
    gateway = gateway_for(rules_for(canned.http_url))
    before = counted(gateway, "cancel_seconds_count")
    canned.break_down("slow=0.02")
    path = "/v1/chat/completions" if dialect == "chat" else "/v1/messages"
    body = {"model": MODEL, "messages": [{"role": "user", "content": "endless"}], "max_tokens": 1000, "stream": stream}
    with httpx.Client(timeout=0.4) as client:
        if stream:
            with client.stream("POST", f"{gateway.http_url}{path}", json=body) as reply:
                assert next(reply.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post(f"{gateway.http_url}{path}", json=body)
    eventually(lambda: [seen["state"] for seen in canned.seen() if seen["path"].startswith("/v1/")] == ["cancelled"])
    assert counted(gateway, "cancel_seconds_count") == before + 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_an_engine_that_always_streams(canned: CannedLLM, gateway_for: Start, path: str) -> None:
    """With `always_stream` the engine gets a request for a stream, and the client gets a complete reply."""
    gateway = gateway_for(rules_for(canned.http_url, engine={"always_stream": True}))
    body = {"model": MODEL, "messages": HI, "max_tokens": 3}
    reply = plain_http.post(f"{gateway.http_url}{path}", json=body).json()
    text = reply["choices"][0]["message"]["content"] if "chat" in path else reply["content"][0]["text"]
    assert text == "one two three"
    assert (reply["usage"].get("completion_tokens") or reply["usage"]["output_tokens"]) == 3
    assert [seen["body"]["stream"] for seen in canned.seen() if seen["method"] == "POST"] == [True]
