"""Conversations with the project's own engine: clients that send only their new message get the same answers as clients
that send everything."""

import contextlib
import queue
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import openai
import pytest
import tritonclient.grpc as triton

from engines.samples.repository import MODELS
from tests.engines.paged.front.llm_process import LLMProcess
from tests.support import plain_http
from tests.support.llm import rules_of
from tests.support.redis_server import RedisServer
from tests.support.servers import GatewayProcess

FOLDER = MODELS / "storyteller" / "1"
QUESTIONS = ["Tell me a story about a fox.", "What was the name of the fox?", "What is the opposite of hot?"]
MAX_TOKENS = 60
TIMEOUT = 120.0


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLMProcess]:
    server = LLMProcess.start(FOLDER, tmp_path_factory.mktemp("llm"), extra_args=["--name", "storyteller"])
    try:
        yield server.wait_ready()
        server.stop()
    finally:
        server.kill()


@pytest.fixture(scope="module")
def gateway(llm: LLMProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Two workers; the engine is reached by OpenAI's API, by V2 over both its ports, and by gRPC alone."""
    template = {"protocol": "kserve", "chat_template": str(FOLDER / "tokenizer_config.json")}
    both = {"url": llm.http_url, "grpc": llm.grpc_url}
    engines = {
        "openai": {"protocol": "openai", "endpoints": [llm.http_url], "dialects": ["chat", "completions"]},
        "v2": {"endpoints": [both], **template},
        "grpc": {"endpoints": [f"grpc://{llm.grpc_url}"], **template},
    }
    kept = {"model": "storyteller", "session": {"history": {"patience": "5s"}}}
    routes = [{"name": name, "match": {"model": name}, "engine": name, **kept} for name in engines]
    routes.append({"name": "plain", "match": {"model": "plain"}, "engine": "openai", "model": "storyteller"})
    with RedisServer(tmp_path_factory.mktemp("redis")) as redis:
        rules = rules_of(engines, routes, identity={"trust_header": True})
        started = GatewayProcess.start(rules, tmp_path_factory.mktemp("gateway"), workers=2, redis=redis.url)
        try:
            yield started.wait_ready()
            started.stop()
        finally:
            started.kill()


@pytest.fixture(scope="module")
def answers(gateway: GatewayProcess) -> list[str]:
    """The answers to a client that sends all messages, on a route that stores nothing."""
    messages: list[Any] = []
    with openai.OpenAI(base_url=f"{gateway.http_url}/v1", api_key="none") as client:
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            reply = client.chat.completions.create(
                model="plain", messages=messages, max_tokens=MAX_TOKENS, temperature=0
            )
            messages.append({"role": "assistant", "content": reply.choices[0].message.content})
    return [message["content"] for message in messages if message["role"] == "assistant"]


Ask = Callable[[GatewayProcess, str, str, str], str]  # gateway, model, session, question


def by_chat(gateway: GatewayProcess, model: str, session: str, question: str) -> str:
    headers = {"x-session-id": session}
    with openai.OpenAI(base_url=f"{gateway.http_url}/v1", api_key="none", default_headers=headers) as client:
        messages: Any = [{"role": "user", "content": question}]
        stream = client.chat.completions.create(
            model=model, messages=messages, max_tokens=MAX_TOKENS, temperature=0, stream=True
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def by_generate(gateway: GatewayProcess, model: str, session: str, question: str) -> str:
    options = {"max_tokens": MAX_TOKENS, "temperature": 0, "session_id": session, "exclude_input_in_output": True}
    body = {"text_input": question, "parameters": options}
    reply = plain_http.post(f"{gateway.http_url}/v2/models/{model}/generate", json=body, timeout=TIMEOUT)
    assert reply.status_code == 200, reply.text
    report: str = reply.json()["text_output"]
    return report


def given(session: str, question: str) -> dict[str, Any]:
    tensor = triton.InferInput("text_input", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([question.encode()], dtype=object))
    parameters = {"max_tokens": MAX_TOKENS, "temperature": 0, "session_id": session}
    return {"inputs": [tensor], "parameters": parameters}


def text_of(result: Any) -> str:
    reply: str = result.as_numpy("text_output").reshape(-1)[0].decode()
    return reply


def by_grpc(gateway: GatewayProcess, model: str, session: str, question: str) -> str:
    with contextlib.closing(triton.InferenceServerClient(gateway.grpc_url)) as client:
        return text_of(client.infer(model, **given(session, question), client_timeout=TIMEOUT))


def by_grpc_stream(gateway: GatewayProcess, model: str, session: str, question: str) -> str:
    came: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with contextlib.closing(triton.InferenceServerClient(gateway.grpc_url)) as client:
        client.start_stream(lambda result, error: came.put(error or result), stream_timeout=TIMEOUT)
        client.async_stream_infer(model, **given(session, question))
        client.stop_stream()
    return "".join(text_of(came.get()) for _ in range(came.qsize()))


@pytest.mark.parametrize("engine", ["openai", "v2", "grpc"])
@pytest.mark.parametrize("ask", [by_chat, by_generate, by_grpc, by_grpc_stream])
def test_the_same_answers(gateway: GatewayProcess, answers: list[str], engine: str, ask: Ask) -> None:
    """Questions about the story get the same answers as if the client had sent all messages."""
    session = f"{engine} {ask.__name__}"
    assert [ask(gateway, engine, session, question) for question in QUESTIONS] == answers
