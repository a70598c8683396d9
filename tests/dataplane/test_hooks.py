"""Python hooks of routes: what they see, change, refuse and answer; their limits and failures."""

from __future__ import annotations

import asyncio
import json
import textwrap
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.dataplane.experiments import arm
from tests.dataplane.stage import Engine, ReceivedRequest, Stage, get, load, post, run, stage, until

Play = Callable[[Stage, Engine, Engine], Coroutine[Any, Any, None]]
INFER = "/v2/models/m/infer"
CHAT = "/v1/chat/completions"

EXPERIMENT = """\
experiments:
  x: {unit: request, arms: [{name: old, engine: it, weight: 1}, {name: new, engine: it, weight: 1}]}
"""
# What all hooks of these tests import.
HEAD = """
import asyncio, time
from gateway.hooks import Change, HookReply, HookRequest, Reject, ReplyChange, Respond
seen = []
"""


def scene(
    tmp_path: Path,
    play: Play,
    code: str,
    hooks: str = "[h:Hook]",
    *,
    keys: str = "engine: it",
    more: str = "",
    options: str = "",
    **settings: Any,
) -> None:
    async def whole() -> None:
        it, other = Engine(), Engine()
        await it.start()
        await other.start()
        (tmp_path / "h.py").write_text(HEAD + textwrap.dedent(code))
        text = f"""\
version: 1
engines:
  it: {{endpoints: ['{it.url}']{options}}}
  other: {{endpoints: ['{other.url}']}}
routes:
  - {{name: hooked, {keys}, hooks: {hooks}}}
{more}"""
        async with stage(text, tmp_path, **settings) as stage_:
            await play(stage_, it, other)
            it.stop()
            other.stop()

    run(whole())


