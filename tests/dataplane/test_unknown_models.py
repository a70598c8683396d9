"""`models: {unknown: refuse}`: a model that no endpoint lists is refused by the gateway, with names near to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.dataplane.attempts.unknown_model import near_names
from gateway.upstream import engine as engine_module
from tests.dataplane.grpc.peers import GrpcEngine
from tests.dataplane.grpc.stage import grpc_rules, grpc_stage, request
from tests.dataplane.stage import Engine, post, rules, run, stage
from tests.dataplane.test_model_choice import chat, index, listing, use_lists

REFUSES = "health: {interval: 0}\n    models: {unknown: refuse}"
TEXT = "Request for unknown model: 'lama' is not found; near names: 'llama'"
WHERE = " (route 'all', engine 'it')"


@pytest.mark.pure_python
def test_a_model_that_no_endpoint_lists_is_refused_without_a_trip(tmp_path: Path) -> None:
    """Chats, Anthropic's messages and V2 get 404 in their own format; no engine gets the request; a listed model goes
    on. With one endpoint as with several."""

    async def scene() -> None:
        server = Engine()
        await server.start()
        async with stage(rules(server, options="protocol: openai\n    " + REFUSES), tmp_path) as it:
            assert (await it.ask(chat("lama"))).status == 200  # nothing is known yet
            use_lists(it.plane, e0=listing("llama", "qwen"))
            looked: list[Any] = []
            it.plane.look_at_models = looked.append  # type: ignore[method-assign]
            replies = [
                await it.ask(request)
                for request in (
                    chat("lama"),
                    chat("lama", "/v1/messages", max_tokens=3),
                    post("/v2/models/lama/generate", b'{"text_input": "x"}'),
                )
            ]
            assert [(reply.status, reply.reason) for reply in replies] == [(404, "not_found")] * 3
            bodies = [json.loads(reply.body) for reply in replies]
            assert bodies[0]["error"]["message"] == TEXT + WHERE
            assert (bodies[1]["type"], bodies[1]["error"]["message"]) == ("error", TEXT + WHERE)
            assert len(looked) == 1  # once a second: the model may have been loaded since
            assert (await it.ask(chat("llama"))).status == 200
        assert len(server.received) == 2
        server.stop()

    run(scene())


@pytest.mark.parametrize(
    "routes, settings, expected",
    [
        # the caller may not use it
        ("  - {name: hidden, match: {model: llama}, engine: it, allow: {tenant: acme}}\n", {}, "is not found"),
        ("", {"name_decision": False}, "is not found"),
        ("  - {name: renamed, match: {model: llama}, engine: it, model: x}\n", {}, "is not found"),
    ],
)
def test_near_names_are_those_that_the_caller_may_know(
    tmp_path: Path, routes: str, settings: dict[str, Any], expected: str
) -> None:
    async def scene() -> None:
        server = Engine()
        await server.start()
        text = rules(
            server, options="protocol: openai\n    " + REFUSES, routes=routes + "  - {name: all, engine: it}\n"
        )
        if "allow" in routes:
            text = text.replace("engines:", "auth: {redis_keys: true, required: false}\nengines:", 1)
        async with stage(text, tmp_path, **settings) as it:
            use_lists(it.plane, e0=listing("llama"))
            reply = await it.ask(chat("lama"))
            assert reply.status == 404
            assert b"llama" not in reply.body
            assert expected.encode() in reply.body
        server.stop()

    run(scene())


def test_an_unknown_model_of_a_call(tmp_path: Path) -> None:
    """NOT_FOUND over gRPC; on a stream an error message, after which the stream goes on."""

    async def scene() -> None:
        engine = await GrpcEngine().start()
        async with grpc_stage(grpc_rules(engine, options="models: {unknown: refuse}"), tmp_path) as it:
            use_lists(it.plane, e0=index("llama@1"))
            client = await it.grpc()
            call = await client.ask(request("lama"))
            assert (call.status, call.value("grpc-message")) == (5, TEXT + WHERE)
            assert (await client.ask(request("llama"))).status == 0
        assert len(engine.calls) == 1
        await engine.stop()

    run(scene())


def test_near_names() -> None:
    names = ["Llama-3.1-8B", "llama-3.1-70b", "qwen", "l" * 200, *(f"l{number}" for number in range(1000))]
    assert near_names("llama-3.1-8b", names)[0] == "Llama-3.1-8B"
    assert near_names("qwem", names) == ["qwen"]
    assert near_names("zzz", names) == []
    assert near_names("", names) == near_names("l" * 200, names) == []


def test_names_that_a_client_invents_cost_no_search_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Near names are looked for twenty times a second; further refusals have none. Lists are joined once."""

    async def scene() -> None:
        server = Engine()
        await server.start()
        async with stage(rules(server, options="protocol: openai\n    " + REFUSES), tmp_path) as it:
            use_lists(it.plane, e0=listing("llama", "qwen"))
            engine = it.plane.snapshot.engines["it"]
            assert engine.models is engine.models
            assert [engine.is_due("near names", 1000.0) for _ in range(25)].count(True) == 20
            monkeypatch.setitem(engine_module._MOST_IN_A_SECOND, "near names", 0)
            reply = await it.ask(chat("lama"))
            assert (reply.status, b"near names" in reply.body) == (404, False)
        server.stop()

    run(scene())
