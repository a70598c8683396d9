"""Fallbacks: which engine answers a request that the first one of its route cannot answer."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.dataplane.attempts.fallback_handler import FallbackHandler
from gateway.observability.metrics import FallbackKey
from gateway.protocol.engine_load import Readiness
from tests.dataplane.generating import (
    CHAT,
    DONE,
    LAST,
    ROLE,
    STOP,
    STREAM,
    WHOLE,
    asked,
    chunk,
    event,
    http,
    token,
    writes,
)
from tests.dataplane.stage import (
    OK,
    Engine,
    ReceivedRequest,
    Reply,
    Script,
    Stage,
    answer_ok,
    get,
    post,
    run,
    stage,
    until,
)
from tests.dataplane.test_model_choice import listing
from tests.support.redis_server import RedisServer
from tests.support.shared_redis import redis_server, shared_server, stored

__all__ = ["redis_server", "shared_server"]

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
Play = Callable[[Stage, Engine, Engine], Awaitable[None]]

INFER = "/v2/models/m/infer"
TOO_LONG = b'{"error":{"message":"This model\'s maximum context length is 8 tokens.","code":"context_length_exceeded"}}'


def rules(first: str, second: str, *, fallback: str = "[second]", one: str = "", two: str = "", more: str = "") -> str:
    return f"""
version: 1
engines:
  first: {{endpoints: ['{first}'], {one}}}
  second: {{endpoints: ['{second}'], {two}}}