def answering(body: bytes, kind: str = "application/json", status: int = 200) -> Any:
    async def answer(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        head = f"HTTP/1.1 {status} OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)

    return answer


MODES = {
    "thread": ("", ""),
    "async": ("async ", ""),
    "inline": ("", "inline = True"),
}


@pytest.mark.parametrize("mode", MODES)
def test_a_hook_sees_the_request_and_changes_it(tmp_path: Path, mode: str) -> None:
    """Headers are set and removed, fields of the JSON body replaced; the next hook sees the change."""
    is_async, inline = MODES[mode]
    code = f"""
    class Hook:
        {inline}
        {is_async}def on_request(self, request):
            assert (request.route, request.engine, request.model) == ("hooked", "it", "m")
            assert (request.method, request.path, request.operation) == ("POST", "{INFER}", "infer")
            assert request.headers["x-who"] == "ann" and request.json == {{"id": "1", "inputs": []}}
            assert request.request_id and request.peer == "127.0.0.1" and request.tenant == ""
            return Change(headers={{"X-New": "1", "x-who": None}}, fields={{"id": "2"}}, remove=["parameters"])
    class Next:
        def on_request(self, request):
            assert request.json["id"] == "2" and request.headers["x-new"] == "1" and "x-who" not in request.headers
    """

    async def play(it: Stage, engine: Engine, other: Engine) -> None:
        reply = await it.ask(post(INFER, b'{"id":"1","inputs":[]}', "x-who: ann", "x-kept: yes"))
        assert (reply.status, reply.body) == (200, b'{"ok":true}'), reply.body
        (received,) = engine.received
        assert json.loads(received.body) == {"id": "2", "inputs": []}
        assert received.value("content-length") == str(len(received.body))
        assert (received.value("x-new"), received.value("x-who"), received.value("x-kept")) == ("1", None, "yes")
        assert reply.headers["x-pointsman-route"] == "hooked"

    scene(tmp_path, play, code, "[h:Hook, h:Next]")


def test_a_plain_function_is_a_hook_and_an_unchanged_request_passes_to_the_byte(tmp_path: Path) -> None:
    """Binary tensors, chunked bodies and unknown fields pass as they came."""
    code = """
    def look(request):
        seen.append(request.json)
    """

    async def play(it: Stage, engine: Engine, other: Engine) -> None:
        body = b'{"inputs":[]}' + b"\x00\x01"
        reply = await it.ask(post(INFER, body, "Inference-Header-Content-Length: 13"))
        assert reply.status == 200 and engine.received[0].body == body
        chunked = f"POST {INFER} HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n"
        assert (await it.ask(chunked.encode())).status == 200
        assert engine.received[1].body == b"{}"
        assert (await it.ask(get("/v2/models/m"))).status == 200

    scene(tmp_path, play, code, "[h:look]")


def test_binary_tensors_stay_behind_changed_json(tmp_path: Path) -> None:
    """The length of the JSON is written anew."""
    code = """
    class Hook:
        def on_request(self, request):
            return Change(fields={"id": "a longer id"})
    """

    async def play(it: Stage, engine: Engine, other: Engine) -> None:
        await it.ask(post(INFER, b'{"inputs":[]}\x00\x01', "Inference-Header-Content-Length: 13"))
        (received,) = engine.received
        length = int(received.value("inference-header-content-length") or 0)
        assert json.loads(received.body[:length]) == {"inputs": [], "id": "a longer id"}
        assert received.body[length:] == b"\x00\x01"

    scene(tmp_path, play, code)


ENDINGS = [
    ("return Reject(401, 'who are you', headers={'www-authenticate': 'Basic'})", 401, b'{"error":"who are you"}'),
    ("return Reject(403, 'not you')", 403, b'{"error":"not you"}'),
    ("return Respond({'cached': True})", 200, b'{"cached":true}'),
    ("return Respond(b'no', status=418, content_type='text/plain')", 418, b"no"),
]


@pytest.mark.parametrize("ending, status, body", ENDINGS)
@pytest.mark.parametrize("mode", MODES)
def test_a_hook_rejects_or_answers(tmp_path: Path, mode: str, ending: str, status: int, body: bytes) -> None:
    """No engine gets the request; an arm does not count it, and errors have their kind."""
    is_async, inline = MODES[mode]
    code = f"""
    class Hook:
        {inline}
        {is_async}def on_request(self, request):
            {ending}
    """
    more = EXPERIMENT

    async def play(it: Stage, engine: Engine, other: Engine) -> None:
        client = await it.client()
        for _ in range(2):  # the connection goes on
            reply = await client.ask(post(INFER))
            assert (reply.status, reply.body) == (status, body)
        assert not engine.received
        assert sum(sum(arm(it.plane, each).requests) for each in ("old", "new")) == 0
        kinds = [arm(it.plane, each).kinds for each in ("old", "new")]
        assert sum(sum(each.values()) for each in kinds) == 2

    scene(tmp_path, play, code, keys="experiment: x", more=more)


def test_a_hook_routes_elsewhere(tmp_path: Path) -> None:
    """To another engine and model of the rules; an experiment does not count it. An unknown engine is a failure."""
    code = """
    def choose(request):
        name = request.headers.get("x-to")
        return Change(engine=name, model=request.headers.get("x-model")) if name else None
    """
    more = EXPERIMENT

    async def play(it: Stage, engine: Engine, other: Engine) -> None:
        reply = await it.ask(post(INFER, b"{}", "x-to: other", "x-model: n"))
        assert (reply.status, reply.headers["x-pointsman-engine"]) == (200, "other")
        assert other.received[0].line == "POST /v2/models/n/infer HTTP/1.1"
        assert "x-pointsman-arm" not in reply.headers
        reply = await it.ask(post(INFER, b"{}", "x-to: nowhere"))
        assert (reply.status, reply.reason) == (500, "hook_failed")
        reply = await it.ask(post(INFER))
        assert reply.headers["x-pointsman-arm"] in ("old", "new")
        assert sum(sum(arm(it.plane, each).requests) for each in ("old", "new")) == 1

    scene(tmp_path, play, code, "[h:choose]", keys="experiment: x", more=more)


FAILURES = [
    "raise ValueError('secret')",
    "return 3",
    "return Change(headers={'content-length': '1'})",
    "return Change(headers={'x': 'a\\r\\nb'})",
    "return Change(body=[object()])",
    "return Change(fields={'model': 'other'})",
    "return Reject(200, 'fine')",
    "return Respond(object())",
    "return Respond(b'', content_type='a\\r\\nb: c')",
]


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("mode", MODES)
def test_a_failing_hook_refuses_the_request(tmp_path: Path, mode: str, failure: str) -> None:
    """Without its words; with `on_failure: continue` the request goes on as if there were no such hook."""
    is_async, inline = MODES[mode]
    code = f"""
    class Hook:
        {inline}
        {is_async}def on_request(self, request):
            {failure}
    """

    async def play(it: Stage, engine: Engine, other: Engine) -> None:
        reply = await it.ask(post(INFER))
        assert (reply.status, reply.reason) == (500, "hook_failed") and b"secret" not in reply.body
        assert it.errors()["hook_failed"] == 1 and not engine.received
        rules = (tmp_path / "rules.yaml").read_text().replace("[h:Hook]", "[{use: h:Hook, on_failure: continue}]")
        it.plane.use_rules(load(rules, tmp_path), 2)
        assert (await it.ask(post(INFER))).status == 200
        assert len(engine.received) == 1

    scene(tmp_path, play, code)


@pytest.mark.parametrize("body", ["await asyncio.sleep(600)", "time.sleep(1)"])
def test_a_slow_hook_is_a_failing_one(tmp_path: Path, body: str) -> None:
    """One that waits blocks no other request, in a thread or as a coroutine."""
    word = "async " if "await" in body else ""
    code = f"""
    class Hook:
        {word}def on_request(self, request):
            if "x-slow" in request.headers:
                {body}
    """

    async def play(it: Stage, engine: Engine, other: Engine) -> None:
        slow = asyncio.create_task(it.ask(post(INFER, b"{}", "x-slow: 1")))
        quick = [await it.ask(post(INFER)) for _ in range(3)]
        assert {reply.status for reply in quick} == {200}
        reply = await slow
        assert (reply.status, reply.reason) == (500, "hook_failed")

    scene(tmp_path, play, code, "[{use: h:Hook, timeout: 900ms}]")


def test_a_client_that_leaves_ends_its_hook(tmp_path: Path) -> None:
    """Its coroutine is cancelled; `on_error` learns why."""
    code = """
    class Hook:
        async def on_request(self, request):
            seen.append("began")
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
        def on_error(self, request, failure):
            seen.append(failure.reason)
    """

    async def play(it: Stage, engine: Engine, other: Engine) -> None:
        client = await it.client()
        await client.send(post(INFER))
        await until(lambda: _seen() == ["began"])
        client.close()
        await until(lambda: sorted(_seen()) == ["began", "cancelled", "client_gone"])
        assert not engine.received

    scene(tmp_path, play, code, "[{use: h:Hook, timeout: 600s}]")


def _seen() -> list[Any]:
    """What the module of the hooks has noted."""
    from gateway.hooks import loader

    (module,) = [module for (file, _), module in loader._modules.items() if Path(file).exists()][-1:]
    found: list[Any] = module.__dict__["seen"]
    return found


def test_replies_pass_as_they_come_and_are_reported_at_their_end(tmp_path: Path) -> None:
    """Where no hook reads them: with status, headers, size and time."""
    code = """
    class Hook:
        def on_request(self, request):
            request.state["mark"] = 7
        def on_reply(self, request, reply):
            kind = reply.headers["content-type"]
            seen.append((request.state["mark"], reply.status, kind, reply.body, reply.num_bytes))
    """

    async def play(it: Stage, engine: Engine, other: Engine) -> None:
        reply = await it.ask(post(INFER))
        assert reply.body == b'{"ok":true}'
        await until(lambda: _seen() == [(7, 200, "application/json", None, 11)])

    scene(tmp_path, play, code)


def test_a_hook_reads_and_changes_replies(tmp_path: Path) -> None:
    """Status, headers and body; a failure refuses the reply."""
    code = """
    class Hook:
        reads_reply = True
        async def on_reply(self, request, reply):
            assert isinstance(reply, HookReply) and not reply.is_stream
            if "x-fail" in request.headers:
                raise ValueError("secret")
            if "x-wrong" in request.headers:
                return 3 if request.headers["x-wrong"] == "3" else ReplyChange(body=object())
            return ReplyChange(status=201, headers={"x-added": "1"}, body={**reply.json, "seen": True})
    """

    async def play(it: Stage, engine: Engine, other: Engine) -> None:
        client = await it.client()
        for _ in range(2):
            reply = await client.ask(post(INFER, b"{}", "accept-encoding: gzip"))
            assert (reply.status, json.loads(reply.body)) == (201, {"ok": True, "seen": True})
            assert reply.headers["x-added"] == "1" and reply.headers["x-pointsman-engine"] == "it"
        assert engine.received[0].value("accept-encoding") is None
        for fails in ("x-fail: 1", "x-wrong: 3", "x-wrong: 4"):
            reply = await client.ask(post(INFER, b"{}", fails))
            assert (reply.status, reply.reason) == (500, "hook_failed") and b"secret" not in reply.body

    scene(tmp_path, play, code)


EVENTS = [b'data: {"a":1}\n\n', b'data: {"a":2}\n\n', b"data: [DONE]\n\n"]


async def stream(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for event in EVENTS:
        writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        await writer.drain()
    writer.write(b"0\r\n\r\n")


@pytest.mark.parametrize("mode", MODES)
def test_streams_pass_chunk_hooks_in_order(tmp_path: Path, mode: str) -> None:
    """Each piece may be replaced; `on_reply` gets the whole at the end where it reads replies."""
    is_async, inline = MODES[mode]
    code = f"""
    class Hook:
        {inline}
        reads_reply = True
        {is_async}def on_chunk(self, request, chunk):
            return chunk.replace(b'"a"', b'"b"')
        def on_reply(self, request, reply):
            seen.append((reply.is_stream, reply.body))
    """

    async def play(it: Stage, engine: Engine, other: Engine) -> None:
        engine.script = stream
        client = await it.client()
        for _ in range(2):
            reply = await client.ask(post("/v2/models/m/generate_stream"))
            assert reply.body == b"".join(EVENTS).replace(b'"a"', b'"b"')
        await until(lambda: _seen() == [(True, b"".join(EVENTS))] * 2)
        engine.script = answering(b"{}")
        assert (await client.ask(post(INFER))).body == b"{}"

    scene(tmp_path, play, code)


def test_a_failing_chunk_hook_breaks_the_stream_off(tmp_path: Path) -> None:
    """The engine's reply is ended too, and the client sees that it is not whole."""
    code = """
    class Hook:
        async def on_chunk(self, request, chunk):
            raise ValueError("no")
    """

    async def play(it: Stage, engine: Engine, other: Engine) -> None:
        engine.script = stream
        client = await it.client()
        await client.send(post("/v2/models/m/generate_stream"))
        assert (await client.head())[0] == 200
        assert b"hook of the route failed" in await client.reader.read()

    scene(tmp_path, play, code)


def test_generations_pass_hooks_before_their_model_is_renamed(tmp_path: Path) -> None:
    """OpenAI's API: a hook sees the client's model, and may send the request to another one; errors have its shape."""
    code = """
    class Hook:
        def on_request(self, request):
            assert request.api == "chat" and request.protocol == "openai" and request.model == "c"
            assert request.json["model"] == "c"
            if "secret" in str(request.json):
                return Reject(400, "no secrets")
            messages = [{**each, "content": each["content"].upper()} for each in request.json["messages"]]
            model = request.headers.get("x-model")
            return Change(fields={"messages": messages}, model=model)
    """

    def chat(text: str, *fields: str) -> bytes:
        body = {"model": "c", "messages": [{"role": "user", "content": text}]}
        return post(CHAT, json.dumps(body).encode(), *fields)

    async def play(it: Stage, engine: Engine, other: Engine) -> None:
        reply = await it.ask(chat("hello"))
        assert reply.status == 200, reply.body
        sent = json.loads(engine.received[0].body)
        assert sent == {"model": "real", "messages": [{"role": "user", "content": "HELLO"}]}
        await it.ask(chat("hello", "x-model: better"))
        assert json.loads(engine.received[1].body)["model"] == "better"
        reply = await it.ask(chat("secret"))
        assert (reply.status, json.loads(reply.body)["error"]["message"]) == (400, "no secrets")

    scene(tmp_path, play, code, keys="engine: it, model: real", options=", protocol: openai")


def test_a_hook_is_a_class_with_options_or_an_object(tmp_path: Path) -> None:
    """Options are keyword arguments; one object serves all requests, over changes of the rules."""
    code = """
    class Hook:
        def __init__(self, name, mark="x"):
            self.name, self.mark, self.number = name, mark, 0
        inline = True
        def on_request(self, request):
            self.number += 1
            return Change(headers={"x-" + self.name: self.mark + str(self.number)})
    it = Hook("object")
    """

    async def play(it: Stage, engine: Engine, other: Engine) -> None:
        await it.ask(post(INFER))
        it.plane.use_rules(load((tmp_path / "rules.yaml").read_text() + "# changed\n", tmp_path), 2)
        await it.ask(post(INFER))
        found = [(received.value("x-class"), received.value("x-object")) for received in engine.received]
        assert found == [("y1", "x1"), ("y2", "x2")]

    scene(tmp_path, play, code, "[{use: h:Hook, options: {name: class, mark: y}}, h:it]")


def test_hooks_stand_before_fallbacks_and_shadows(tmp_path: Path) -> None:
    """They see a request once; its fallback gets what they have changed."""
    code = """
    class Hook:
        def on_request(self, request):
            seen.append(request.engine)
            return Change(headers={"x-hooked": str(len(seen))})
    """

    async def play(it: Stage, engine: Engine, other: Engine) -> None:
        engine.script = answering(b"{}", status=503)
        reply = await it.ask(post(INFER))
        assert (reply.status, reply.headers["x-pointsman-engine"]) == (200, "other")
        assert other.received[0].value("x-hooked") == "1" and _seen() == ["it"]

    scene(tmp_path, play, code, keys="engine: it, fallback: [{engine: other, on: [5xx]}]")


def test_sessions_and_limits_hold(tmp_path: Path) -> None:
    """A rejected request takes nothing of a limit."""
    code = """
    class Hook:
        def on_request(self, request):
            return Reject(403, "no") if "x-no" in request.headers else None
    """
    more = "limits: [{name: few, routes: hooked, requests_per_second: 0.001, burst: 1}]"

    async def play(it: Stage, engine: Engine, other: Engine) -> None:
        assert (await it.ask(post(INFER, b"{}", "x-no: 1"))).status == 403
        assert (await it.ask(post(INFER, b"{}", "x-session-id: s"))).status == 200
        assert (await it.ask(post(INFER, b"{}", "x-session-id: s"))).status == 429

    scene(tmp_path, play, code, more=more)


def test_stuck_threads_refuse_requests_and_do_not_keep_a_process(tmp_path: Path) -> None:
    """With all threads busy, further calls wait within their limit; what is cancelled is never called."""
    from gateway.hooks.threads import HookThreads

    async def whole() -> None:
        threads, calls, gate = HookThreads(2), [], threading.Event()

        def block(number: int) -> int:
            calls.append(number)
            gate.wait()
            return number

        futures = [threads.call(block, (number,)) for number in range(4)]
        await until(lambda: sorted(calls) == [0, 1])
        futures[2].cancel()
        gate.set()
        assert await asyncio.gather(futures[0], futures[1], futures[3]) == [0, 1, 3]
        assert 2 not in calls
        assert all(each.daemon for each in threading.enumerate() if each.name.startswith("hook-"))

        def stops() -> None:
            raise StopIteration

        with pytest.raises(RuntimeError, match="StopIteration"):
            await threads.call(stops, ())

    run(whole())
