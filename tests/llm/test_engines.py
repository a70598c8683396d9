"""How engines of language models behave when called directly: the canned engine behaves like the real ones.

Where the real ones differ, `WAYS` has the difference, which the gateway has to handle.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from openai import OpenAI

from tests.support.canned_llm import CannedLLM
from tests.support.child import Child
from tests.support.counting import counted
from tests.support.llm import MODEL, NAME, get_real_llm
from tests.support.real_llm import RealLLM
from tests.support.waiting import eventually
from tests.support.wire import Wire, send


@dataclass(frozen=True)
class Ways:
    """The behaviours in which an engine differs from the others."""

    says_done: bool = True  # a stream ends with [DONE]
    tells_usage_unasked: bool = False  # in a stream
    drops_first_space: bool = False  # of a completion
    goes_on: bool = True  # continues a last message of the assistant
    repeats_beginning: bool = False  # when it continues without streaming
    stop_text: str = "one two "  # the whole text when `three` is a stop text
    stop_reason: str = "stop"
    malformed: int = 400  # status for malformed JSON
    no_messages: int = 400
    unknown_model: int = 200
    unknown_field: int = 200
    http_version: bytes = b"HTTP/1.1"


WAYS = {
    "canned": Ways(unknown_model=404),
    "llama_cpp": Ways(repeats_beginning=True),
    # It matches stop texts only from the start of a token: `three` is cut out of ` three`, and ends nothing.
    "mlx": Ways(
        drops_first_space=True,
        goes_on=False,
        stop_text="one two  four five six seven eight nine",
        stop_reason="length",
        unknown_model=404,
        http_version=b"HTTP/1.0",
    ),
    "transformers": Ways(
        says_done=False,
        tells_usage_unasked=True,
        goes_on=False,
        stop_text="one two three",
        malformed=422,
        no_messages=500,
        unknown_model=400,
        unknown_field=422,
    ),
}
HI = [{"role": "user", "content": "hi"}]


@dataclass(frozen=True)
class Subject:
    """One engine, its model and a client."""

    process: Child
    model: str
    ways: Ways
    client: OpenAI

    def post(self, path: str, body: Mapping[str, Any] | bytes) -> tuple[int, Any]:
        """The status and the body, parsed if it is JSON."""
        sent = body if isinstance(body, bytes) else json.dumps({"model": self.model, **body}).encode()
        reply = send(self.process.http_port, "POST", path, sent, {"content-type": "application/json"})
        is_json = reply.headers.get("content-type", "").startswith("application/json")
        return reply.status, json.loads(reply.body) if is_json else reply.body


@pytest.fixture(params=WAYS)
def subject(request: pytest.FixtureRequest, canned: CannedLLM, real_llms: dict[str, RealLLM]) -> Iterator[Subject]:
    process = canned if request.param == "canned" else get_real_llm(request.param, real_llms)
    model = MODEL if request.param == "canned" else NAME
    with OpenAI(base_url=f"{process.http_url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield Subject(process, model, WAYS[request.param], client)


def test_health(subject: Subject) -> None:
    """A ready engine answers /health with 200."""
    assert send(subject.process.http_port, "GET", "/health").status == 200


def test_models(subject: Subject) -> None:
    """/v1/models lists the model by the name that requests use."""
    assert subject.model in [model.id for model in subject.client.models.list()]


def test_chat(subject: Subject) -> None:
    """A chat's reply has `max_tokens` tokens, and usage counts them."""
    reply = subject.client.chat.completions.create(model=subject.model, messages=HI, max_tokens=5)
    assert reply.choices[0].message.content == "one two three four five"
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 5
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 5


def test_chat_ends_by_itself(subject: Subject) -> None:
    """A text that ends by itself has the reason `stop`."""
    reply = subject.client.chat.completions.create(model=subject.model, messages=HI, max_tokens=64)
    assert reply.choices[0].message.content == counted(20)
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.completion_tokens - 20 in (0, 1)  # some count the end token


def test_chat_without_an_end(subject: Subject) -> None:
    """The user message `endless` gives as many tokens as the limit allows, also when its text comes in parts."""
    parts = [{"type": "text", "text": "endless"}]
    reply = subject.client.chat.completions.create(
        model=subject.model, messages=[{"role": "user", "content": parts}], max_tokens=81
    )
    assert reply.choices[0].message.content == f"{counted(99, 21)} twentyone twentytwo"
    assert reply.choices[0].finish_reason == "length"


