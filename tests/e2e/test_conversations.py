"""Conversations as clients see them: a gateway of two workers, a real Redis, and engines that record their requests."""

import contextlib
import gzip
import json
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import tritonclient.grpc as triton
from typer.testing import CliRunner

from gateway.cli.app import make_app
from tests.support import plain_http
from tests.support.canned_llm import MODEL, CannedLLM
from tests.support.llm import VLLM, rules_of
from tests.support.redis_server import RedisServer
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

app = make_app()

SESSION, TENANT, HISTORY = "x-session-id", "x-tenant", "x-pointsman-history"
TIMEOUT = 120.0
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant: "

SURE = {"patience": "120s"}  # a machine that is busy with tests responds slowly at times
ROUTES: dict[str, Any] = {
    "chat": {"history": SURE},
    "brief": {"history": {"max_turns": 2, **SURE}},
    "full": {"history": {"max_turns": 4, "on_overflow": "refuse", **SURE}},
    "each": {"history": {"system": "request", **SURE}},
    "needed": {"history": {"required": True, "patience": "1s"}},
    "text": {"history": {"prompts": "text", **SURE}},
    "hasty": {"history": True},
    "held": {"history": "engine"},
    "named": {"history": {"engine_holds_state": True, "session_field": "conversation_id"}},
    "plain": {},
}


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CannedLLM]:
    with CannedLLM.start(tmp_path_factory.mktemp("canned")).running() as running:
        yield running