routes:
  - {{name: all, engine: first, fallback: {fallback}}}
{more}"""


def scene(tmp_path: Path, play: Play, script: Script | None, *, other: Script = answer_ok, **options: Any) -> None:
    """Play with a first engine that answers by this script (None: it refuses connections), and a second one."""
    settings = options.pop("settings", {})

    async def whole() -> None:
        first, second = Engine(script or answer_ok), Engine(other)
        await first.start()
        await second.start()
        if script is None:
            first.stop()
        async with stage(rules(first.url, second.url, **options), tmp_path, **settings) as it:
            await play(it, first, second)
            first.stop()
            second.stop()

    run(whole())


def count_of(it: Stage, reason: str, engine: str = "first", fallback: str = "second") -> int:
    return it.plane.metrics.fallbacks[FallbackKey("all", engine, fallback, reason)]


def from_second(reply: Reply, reason: str) -> None:
    assert reply.status == 200, reply.body
    assert reply.headers["x-pointsman-engine"] == "second"
    assert reply.headers["x-pointsman-fallback"] == reason


async def die(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
    raise ConnectionError


async def never(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
    await reader.read()
    raise ConnectionError


def test_an_engine_that_is_down(tmp_path: Path) -> None:
    """Another engine answers a request whose own refuses connections, an inference too, with the same body and id; the
    reply names the engine and the reason, and the worker counts it."""

    async def play(it: Stage, first: Engine, second: Engine) -> None:
        reply = await it.ask(post(INFER, b'{"inputs":[]}', "x-request-id: r1"))
        from_second(reply, "down")
        assert reply.headers["x-request-id"] == "r1"
        assert second.received[0].body == b'{"inputs":[]}'
        assert second.received[0].value("x-request-id") == "r1"
        assert count_of(it, "down") == 1
        assert (await it.ask(get("/v2/models/m/ready"))).headers["x-pointsman-engine"] == "second"

    scene(tmp_path, play, None)


def test_an_engine_that_answers_costs_no_fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could have another engine answer is made once there is a reason; a kept connection goes on behind it, also
    where a reply in chunks is none."""
    made: list[object] = []
    take_over = FallbackHandler.take_over

    def count(handler: FallbackHandler, *arguments: Any) -> None:
        made.append(handler)
        take_over(handler, *arguments)

    monkeypatch.setattr(FallbackHandler, "take_over", count)
    replies = [b"200 OK", b"200 OK", b"503 X", b"chunks", b"429 X", b"200 OK"]

    async def answer(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        status = replies.pop(0)
        if status == b"chunks":
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 %b\r\nContent-Length: 2\r\n\r\n{}" % status)

    async def play(it: Stage, first: Engine, second: Engine) -> None:
        client = await it.client()
        seen = []
        for _ in range(6):
            reply = await client.ask(post(INFER, b'{"inputs":[]}'))
            seen.append((reply.status, reply.headers["x-pointsman-engine"], len(made)))
        assert seen == [
            *((200, "first", 0), (200, "first", 0), (200, "second", 1)),
            *((200, "first", 2), (200, "second", 3), (200, "first", 3)),
        ]
        assert len(first.received) == 6

    scene(tmp_path, play, answer)


def test_an_engine_whose_probes_fail_is_not_asked(tmp_path: Path) -> None:
    """Where no endpoint takes requests, the fallback is asked at once; where the fallback takes none either, the first
    engine is asked as it would be without one."""

    async def play(it: Stage, first: Engine, second: Engine) -> None:
        [mine], [other] = (engine.endpoints for engine in it.plane.snapshot.engines.values())
        mine.condition = Readiness.DOWN
        from_second(await it.ask(post()), "down")
        assert it.errors() == {"no_healthy_endpoint": 1}
        assert not first.received
        mine.condition, other.condition = Readiness.UNREADY, Readiness.DOWN
        reply = await it.ask(post())
        assert (reply.status, reply.headers["x-pointsman-engine"]) == (200, "first")
        assert "x-pointsman-fallback" not in reply.headers

    scene(tmp_path, play, answer_ok)


REFUSALS = {"503": "overloaded", "429": "429"}


@pytest.mark.parametrize("status", REFUSALS)
def test_an_engine_that_refuses(tmp_path: Path, status: str) -> None:
    """A 503 or 429 of the engine goes to no client: the next engine answers, an inference too."""

    async def play(it: Stage, first: Engine, second: Engine) -> None:
        from_second(await it.ask(post(INFER)), REFUSALS[status])
        assert count_of(it, REFUSALS[status]) == 1
        assert len(first.received) == len(second.received) == 1

    scene(tmp_path, play, writes(http(int(status), b'{"error":"busy"}')))


HARMLESS = {
    "safe": ("", INFER, "first"),
    "infer": ("retry: {idempotent: infer, attempts: 0}", INFER, "second"),
    "text": ("protocol: openai, retry: {attempts: 0}", CHAT, "second"),
}


@pytest.mark.parametrize("case", HARMLESS)
@pytest.mark.parametrize("script, reason", [(writes(http(500, b"{}")), "5xx"), (die, "down"), (never, "deadline")])
def test_what_may_have_run(tmp_path: Path, case: str, script: Script, reason: str) -> None:
    """After a 500, a lost connection or a timeout, an inference goes on only where the rules say that it may run twice;
    a generation of which no byte has come may."""
    options, path, engine = HARMLESS[case]

    async def play(it: Stage, first: Engine, second: Engine) -> None:
        body = asked(CHAT, stream=False) if path == CHAT else b"{}"
        reply = await it.ask(post(path, body))
        assert reply.headers["x-pointsman-engine"] == engine
        assert reply.status == 200 or engine == "first"
        assert len(second.received) == (engine == "second") == count_of(it, reason)

    timeout = "try_timeout: 50ms" if script is never else ""
    two = "protocol: openai" if path == CHAT else ""
    other = writes(http(200, WHOLE)) if path == CHAT else answer_ok
    scene(tmp_path, play, script, other=other, one=", ".join(filter(None, (options, timeout))), two=two)


def test_a_sequence_stays(tmp_path: Path) -> None:
    """A request of a sequence goes to no other engine, though its own refuses connections."""

    async def play(it: Stage, first: Engine, second: Engine) -> None:
        for body in (
            b'{"parameters":{"sequence_id":7,"sequence_start":true}}',
            b'{"parameters":{"sequence_id":7}}',
            b'{"parameters":{"sequence\\u005fid":7}}',
        ):
            reply = await it.ask(post(INFER, body))
            assert (reply.status, reply.headers["x-pointsman-engine"]) == (502, "first")
        assert not second.received

    scene(tmp_path, play, None, one="breaker: {failures: 0}")


def test_reasons_are_those_of_the_rules(tmp_path: Path) -> None:
    """`on:` says which reasons lead to which engine, and `model:` the model's name there; a refusal for another reason
    goes to the client as it is."""
    fallback = "[{engine: second, model: wide, on: context_length}]"
    seven = b'{"error":"seven"}'
    replies = {b"long": http(400, TOO_LONG), b"wrong": http(400, seven), b"busy": http(429, seven, b"Retry-After: 7")}

    async def answer(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        writer.write(next(reply for word, reply in replies.items() if word in received.body))

    async def play(it: Stage, first: Engine, second: Engine) -> None:
        from_second(await it.ask(post(CHAT, asked(CHAT, stream=False, user="long"))), "context_length")
        assert json.loads(second.received[0].body)["model"] == "wide"
        assert json.loads(first.received[0].body)["model"] == "narrow"
        reply = await it.ask(post(CHAT, asked(CHAT, stream=False, user="wrong")))
        assert (reply.status, reply.body) == (400, seven)
        reply = await it.ask(post(CHAT, asked(CHAT, stream=False, user="busy")))
        assert (reply.status, reply.body, reply.headers["retry-after"]) == (429, seven, "7")

    openai = "protocol: openai"
    other = writes(http(200, WHOLE))
    scene(tmp_path, play, answer, other=other, fallback=f"{fallback}, model: narrow", one=openai, two=openai)


def test_long_refusals_pass(tmp_path: Path) -> None:
    """A refusal of more than 64 KiB, chunked or not, reaches the client whole."""
    text = b'{"error":"' + b"x" * 200_000 + b'"}'
    framed = b"HTTP/1.1 400 No\r\nTransfer-Encoding: chunked\r\n\r\n"

    for reply_bytes in (
        http(400, text),
        framed + b"".join(chunk(text[at : at + 9000]) for at in range(0, len(text), 9000)) + LAST,
    ):

        async def play(it: Stage, first: Engine, second: Engine) -> None:
            reply = await it.ask(post())
            assert (reply.status, reply.body) == (400, text)

        scene(tmp_path, play, writes(reply_bytes))


def test_engines_are_asked_in_order(tmp_path: Path) -> None:
    """The first fallback for the reason is asked, then the next one for its own failure; where all fail, the client
    gets the last one's reply."""

    async def whole() -> None:
        engines = [Engine(writes(http(503, b'{"error":"%d"}' % number))) for number in range(4)]
        for engine in engines:
            await engine.start()
        named = "\n".join(f"  e{number}: {{endpoints: ['{engine.url}']}}" for number, engine in enumerate(engines))
        fallback = "[{engine: e1, on: deadline}, {engine: e2, on: overloaded}, {engine: e3, on: [5xx, 429]}]"
        text = f"version: 1\nengines:\n{named}\nroutes:\n  - {{name: all, engine: e0, fallback: {fallback}}}\n"
        async with stage(text, tmp_path) as it:
            reply = await it.ask(post())
            assert (reply.status, reply.body) == (503, b'{"error":"3"}')
            assert reply.headers["x-pointsman-fallback"] == "5xx"
            assert [len(engine.received) for engine in engines] == [1, 0, 1, 1]
            assert count_of(it, "overloaded", "e0", "e2") == count_of(it, "5xx", "e2", "e3") == 1
        for engine in engines:
            engine.stop()

    run(whole())


def test_a_stream_before_its_first_token(tmp_path: Path) -> None:
    """A stream that breaks off before the first token comes whole from the fallback; after it, the reply is the first
    engine's to the end."""
    good = writes(STREAM + chunk(ROLE + token("b")), chunk(STOP + DONE) + LAST)
    openai = "protocol: openai, retry: {attempts: 0}"

    async def early(it: Stage, first: Engine, second: Engine) -> None:
        reply = await it.ask(post(CHAT, asked(CHAT)))
        from_second(reply, "down")
        assert b'"b"' in reply.body and reply.body.endswith(DONE)

    async def late(it: Stage, first: Engine, second: Engine) -> None:
        client = await it.client()
        await client.send(post(CHAT, asked(CHAT)))
        status, headers = await client.head()
        assert (status, headers["x-pointsman-engine"]) == (200, "first")
        rest = await client.reader.read()
        assert b'"a"' in rest and b'"error"' in rest
        assert not second.received

    scene(tmp_path, early, writes(STREAM + chunk(ROLE), then="reset"), other=good, one=openai, two=openai)
    scene(tmp_path, late, writes(STREAM + chunk(ROLE + token("a")), then="reset"), other=good, one=openai, two=openai)


ERRORS = {
    "context_length": {"object": "error", "message": "longer than the model's context length (8)", "code": 400},
    "5xx": {"message": "out of memory", "code": None},
    "429": {"message": "slow down", "code": "429"},
}


@pytest.mark.parametrize("reason", ERRORS)
def test_an_error_in_place_of_the_first_token(tmp_path: Path, reason: str) -> None:
    """An engine that reports its failure as the first event of a stream has answered nothing: the fallback does,
    whether the role came before or not. Without a fallback for the reason the client gets the event."""
    error, good = event({"error": ERRORS[reason]}), STREAM + chunk(ROLE + token("b")) + chunk(STOP + DONE) + LAST
    openai = "protocol: openai, retry: {attempts: 0}"

    async def falls_back(it: Stage, first: Engine, second: Engine) -> None:
        reply = await it.ask(post(CHAT, asked(CHAT)))
        from_second(reply, reason)
        assert b"error" not in reply.body

    async def stays(it: Stage, first: Engine, second: Engine) -> None:
        reply = await it.ask(post(CHAT, asked(CHAT)))
        assert (reply.status, reply.headers["x-pointsman-engine"]) == (200, "first")
        assert reply.body == ROLE + error + DONE

    fallback = f"{{engine: second, on: '{reason}'}}"
    for before in (b"", ROLE):
        script = writes(STREAM + chunk(before + error) + chunk(DONE) + LAST)
        scene(tmp_path, falls_back, script, other=writes(good), fallback=fallback, one=openai, two=openai)
    scene(tmp_path, stays, script, fallback="{engine: second, on: down}", one=openai, two=openai)


def test_the_fallback_may_speak_another_protocol(tmp_path: Path) -> None:
    """A completion for an OpenAI engine that is overloaded goes translated to one with V2's generate, and back."""
    generated = http(200, b'{"model_name":"small","text_output":"hello"}')
    metadata = json.dumps(
        {
            "name": "small",
            "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1]}],
            "outputs": [{"name": "text_output", "datatype": "BYTES", "shape": [1]}],
        }
    ).encode()

    async def generate(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        writer.write(generated if received.line.startswith("POST") else http(200, metadata))

    async def play(it: Stage, first: Engine, second: Engine) -> None:
        reply = await it.ask(post("/v1/completions", b'{"model": "m", "prompt": "hi"}'))
        from_second(reply, "overloaded")
        assert json.loads(reply.body)["choices"][0]["text"] == "hello"
        assert second.received[-1].line == "POST /v2/models/small/generate HTTP/1.1"

    scene(
        tmp_path,
        play,
        writes(http(503, b"{}")),
        other=generate,
        fallback="[{engine: second, model: small}]",
        one="protocol: openai, retry: {attempts: 0}",
    )


def test_the_fallback_may_speak_anthropics_api(tmp_path: Path) -> None:
    """A chat for an OpenAI engine that is down goes to one that has Anthropic's messages alone, and back as a chat."""
    message = {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "hello"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }

    async def play(it: Stage, first: Engine, second: Engine) -> None:
        reply = await it.ask(post(CHAT, asked(CHAT, stream=False)))
        from_second(reply, "down")
        assert json.loads(reply.body)["choices"][0]["message"]["content"] == "hello"
        assert second.received[0].line == "POST /v1/messages HTTP/1.1"

    other = writes(http(200, json.dumps(message).encode()))
    scene(tmp_path, play, None, other=other, one="protocol: openai", two="protocol: openai, dialects: [messages]")


def test_hidden_names_stay_hidden(tmp_path: Path) -> None:
    """With --no-name-decision no reply says that another engine has answered."""

    async def play(it: Stage, first: Engine, second: Engine) -> None:
        reply = await it.ask(post())
        assert reply.status == 200 and len(second.received) == 1
        assert not [name for name in reply.headers if name.startswith("x-pointsman")]

    scene(tmp_path, play, writes(http(503, b"{}")), settings={"name_decision": False})


def test_a_translated_request_falls_back(tmp_path: Path) -> None:
    """A request in Anthropic's API, translated for an OpenAI engine that is down or says that the prompt is too long,
    goes to another one."""
    path = "/v1/messages"

    async def play(it: Stage, first: Engine, second: Engine) -> None:
        reply = await it.ask(post(path, asked(path, stream=False)))
        from_second(reply, "down" if first.num_connections == 0 else "context_length")
        assert json.loads(reply.body)["content"][0]["text"] == "hello"

    openai, fallback = "protocol: openai, retry: {attempts: 0}", "[{engine: second, on: [down, context_length]}]"
    for script in (None, writes(http(400, TOO_LONG))):
        scene(tmp_path, play, script, other=writes(http(200, WHOLE)), fallback=fallback, one=openai, two=openai)


def test_a_body_that_is_too_long_to_be_held_stays(tmp_path: Path) -> None:
    """A body longer than --retry-body-bytes goes on where nothing of it was dropped, and is not sent again where some
    was."""

    async def play(it: Stage, first: Engine, second: Engine) -> None:
        reply = await it.ask(post(INFER, b"x" * 5000))
        assert reply.headers["x-pointsman-engine"] == "first"
        assert reply.status == 503 and not second.received

    scene(tmp_path, play, writes(http(503, b"{}")), settings={"limits": {"retry_body_bytes": 1000}})


def test_a_body_in_pieces(tmp_path: Path) -> None:
    """A body that comes slowly, of known length or in chunks, reaches the fallback of an engine that refuses
    connections; one beyond --retry-body-bytes does where the engine is known to be down."""
    chunked = post(INFER, b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    halves = b'{"inputs"', b":[]}"

    async def play(it: Stage, first: Engine, second: Engine) -> None:
        known = post(INFER, b"".join(halves))[: -len(halves[1])], halves[1]
        unknown = chunked + chunk(halves[0]), chunk(halves[1]) + LAST
        for number, pieces in enumerate((known, unknown), 1):
            client = await it.client()
            for piece in pieces:
                await client.send(piece)
                await until(lambda number=number: it.plane.held.total or len(second.received) == number)
            from_second(await client.reply(), "down")
            assert second.received[-1].body == b"".join(halves)
        client = await it.client()
        await client.send(known[0])
        await until(lambda: it.plane.held.total)
        client.close()
        await until(lambda: it.errors().get("client_gone"))
        it.plane.snapshot.engines["first"].endpoints[0].condition = Readiness.DOWN
        long = b"{}" + b"x" * 100_000
        client, sent = await it.client(), post(INFER, long, "Inference-Header-Content-Length: 2")
        await client.send(sent[:-100_000])
        await until(lambda: it.plane.held.total)
        from_second(await client.ask(sent[-100_000:]), "down")
        assert second.received[-1].body == long

    limits = {"limits": {"retry_body_bytes": 1000}}
    scene(tmp_path, play, None, one="breaker: {failures: 0}, retry: {attempts: 0}", settings=limits)


def test_limits_count_a_request_once(tmp_path: Path) -> None:
    """A request that two engines get takes one request of a rate, one slot, and its slot is free afterwards."""
    more = "limits:\n  - {name: few, requests_per_second: 0.001, burst: 2}\n  - {name: slots, concurrency: 1}\n"

    async def play(it: Stage, first: Engine, second: Engine) -> None:
        for _ in range(2):
            from_second(await it.ask(post()), "overloaded")
        reply = await it.ask(post())
        assert (reply.status, reply.reason) == (429, "rate_limited")

    scene(tmp_path, play, writes(http(503, b"{}")), more=more)


def test_a_request_that_was_not_counted_is(tmp_path: Path) -> None:
    """A request for which no engine was asked before its fallback counts there."""
    more = "limits:\n  - {name: few, requests_per_second: 0.001, burst: 1}\n"

    async def play(it: Stage, first: Engine, second: Engine) -> None:
        it.plane.snapshot.engines["first"].endpoints[0].condition = Readiness.DOWN
        from_second(await it.ask(post()), "down")
        assert (await it.ask(post())).reason == "rate_limited"

    scene(tmp_path, play, answer_ok, more=more)


def test_an_arm_that_falls_back_has_failed(tmp_path: Path) -> None:
    """An experiment counts a request that another engine has answered as a failure of its arm, and feedback on the
    answer as nobody's."""

    async def whole(status: int | None) -> None:
        first, second = Engine(writes(http(status or 500, b"{}"))), Engine()
        await first.start()
        await second.start()
        text = f"""
version: 1
engines:
  first: {{endpoints: ['{first.url}']}}
  second: {{endpoints: ['{second.url}']}}
experiments:
  trial: {{unit: request, arms: [{{name: a, engine: first, weight: 1, fallback: second}}]}}
routes:
  - {{name: all, experiment: trial}}
"""
        async with stage(text, tmp_path) as it:
            if status is None:
                it.plane.snapshot.engines["first"].endpoints[0].condition = Readiness.DOWN
            reply = await it.ask(post(INFER, b"{}", "x-request-id: r9"))
            assert (reply.status, reply.headers["x-pointsman-engine"]) == (200, "second")
            [counts] = it.plane.metrics.arms.counted().values()
            assert (sum(counts.requests), sum(counts.errors), sum(counts.latency.count)) == (1, 1, 0)
            rating = await it.ask(post("/feedback", b'{"request_id": "r9", "name": "stars", "value": 5}'))
            assert rating.status == 404
        first.stop()
        second.stop()

    for status in (503, 429, None):
        run(whole(status))


def test_a_client_that_leaves_ends_the_fallback(tmp_path: Path) -> None:
    """A client that is gone while the fallback works ends that engine's request."""

    async def play(it: Stage, first: Engine, second: Engine) -> None:
        client = await it.client()
        await client.send(post())
        await until(lambda: second.received)
        client.close()
        await until(lambda: not second.num_open)
        assert it.errors() == {"client_gone": 1, "upstream_connect": 1}

    scene(tmp_path, play, None, other=never, one="retry: {attempts: 0}")


def test_kept_connections_go_on(tmp_path: Path) -> None:
    """Requests that fell back leave their connection as they found it: one client sends many, one after another."""

    async def play(it: Stage, first: Engine, second: Engine) -> None:
        client = await it.client()
        for _ in range(5):
            from_second(await client.ask(post()), "overloaded")
        assert first.num_connections == second.num_connections == 1
        assert OK.endswith((await client.ask(post())).body)

    scene(tmp_path, play, writes(http(503, b"{}")))


def test_a_shadow_gets_what_the_client_got(tmp_path: Path) -> None:
    """A mirrored request that falls back is captured once, with the fallback's reply."""
    captures: list[tuple[bytes, bytes]] = []

    async def play(it: Stage, first: Engine, second: Engine) -> None:
        it.plane.tap.is_open_for = lambda route, most: True  # type: ignore[method-assign]
        it.plane.tap.give = lambda facts, request, answer, most: captures.append((b"".join(request), b"".join(answer)))  # type: ignore[method-assign]
        from_second(await it.ask(post(INFER, b'{"inputs":[]}')), "overloaded")
        [(request, answer)] = captures
        assert request == b'{"inputs":[]}'
        assert answer.startswith(b"HTTP/1.1 200") and b"x-pointsman-fallback: overloaded" in answer

    shadow = "[second], shadow: {engine: second, sample: 100%}"
    scene(tmp_path, play, writes(http(503, b"{}")), fallback=shadow)


def test_a_model_that_no_endpoint_lists(tmp_path: Path) -> None:
    """A model that the gateway refuses, since the engine lists others, goes to a fallback for model_not_found."""

    async def play(it: Stage, first: Engine, second: Engine) -> None:
        it.plane.update_health({}, {("first", first.url): listing("other")})
        from_second(await it.ask(post(CHAT, asked(CHAT, stream=False))), "model_not_found")
        assert not first.received

    openai, fallback = "protocol: openai", "{engine: second, on: model_not_found}"
    one = f"{openai}, models: {{unknown: refuse}}"
    scene(tmp_path, play, answer_ok, other=writes(http(200, WHOLE)), fallback=fallback, one=one, two=openai)


def test_a_conversation_goes_on_at_the_fallback(tmp_path: Path, redis_server: RedisServer) -> None:
    """A turn that falls back is completed with the earlier ones, and stored with the fallback's answer."""
    openai = "protocol: openai, retry: {attempts: 0}"
    fallback = "second, session: {history: true}"

    async def whole() -> None:
        first, second = Engine(writes(http(200, WHOLE))), Engine(writes(http(200, WHOLE)))
        await first.start()
        await second.start()
        text = rules(first.url, second.url, fallback=fallback, one=openai, two=openai)
        text += "identity: {trust_header: true}\n"
        async with stored(redis_server) as store, stage(text, tmp_path, store=store) as it:
            body = asked(CHAT, stream=False)
            reply = await it.ask(post(CHAT, body, "x-session-id: s"))
            assert (reply.status, reply.headers["x-pointsman-engine"]) == (200, "first")
            first.script = writes(http(503, b"{}"))
            from_second(await it.ask(post(CHAT, body, "x-session-id: s")), "overloaded")
            from_second(await it.ask(post(CHAT, body, "x-session-id: s")), "overloaded")
        turns = [[turn["role"] for turn in json.loads(each.body)["messages"]] for each in second.received]
        assert turns == [["user", "assistant"] * number + ["user"] for number in (1, 2)]
        first.stop()
        second.stop()

    run(whole())