def test_streamed_chat(subject: Subject) -> None:
    """A streamed chat brings each token by itself, the finish reason once and last, and usage at the end."""
    stream = subject.client.chat.completions.create(
        model=subject.model, messages=HI, max_tokens=3, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert [choice.delta.content for choice in choices if choice.delta.content] == ["one", " two", " three"]
    assert choices[0].delta.role == "assistant"
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["length"]
    assert choices[-1].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == 3
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_end_of_stream(subject: Subject, path: str) -> None:
    """Engines differ in whether a stream ends with [DONE], and whether it has usage without a request for it."""
    body = {"max_tokens": 2, "stream": True, **({"messages": HI} if path.startswith("chat") else {"prompt": "one"})}
    status, reply = subject.post(f"/v1/{path}", body)
    assert status == 200
    assert reply.endswith(b"data: [DONE]\n\n") == subject.ways.says_done
    if path.startswith("chat"):
        assert (b'"usage":{' in reply.replace(b" ", b"")) == subject.ways.tells_usage_unasked


def test_completion(subject: Subject) -> None:
    """A completion continues its prompt, whichever engine began the text."""
    reply = subject.client.completions.create(model=subject.model, prompt="Count: one two three", max_tokens=3)
    assert reply.choices[0].text == " four five six"[subject.ways.drops_first_space :]
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 3


def test_streamed_completion(subject: Subject) -> None:
    """A streamed completion continues its prompt token by token."""
    stream = subject.client.completions.create(
        model=subject.model, prompt="thirty fortyone", max_tokens=3, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    texts = [chunk.choices[0].text for chunk in chunks if chunk.choices and chunk.choices[0].text]
    assert texts == [" fortytwo"[subject.ways.drops_first_space :], " fortythree", " fortyfour"]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].usage.completion_tokens == 3


@pytest.mark.parametrize("prompt", ["Count", "Count: ", "three", "Zählung", "one\n"])
def test_prompt_that_counts_nothing(subject: Subject, prompt: str) -> None:
    """After a prompt that does not end in the count, a completion begins at one."""
    reply = subject.client.completions.create(model=subject.model, prompt=prompt, max_tokens=2)
    assert reply.choices[0].text == " one two"[subject.ways.drops_first_space :]


@pytest.mark.parametrize("streams", [False, True])
def test_beginning_of_the_assistant(subject: Subject, streams: bool) -> None:
    """Some engines continue a last message of the assistant, others answer it."""
    messages = [*HI, {"role": "assistant", "content": "one two three"}]
    reply = subject.client.chat.completions.create(model=subject.model, messages=messages, max_tokens=2, stream=streams)
    if streams:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in reply if chunk.choices)
    else:
        text = reply.choices[0].message.content
    repeated = "one two three" if subject.ways.repeats_beginning and not streams else ""
    assert text == (f"{repeated} four five" if subject.ways.goes_on else "one two")


def test_stop_text(subject: Subject) -> None:
    """Engines differ in how a stop text ends the reply."""
    reply = subject.client.chat.completions.create(model=subject.model, messages=HI, max_tokens=9, stop=["three"])
    assert reply.choices[0].message.content == subject.ways.stop_text
    assert reply.choices[0].finish_reason == subject.ways.stop_reason


REFUSALS: dict[str, tuple[bytes | dict[str, Any], Callable[[Ways], int]]] = {
    "no JSON": (b"{nope", lambda ways: ways.malformed),
    "no messages": ({"max_tokens": 2}, lambda ways: ways.no_messages),
    "unknown model": ({"model": "nobody", "messages": HI, "max_tokens": 2}, lambda ways: ways.unknown_model),
    "unknown field": ({"messages": HI, "max_tokens": 2, "nothing": 1}, lambda ways: ways.unknown_field),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusal(subject: Subject, case: str) -> None:
    """Engines differ in the status of a bad request; afterwards they answer a good one."""
    body, status = REFUSALS[case]
    assert subject.post("/v1/chat/completions", body)[0] == status(subject.ways)
    assert subject.post("/v1/chat/completions", {"messages": HI, "max_tokens": 1})[0] == 200


def test_version_of_http(subject: Subject) -> None:
    """Engines differ in the HTTP version: a stream is framed by chunks, or by the end of its connection."""
    body = json.dumps({"model": subject.model, "messages": HI, "max_tokens": 1, "stream": True}).encode()
    with Wire(subject.process.http_port) as wire:
        wire.send(post("/v1/chat/completions", body))
        assert wire.read_line().startswith(subject.ways.http_version + b" 200 ")


def test_client_that_leaves(subject: Subject) -> None:
    """After a client leaves in the middle of a long stream, the engine serves the next one."""
    messages = [{"role": "user", "content": "endless"}]
    body = json.dumps({"model": subject.model, "messages": messages, "max_tokens": 4000, "stream": True}).encode()
    with Wire(subject.process.http_port) as wire:
        wire.send(post("/v1/chat/completions", body))
        while b"twentyone" not in wire.read_line():
            pass
    assert subject.client.chat.completions.create(model=subject.model, messages=HI, max_tokens=1).usage is not None


def test_llama_cpp_stops_for_a_client_that_leaves(real_llms: dict[str, RealLLM]) -> None:
    """llama.cpp stops generating when a stream's client leaves."""
    process = get_real_llm("llama_cpp", real_llms)
    body = {"messages": [{"role": "user", "content": "endless"}], "max_tokens": 12000, "stream": True}
    with Wire(process.http_port) as wire:
        wire.send(post("/v1/chat/completions", json.dumps(body).encode()))
        while b"twentyone" not in wire.read_line():
            pass
    eventually(lambda: metric(process, "llamacpp:requests_processing") == 0)
    assert metric(process, "llamacpp:n_tokens_max") < 12000


def metric(process: Child, name: str) -> float:
    """The value of a metric without labels."""
    lines = send(process.http_port, "GET", "/metrics").body.decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.split(" ")[0] == name)


def post(path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: engine\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