@pytest.fixture(scope="module")
def v2_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CannedLLM]:
    with CannedLLM.start(tmp_path_factory.mktemp("canned-v2"), v2=True).running() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(
    redis_server: RedisServer, engine: CannedLLM, v2_engine: CannedLLM, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    (folder / "chat.jinja").write_text(TEMPLATE)
    engines = {
        "openai": {
            "protocol": "openai",
            "endpoints": [engine.http_url],
            "dialects": ["chat", "completions", "embeddings", "responses", "messages"],
        },
        "triton": {"protocol": "kserve", "endpoints": [v2_engine.http_url], "chat_template": "chat.jinja"},
    }
    routes = [
        {"name": name, "match": {"model": name}, "engine": "openai", "model": MODEL, "session": session}
        for name, session in ROUTES.items()
    ]
    v2 = {"match": {"model": "v2"}, "engine": "triton", "model": VLLM, "session": {"history": SURE}}
    v2_held = {"match": {"model": "v2-held"}, "engine": "triton", "model": VLLM, "session": {"history": "engine"}}
    routes[0]["resume"] = True
    routes += [{"name": "v2", **v2}, {"name": "v2-held", **v2_held}]
    split = {"match": {"model": "split"}, "experiment": "halves", "model": MODEL, "session": {"history": SURE}}
    routes.append({"name": "split", **split})
    arms = [{"name": name, "engine": name, "weight": 1} for name in ("openai", "same")]
    engines["same"] = engines["openai"] | {"balance": "session"}
    identity = {"trust_header": True, "session_cookie": "talk", "session_parameters": ["session_id", "conversation"]}
    rules = rules_of(engines, routes, identity=identity, experiments={"halves": {"arms": arms}})
    patient = ["--redis-deadline", "10s"]
    started = GatewayProcess.start(rules, folder, workers=2, redis=redis_server.url, extra_args=patient)
    try:
        yield started.wait_ready()
        started.stop()
    finally:
        started.kill()


@pytest.fixture(autouse=True)
def forget(engine: CannedLLM, v2_engine: CannedLLM, redis_server: RedisServer) -> None:
    engine.forget()
    v2_engine.forget()
    redis_server.client.flushall()


class Asking:
    """A client of one gateway with a new connection for each request, so that any worker may answer."""

    def __init__(self, gateway: GatewayProcess, session: str = "s1", tenant: str = "") -> None:
        self.gateway = gateway
        self.headers = {SESSION: session} | ({TENANT: tenant} if tenant else {})

    def post(self, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        url = f"{self.gateway.http_url}{path}"
        return plain_http.post(url, json=body, headers=self.headers | headers, timeout=TIMEOUT, trust_env=False)

    def chat(self, *messages: Any, model: str = "chat", **more: Any) -> httpx.Response:
        reply = [{"role": "user", "content": each} if isinstance(each, str) else each for each in messages]
        return self.post("/v1/chat/completions", {"model": model, "messages": reply, "max_tokens": 2, **more})


def told(engine: CannedLLM) -> list[tuple[str, Any]]:
    """The messages of the last request that the engine received."""
    return [(each["role"], each["content"]) for each in engine.seen()[-1]["body"]["messages"]]


def answer(reply: httpx.Response) -> str:
    assert reply.status_code == 200, reply.text
    text: str = reply.json()["choices"][0]["message"]["content"]
    return text


def test_a_client_sends_its_new_message_alone(gateway: GatewayProcess, engine: CannedLLM) -> None:
    """The engine receives all turns, whichever worker stored them, and the reply header gives the number of stored
    turns."""
    client = Asking(gateway)
    for number in range(6):
        reply = client.chat(f"question {number}")
        assert answer(reply) == "one two"
        assert reply.headers[HISTORY] == f"{2 * number} turns"
    assert told(engine) == [
        each for number in range(5) for each in (("user", f"question {number}"), ("assistant", "one two"))
    ] + [("user", "question 5")]


def test_who_sends_everything_is_told_the_same(gateway: GatewayProcess, engine: CannedLLM) -> None:
    """When OpenAI's client sends all its messages, none is duplicated."""
    with openai.OpenAI(
        base_url=f"{gateway.http_url}/v1", api_key="none", default_headers={SESSION: "s1"}, max_retries=0
    ) as client:
        messages: list[Any] = [{"role": "system", "content": "be kind"}]
        for number in range(4):
            messages.append({"role": "user", "content": f"question {number}"})
            reply = client.chat.completions.create(model="chat", messages=messages, max_tokens=2)
            messages.append(reply.choices[0].message)
            assert len(engine.seen()[-1]["body"]["messages"]) == 2 + 2 * number
    reply = Asking(gateway).chat("question 4")
    assert reply.headers[HISTORY] == "8 turns"
    assert len(told(engine)) == 10


def of_openai(gateway: GatewayProcess) -> openai.OpenAI:
    base_url = f"{gateway.http_url}/v1"
    return openai.OpenAI(base_url=base_url, api_key="none", default_headers={SESSION: "s1"}, max_retries=0)


def by_chat(gateway: GatewayProcess, text: str, model: str) -> str:
    with of_openai(gateway) as client:
        messages: Any = [{"role": "user", "content": text}]
        reply = client.chat.completions.create(model=model, messages=messages, max_tokens=2)
    return reply.choices[0].message.content or ""


def by_chat_stream(gateway: GatewayProcess, text: str, model: str) -> str:
    with of_openai(gateway) as client:
        messages: Any = [{"role": "user", "content": text}]
        stream = client.chat.completions.create(model=model, messages=messages, max_tokens=2, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def by_completions(gateway: GatewayProcess, text: str, model: str) -> str:
    with of_openai(gateway) as client:
        return client.completions.create(model=model, prompt=text, max_tokens=2).choices[0].text


def by_responses(gateway: GatewayProcess, text: str, model: str) -> str:
    with of_openai(gateway) as client:
        return client.responses.create(model=model, input=text, max_output_tokens=2).output_text


def by_responses_stream(gateway: GatewayProcess, text: str, model: str) -> str:
    with of_openai(gateway) as client:
        stream = client.responses.create(model=model, input=text, max_output_tokens=2, stream=True)
        return "".join(event.delta for event in stream if event.type == "response.output_text.delta")


def by_messages(gateway: GatewayProcess, text: str, model: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 2}
    reply = Asking(gateway).post("/v1/messages", body)
    report: str = reply.json()["content"][0]["text"]
    return report


def by_generate(gateway: GatewayProcess, text: str, model: str) -> str:
    body = {"text_input": text, "parameters": {"max_tokens": 2, "session_id": "s1"}}
    reply = plain_http.post(f"{gateway.http_url}/v2/models/{model}/generate", json=body, timeout=TIMEOUT)
    assert reply.status_code == 200, reply.text
    report: str = reply.json()["text_output"]
    return report


def by_generate_stream(gateway: GatewayProcess, text: str, model: str) -> str:
    reply = Asking(gateway).post(f"/v2/models/{model}/generate_stream", {"text_input": text, "max_tokens": 2})
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: ")]
    return "".join(event["text_output"] for event in events)


def by_infer(gateway: GatewayProcess, text: str, model: str) -> str:
    inputs = [
        {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [text]},
        {"name": "max_tokens", "datatype": "INT32", "shape": [1], "data": [2]},
    ]
    reply = Asking(gateway).post(f"/v2/models/{model}/infer", {"inputs": inputs})
    assert reply.status_code == 200, reply.text
    report: str = reply.json()["outputs"][0]["data"][0]
    return report


def given(text: str, parameters: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    tensor = triton.InferInput("text_input", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode()], dtype=object))
    return [tensor], {"max_tokens": 2, **parameters}


def by_model_infer(gateway: GatewayProcess, text: str, model: str) -> str:
    inputs, parameters = given(text, {"session_id": "s1"})
    with contextlib.closing(triton.InferenceServerClient(gateway.grpc_url)) as client:
        result = client.infer(model, inputs, parameters=parameters, client_timeout=TIMEOUT)
    reply: str = result.as_numpy("text_output")[0].decode()
    return reply


def by_model_stream_infer(gateway: GatewayProcess, text: str, model: str) -> str:
    inputs, parameters = given(text, {"session_id": "s1"})
    came: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with contextlib.closing(triton.InferenceServerClient(gateway.grpc_url)) as client:
        client.start_stream(lambda result, error: came.put(error or result), stream_timeout=TIMEOUT)
        client.async_stream_infer(model, inputs, parameters=parameters)
        client.stop_stream()
    results = [came.get() for _ in range(came.qsize())]
    return "".join(result.as_numpy("text_output")[0].decode() for result in results)


WAYS: list[Callable[[GatewayProcess, str, str], str]] = [
    *(by_chat, by_chat_stream, by_completions, by_responses, by_responses_stream, by_messages),
    *(by_generate, by_generate_stream, by_infer, by_model_infer, by_model_stream_infer),
]


@pytest.mark.parametrize("model", ["chat", "split"])
def test_one_conversation_in_every_protocol(gateway: GatewayProcess, engine: CannedLLM, model: str) -> None:
    """OpenAI, Anthropic and V2 clients share one conversation, streamed or not: each sends only its new message, also
    on a route with an experiment and on a session-balanced one."""
    expected: list[tuple[str, str]] = []
    for ask in WAYS:
        expected.append(("user", ask.__name__))
        assert ask(gateway, ask.__name__, model) == "one two", ask.__name__
        assert told(engine) == expected, ask.__name__
        expected.append(("assistant", "one two"))


def test_one_conversation_with_a_v2_engine(gateway: GatewayProcess, v2_engine: CannedLLM) -> None:
    """An engine that takes a prompt receives the conversation rendered by its template."""
    expected = ""
    for ask in WAYS:
        expected += f"user: {ask.__name__}\n"
        answered = ask(gateway, ask.__name__, "v2")
        assert answered.strip() == "one two", ask.__name__
        assert v2_engine.seen()[-1]["body"]["text_input"] == expected + "assistant: ", ask.__name__
        expected += f"assistant: {answered}\n"


def test_sessions_side_by_side_on_one_stream(gateway: GatewayProcess, engine: CannedLLM) -> None:
    """Each message of a ModelStreamInfer call belongs to the session that it names."""
    came: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with contextlib.closing(triton.InferenceServerClient(gateway.grpc_url)) as client:
        client.start_stream(lambda result, error: came.put(error or result), stream_timeout=TIMEOUT)
        for session, text in (("s1", "a"), ("s2", "b"), ("s1", "c"), ("s2", "d")):
            inputs, parameters = given(text, {"session_id": session})
            client.async_stream_infer("chat", inputs, parameters=parameters)
        client.stop_stream()
    assert came.qsize() == 8  # two tokens each
    requests = [[turn["content"] for turn in each["body"]["messages"]] for each in engine.seen()]
    assert requests == [["a"], ["b"], ["a", "one two", "c"], ["b", "one two", "d"]]


def test_compressed_bodies_are_read(gateway: GatewayProcess, engine: CannedLLM) -> None:
    """The gateway reads the conversation's message from gzip bodies of infer and of chat."""
    inputs = [
        {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["a"]},
        {"name": "max_tokens", "datatype": "INT32", "shape": [1], "data": [2]},
    ]
    chat = {"model": "chat", "messages": [{"role": "user", "content": "b"}], "max_tokens": 2}
    for path, body in (("/v2/models/chat/infer", {"inputs": inputs}), ("/v1/chat/completions", chat)):
        reply = plain_http.post(
            f"{gateway.http_url}{path}",
            content=gzip.compress(json.dumps(body).encode()),
            headers={SESSION: "s1", "content-encoding": "gzip", "content-type": "application/json"},
            timeout=TIMEOUT,
        )
        assert reply.status_code == 200, reply.text
    assert [text for _, text in told(engine)] == ["a", "one two", "b"]


MALFORMED = [
    ("/v1/chat/completions", b'{"model": "chat", "messages": 1}', "messages"),
    ("/v1/chat/completions", b'{"model": "chat", "messages": [{"role": "user", "content": "a"}], "x": 1}', "x"),
    ("/v1/responses", b'{"model": "chat", "input": "a", "previous_response_id": "r"}', "previous_response_id"),
    ("/v1/completions", b'{"model": "chat", "prompt": [1, 2]}', "token ids"),
    ("/v2/models/chat/generate", b"[]", "JSON"),
    ("/v2/models/chat/infer", b'{"inputs": 1}', "inputs"),
    ("/v1/chat/completions", b'{"model": "held", "messages": [}', "JSON"),
    ("/v2/models/v2-held/generate", b'{"text_input": "a", "parameters": 1}', "parameters"),
]


@pytest.mark.parametrize("path, body, named", MALFORMED)
def test_what_cannot_be_read_is_refused(gateway: GatewayProcess, path: str, body: bytes, named: str) -> None:
    """An unreadable body gets an error that names the mistake, in the client's dialect."""
    headers = {SESSION: "s1", "content-type": "application/json"}
    reply = plain_http.post(f"{gateway.http_url}{path}", content=body, headers=headers, timeout=TIMEOUT)
    assert 400 <= reply.status_code < 502, reply.text
    error = reply.json()["error"]
    assert named in (error if path.startswith("/v2") else error["message"])


def test_a_v2_client_at_a_v2_engine(gateway: GatewayProcess, v2_engine: CannedLLM) -> None:
    """A V2 client at a V2 engine has a conversation too; a parameter or a header names the session."""
    assert by_generate(gateway, "a", "v2") == " one two"
    assert by_infer(gateway, "b", "v2") == " one two"
    reply = "user: a\nassistant:  one two\nuser: b\nassistant: "
    assert v2_engine.seen()[-1]["body"]["text_input"] == reply


def test_a_text_goes_on(gateway: GatewayProcess, engine: CannedLLM) -> None:
    """Where a prompt continues one text, a client may send the continuation alone or the whole text."""
    client = Asking(gateway)

    def prompted(prompt: str) -> tuple[str, str]:
        reply = client.post("/v1/completions", {"model": "text", "prompt": prompt, "max_tokens": 2})
        assert reply.status_code == 200, reply.text
        return engine.seen()[-1]["body"]["prompt"], reply.json()["choices"][0]["text"]

    assert prompted("one") == ("one", " two three")
    assert prompted(" four") == ("one two three four", " five six")
    assert prompted("one two three four five six seven") == ("one two three four five six seven", " eight nine")
    assert prompted(" ten") == ("one two three four five six seven eight nine ten", " eleven twelve")


CLOCK = {
    "type": "function",
    "function": {"name": "clock", "parameters": {"type": "object", "properties": {"in": {"type": "string"}}}},
}


@pytest.mark.parametrize("stream", [False, True])
def test_a_tools_result_finds_its_call(gateway: GatewayProcess, engine: CannedLLM, stream: bool) -> None:
    """A tool call is stored with its id; the client sends only the tool's result."""
    with of_openai(gateway) as client:
        requested: Any = {"model": "chat", "messages": [{"role": "user", "content": "the clock?"}], "tools": [CLOCK]}
        if stream:
            chunks = list(client.chat.completions.create(**requested, stream=True))
            id = next(chunk.choices[0].delta.tool_calls[0].id for chunk in chunks if chunk.choices[0].delta.tool_calls)
        else:
            id = client.chat.completions.create(**requested).choices[0].message.tool_calls[0].id
        result: Any = {"role": "tool", "tool_call_id": id, "content": "noon"}
        client.chat.completions.create(model="chat", messages=[result], max_tokens=2)
    question, call, answered = engine.seen()[-1]["body"]["messages"]
    assert question == {"role": "user", "content": "the clock?"}
    assert call["tool_calls"] == [
        {"id": id, "type": "function", "function": {"name": "clock", "arguments": '{"in": "one"}'}}
    ]
    assert answered == {"role": "tool", "tool_call_id": id, "content": "noon"}


def test_pictures_stay(gateway: GatewayProcess, engine: CannedLLM) -> None:
    """An image of an earlier message is sent to the engine again with later turns."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    parts = [{"type": "text", "text": "what is it?"}, picture]
    client = Asking(gateway)
    client.chat({"role": "user", "content": parts})
    client.chat("and now?")
    assert told(engine)[0] == ("user", parts)


def test_a_system_message_is_said_once(gateway: GatewayProcess, engine: CannedLLM) -> None:
    """A system message is stored until another one replaces it; with `system: request` each request must send its
    own."""
    kind, short = ({"role": "system", "content": text} for text in ("be kind", "be short"))
    for model, then in (("chat", [("system", "be kind")]), ("each", [])):
        client = Asking(gateway, session=model)
        client.chat(kind, "a", model=model)
        client.chat("b", model=model)
        assert told(engine)[:-3] == then
        client.chat(short, "c", model=model)
        assert told(engine)[0] == ("system", "be short")
        assert len(told(engine)) == 6


def test_a_session_is_named_in_many_ways(gateway: GatewayProcess, engine: CannedLLM) -> None:
    """A header, a cookie, a body field or the `conversation` of OpenAI's Responses names the session."""
    anyone = Asking(gateway)
    anyone.headers = {}
    assert anyone.chat("a", session_id="s1").headers[HISTORY] == "0 turns"
    anyone.headers = {"cookie": "other=1; talk=s1"}
    assert anyone.chat("b").headers[HISTORY] == "2 turns"
    with openai.OpenAI(base_url=f"{gateway.http_url}/v1", api_key="none", max_retries=0) as client:
        client.responses.create(model="chat", input="c", conversation="s1", max_output_tokens=2)
        client.responses.create(model="chat", input="d", conversation={"id": "s1"}, max_output_tokens=2)
    assert [text for _, text in told(engine)] == ["a", "one two", "b", "one two", "c", "one two", "d"]
    assert not {"session_id", "conversation"} & engine.seen()[-1]["body"].keys()


def test_tenants_have_their_own(gateway: GatewayProcess, engine: CannedLLM) -> None:
    """A tenant cannot read another tenant's conversation by using its session name."""
    Asking(gateway, tenant="acme").chat("our secret")
    for tenant in ("other", ""):
        reply = Asking(gateway, tenant=tenant).chat("what was it?")
        assert reply.headers[HISTORY] == "0 turns"
        assert told(engine) == [("user", "what was it?")]
    assert Asking(gateway, tenant="acme").chat("b").headers[HISTORY] == "2 turns"
    inputs, parameters = given("c", {"session_id": "s1"})
    with contextlib.closing(triton.InferenceServerClient(gateway.grpc_url)) as client:
        client.infer("chat", inputs, parameters=parameters, headers={TENANT: "acme"}, client_timeout=TIMEOUT)
        assert [text for _, text in told(engine)] == ["our secret", "one two", "b", "one two", "c"]
        client.infer("chat", inputs, parameters=parameters, headers={TENANT: "other"}, client_timeout=TIMEOUT)
        assert [text for _, text in told(engine)] == ["what was it?", "one two", "c"]


def test_without_a_session_nothing_is_kept(
    gateway: GatewayProcess, engine: CannedLLM, redis_server: RedisServer
) -> None:
    """Nothing is stored for a request without a session, on a route without history, or for embeddings."""
    url = f"{gateway.http_url}/v1/chat/completions"
    body = {"model": "chat", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
    assert HISTORY not in plain_http.post(url, json=body, timeout=TIMEOUT).headers
    client = Asking(gateway)
    assert HISTORY not in client.chat("a", model="plain").headers
    vectors = client.post("/v1/embeddings", {"model": "chat", "input": "a"})
    assert vectors.status_code == 200 and HISTORY not in vectors.headers
    assert redis_server.client.keys("pointsman:1:talk:*") == []


def test_old_turns_go(gateway: GatewayProcess, engine: CannedLLM) -> None:
    """Beyond the limits the oldest exchange is dropped; a client that still has it may send it."""
    client = Asking(gateway)
    for letter in "abc":
        client.chat(letter, model="brief")
    assert told(engine) == [("user", "b"), ("assistant", "one two"), ("user", "c")]
    answered = {"role": "assistant", "content": "one two"}
    reply = client.chat("b", answered, "c", answered, "d", model="brief")
    assert reply.headers[HISTORY] == "2 turns"
    assert [text for _, text in told(engine)] == ["b", "one two", "c", "one two", "d"]


def test_a_full_conversation_is_refused(gateway: GatewayProcess, engine: CannedLLM) -> None:
    """With `on_overflow: refuse` the client gets an error in its dialect, and the engine gets no request."""
    client = Asking(gateway)
    for letter in "ab":
        assert client.chat(letter, model="full").status_code == 200
    reply = client.chat("c", model="full")
    assert (reply.status_code, reply.headers["x-pointsman-reason"]) == (400, "conversation_full")
    assert reply.json()["error"]["code"] == "conversation_full"
    assert "4 turns" in reply.json()["error"]["message"]
    assert len(engine.seen()) == 2


def test_a_message_edited_takes_the_place_of_the_first(gateway: GatewayProcess, engine: CannedLLM) -> None:
    """A client that sends an edited conversation replaces the stored one."""
    client = Asking(gateway)
    client.chat("a")
    client.chat("b")
    answered = {"role": "assistant", "content": "one two"}
    assert client.chat("a", answered, "b, I mean").headers[HISTORY] == "replaced"
    client.chat("c")
    assert [text for _, text in told(engine)] == ["a", "one two", "b, I mean", "one two", "c"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_fails_leaves_nothing(gateway: GatewayProcess, engine: CannedLLM, stream: bool) -> None:
    """When the client repeats a failed request, its question is stored once."""
    client = Asking(gateway)
    client.chat("a")
    for fault in ("status=400", "error=1", "die=1"):
        engine.break_down(fault, times=1 if fault == "status=400" else None)
        with contextlib.suppress(httpx.HTTPError):
            client.chat("b", stream=stream)
        engine.break_down("")
    assert client.chat("b").headers[HISTORY] == "2 turns"
    assert [text for _, text in told(engine)] == ["a", "one two", "b"]


def test_an_answer_that_went_on_elsewhere_is_whole(gateway: GatewayProcess, engine: CannedLLM) -> None:
    """With `resume`, an answer that two engines produced is stored as one turn."""
    client = Asking(gateway)
    engine.break_down("die=2", times=1)
    client.chat("a", stream=True, max_tokens=5)
    engine.break_down("")
    client.chat("b")
    assert told(engine)[1] == ("assistant", "one two three four five")


def test_a_client_that_stops_reading_keeps_what_it_has_read(gateway: GatewayProcess, engine: CannedLLM) -> None:
    """When a client disconnects during a stream, the answer is stored as far as it was read. If no token was read,
    nothing is stored."""
    client = Asking(gateway)
    body = {"model": "chat", "messages": [{"role": "user", "content": "a"}], "stream": True}
    url = f"{gateway.http_url}/v1/chat/completions"
    headers = client.headers | {"x-test-fault": "stall=3"}
    with plain_http.stream("POST", url, json=body, headers=headers, timeout=TIMEOUT) as reply:
        for line in reply.iter_lines():
            if "three" in line:
                break
    admin = f"{gateway.admin_url}/conversations/s1"
    eventually(lambda: plain_http.get(admin).status_code == 200)
    assert plain_http.get(admin).json()["turns"][1]["cut"] is True
    assert client.chat("b").headers[HISTORY] == "2 turns"
    assert ("assistant", "one two three") in told(engine)

    late = Asking(gateway, session="late")
    with pytest.raises(httpx.TimeoutException):
        plain_http.post(url, json=body, headers=late.headers | {"x-test-fault": "hang"}, timeout=0.2)
    assert late.chat("b").headers[HISTORY] == "0 turns"


def test_many_at_the_same_time(gateway: GatewayProcess, engine: CannedLLM) -> None:
    """Concurrent requests of one session are stored one after the other, each question followed by its answer."""
    client = Asking(gateway)
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda number: client.chat(f"question {number}", "x"), range(16)))
    assert {reply.status_code for reply in replies} == {200}
    client.chat("all?")
    turns = told(engine)[:-1]
    assert len(turns) == 48
    exchanges = [turns[at : at + 3] for at in range(0, 48, 3)]
    assert {first for (_, first), _, _ in exchanges} == {f"question {number}" for number in range(16)}
    assert {(second, third) for _, second, third in exchanges} == {(("user", "x"), ("assistant", "one two"))}


def test_an_engine_that_holds_its_sessions_is_told_theirs(
    gateway: GatewayProcess, engine: CannedLLM, v2_engine: CannedLLM, redis_server: RedisServer
) -> None:
    """For an engine that holds its sessions the gateway stores nothing: it forwards the id as the session header, as
    V2's parameter, or as the field that a rule names. With a tenant the id is unique to that tenant."""

    def seen(asked: CannedLLM) -> tuple[str, dict[str, Any]]:
        return asked.seen()[-1]["headers"][SESSION], asked.seen()[-1]["body"]

    Asking(gateway).chat("a", model="held")
    assert seen(engine)[0] == "s1"
    assert len(seen(engine)[1]["messages"]) == 1
    Asking(gateway).chat("a", model="named")
    assert seen(engine)[1]["conversation_id"] == "s1"
    assert by_generate(gateway, "a", "held") == " one two"  # translated: only the header carries the session
    assert seen(engine)[0] == "s1"
    by_generate(gateway, "a", "v2-held")
    assert (seen(v2_engine)[0], seen(v2_engine)[1]["parameters"]["session_id"]) == ("s1", "s1")
    ids = set()
    for tenant in ("acme", "other"):
        Asking(gateway, tenant=tenant).chat("a", model="named")
        header, told_body = seen(engine)
        assert header == told_body["conversation_id"]
        ids.add(header)
    assert len(ids | {"s1"}) == 3
    assert redis_server.client.keys("pointsman:1:talk:*") == []


def test_redis_goes_away_and_comes_back(gateway: GatewayProcess, engine: CannedLLM, redis_server: RedisServer) -> None:
    """Without Redis a request is answered without its history, and the reply header says so. A route that requires
    history refuses it. Once Redis is back, conversations continue."""
    client = Asking(gateway)
    assert client.chat("a").status_code == 200
    redis_server.kill()
    try:
        reply = client.chat("b")
        assert (answer(reply), reply.headers[HISTORY]) == ("one two", "missing, not kept")
        assert told(engine) == [("user", "b")]
        refused = client.chat("b", model="needed")
        assert (refused.status_code, refused.headers["x-pointsman-reason"]) == (503, "history_missing")
    finally:
        redis_server.start()
    eventually(lambda: is_back(client))
    eventually(lambda: client.chat("d", model="needed").status_code == 200)


def is_back(client: Asking) -> bool:
    """Whether both workers can read the stored turns, and the control process the list of conversations."""
    gateway = client.gateway
    return (
        "\npointsman_redis_available 2.0\n" in plain_http.get(f"{gateway.admin_url}/metrics").text
        and plain_http.get(f"{gateway.admin_url}/conversations").is_success
    )


def test_nobody_waits_long_for_redis(gateway: GatewayProcess, redis_server: RedisServer) -> None:
    """While Redis hangs, requests are answered without their history."""
    client = Asking(gateway)
    redis_server.pause()
    try:
        for _ in range(12):
            assert client.chat("a", model="hasty").headers[HISTORY] == "missing, not kept"
    finally:
        redis_server.resume()
    eventually(lambda: is_back(client))


def test_operators_read_and_delete(gateway: GatewayProcess, engine: CannedLLM) -> None:
    """The admin API lists conversations, shows one with its engines and costs, exports it as messages, and deletes
    it."""
    client, admin = Asking(gateway, session="a/b c", tenant="acme"), f"{gateway.admin_url}/conversations"
    client.chat({"role": "system", "content": "be kind"}, "a")
    Asking(gateway, session="s2").chat("b")
    page = plain_http.get(admin).json()
    assert page["cursor"] is None
    assert {(each["session"], each["tenant"], each["revision"]) for each in page["conversations"]} == {
        ("a/b c", "acme", 1),
        ("s2", "", 1),
    }
    where = f"{admin}/a%2Fb%20c"
    assert plain_http.get(where).status_code == 404
    reply = plain_http.get(where, params={"tenant": "acme"}).json()
    assert (reply["session"], reply["tokens"], reply["system"]) == (
        "a/b c",
        3,
        [{"role": "system", "content": "be kind"}],
    )
    question, answered = reply["turns"]
    assert (question["content"], question["role"], question["tokens"]) == ("a", "user", 1)
    assert (answered["content"], answered["engine"], answered["tokens"]) == ("one two", "openai", 2)
    assert "estimated" not in answered
    lines = plain_http.get(f"{where}/export", params={"tenant": "acme"}).text.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "one two"},
    ]
    assert plain_http.delete(where, params={"tenant": "acme"}).json()["deleted"] is True
    assert plain_http.delete(where, params={"tenant": "acme"}).status_code == 404
    assert client.chat("c").headers[HISTORY] == "0 turns"


def test_the_command_line_asks_the_admin_api(gateway: GatewayProcess) -> None:
    """`pointsman conversations` lists, shows, exports and deletes."""
    Asking(gateway, tenant="acme").chat("how far?")

    def command(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["conversations", *arguments, "--admin", gateway.admin_url])

    assert "acme" in command("list").stdout
    shown = command("show", "s1", "--tenant", "acme").stdout
    assert "how far?" in shown and "one two" in shown and "2 tokens" in shown
    exported = command("export", "s1", "--tenant", "acme").stdout.splitlines()
    assert json.loads(exported[1]) == {"role": "assistant", "content": "one two"}
    assert command("delete", "s1", "--tenant", "acme").exit_code == 0
    gone = command("show", "s1", "--tenant", "acme")
    assert (gone.exit_code, "there is no conversation" in gone.stderr) == (1, True)
    assert "keeps no conversation" in command("list").stdout
