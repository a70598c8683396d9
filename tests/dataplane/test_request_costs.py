"""What one request may cost: small requests that hold much are refused before the gateway builds what is in them."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.dataplane.context.interfaces import Handler
from gateway.dataplane.dispatch import model_in_body
from gateway.dataplane.dispatch.deferred_handler import in_own_turn
from gateway.protocol.json_bounds import SHORT_BYTES
from tests.dataplane.stage import Engine, run, stage

ROUTES = """  - {name: told, match: {parameter: {level: high}}, engine: it}
  - {name: text, match: {protocol: openai}, engine: chat}
  - {name: all, engine: it}
"""
CHAT, INFER = "/v1/chat/completions", "/v2/models/told/infer"


def request(path: str, body: bytes, *fields: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: a", f"content-length: {len(body)}", *fields]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def zipped(path: str, body: bytes) -> bytes:
    return request(path, gzip.compress(body), "content-encoding: gzip")


def doubled(content: bytes, key: bytes = b"model") -> bytes:
    return b'{"model":"x","a":[%b],"%b":"m"}' % (content, key)


def text(engine: Engine) -> str:
    engines = f"  it: {{endpoints: ['{engine.url}']}}\n  chat: {{endpoints: ['{engine.url}'], protocol: openai}}\n"
    return f"version: 1\nengines:\n{engines}routes:\n{ROUTES}"


BOMBS = {
    "objects and two models": (zipped(CHAT, doubled(b"{}," * 1_000_000 + b"0")), "--max-inflation-ratio"),
    "another case": (zipped(CHAT, doubled(b"0," * 2_000_000 + b"0", b"Model")), "--max-inflation-ratio"),
    "deflate": (
        request(CHAT, zlib.compress(doubled(b"{}," * 1_000_000 + b"0")), "content-encoding: deflate"),
        "--max-inflation-ratio",
    ),
    "a parameter rule": (zipped(INFER, b'{"a":[' + b"{}," * 1_000_000 + b"0]}"), "--max-inflation-ratio"),
    "plain objects": (request(CHAT, doubled(b"{}," * 300_000 + b"0")), "--max-json-values"),
    "plain objects and a parameter rule": (request(INFER, b'{"a":[' + b"{}," * 300_000 + b"0]}"), "--max-json-values"),
    "inputs": (request(INFER, b'{"inputs":[' + b'{"name":"x"},' * 10_000 + b"{}]}"), "--max-request-items"),
}


class Recorder(Handler):
    """Records what it is given."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def body_received(self, data: bytes, ended: bool) -> None:
        self.calls.append((data, ended))

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        self.calls.append(reason)

    def progress(self) -> Any:
        raise NotImplementedError


def test_a_long_body_is_read_again_in_a_turn_of_its_own(tmp_path: Path) -> None:
    """Others have a turn between the rules' reading of a long body and its handler's; a client that leaves meanwhile
    costs no second reading."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(text(engine), tmp_path) as it:
            client: Any = SimpleNamespace(plane=it.plane)
            short, long, left = Recorder(), Recorder(), Recorder()
            assert in_own_turn(client, short, SHORT_BYTES) is short
            handler = in_own_turn(client, long, SHORT_BYTES + 1)
            gone = in_own_turn(client, left, SHORT_BYTES + 1)
            for each in (handler, gone):
                each.body_received(b"a", False)
                each.body_received(b"b", True)
            gone.client_gone()
            assert not long.calls
            await asyncio.sleep(0)
            assert (long.calls, left.calls) == ([(b"a", False), (b"b", True)], ["client_gone"])
        engine.stop()

    run(scene())


@pytest.mark.parametrize("name", BOMBS)
def test_a_request_that_holds_too_much_is_refused(name: str, tmp_path: Path) -> None:
    """413, with the option that allows more; no engine gets it, and the connection serves on."""
    data, option = BOMBS[name]

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(text(engine), tmp_path) as it:
            client = await it.client()
            reply = await client.ask(data)
            assert (reply.status, reply.reason) == (413, "body_too_large")
            assert option.encode() in reply.body
            assert not engine.received
            assert (await client.ask(request(INFER, b"{}"))).status == 200
        engine.stop()

    run(scene())


def test_a_compressed_body_that_passes_is_not_inflated(tmp_path: Path) -> None:
    """A body that no rule reads reaches its engine as it is, whatever it holds."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        packed = gzip.compress(bytes(3_000_000))
        async with stage(text(engine).replace(ROUTES, "  - {name: all, engine: it}\n"), tmp_path) as it:
            reply = await it.ask(request(INFER, packed, "content-encoding: gzip"))
            assert reply.status == 200
            assert engine.received[0].body == packed
        engine.stop()

    run(scene())


@pytest.mark.parametrize(
    "limits",
    [
        {"max_inflation_ratio": 2000},
        {"max_inflation_ratio": 2000, "max_inflated_bytes": 1_500_000},
        {"max_inflated_bytes": 8 << 20},
    ],
)
def test_the_bounds_of_inflation_are_options(limits: dict[str, int], tmp_path: Path) -> None:
    """A body of text inflates up to the ratio and the length that are set."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        body = b'{"model":"m","text":"%b"}' % (b"a" * 2_000_000)
        is_allowed = limits == {"max_inflation_ratio": 2000}
        async with stage(text(engine), tmp_path, limits=limits) as it:
            assert (await it.ask(zipped(CHAT, body))).status == (200 if is_allowed else 413)
        engine.stop()

    run(scene())


def test_a_long_plain_body_is_not_bounded_by_its_text(tmp_path: Path) -> None:
    """A long prompt, and a long tensor of numbers that a rule has to look behind, are read and passed on."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        prompt = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"Well, {this} is: " * 100_000)
        numbers = b",".join([b"1.5"] * 1_500_000)
        tensor = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1500000],"data":[%b]}]}' % numbers
        async with stage(text(engine), tmp_path) as it:
            assert (await it.ask(request(CHAT, prompt))).status == 200
            assert (await it.ask(request(INFER, tensor))).status == 200
        assert [len(received.body) for received in engine.received] == [len(prompt), len(tensor)]
        engine.stop()

    run(scene())


@pytest.mark.pure_python
def test_a_long_compressed_body_is_read_in_a_turn_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its coding is undone once and its model is looked for in the next turn of the event loop; the route's bound is on
    what the client sent."""
    events: list[str] = []

    def traced(name: str) -> None:
        inner = getattr(model_in_body, name)

        def call(*arguments: Any) -> Any:
            asyncio.get_running_loop().call_soon(events.append, "another turn")
            events.append(name)
            return inner(*arguments)

        monkeypatch.setattr(model_in_body, name, call)

    traced("decoded")
    traced("find_model")

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        body = b'{"model":"m","text":"%b"}' % (b"some text, " * 10_000)
        data = gzip.compress(body)
        rules = text(engine).replace("engine: chat}", f"engine: chat, max_body_bytes: {len(data)}}}")
        async with stage(rules, tmp_path, limits={"max_inflation_ratio": 2000}) as it:
            assert (await it.ask(zipped(CHAT, body))).status == 200
        assert engine.received[0].body == body
        assert events[:3] == ["decoded", "another turn", "find_model"]
        assert events.count("decoded") == 1
        engine.stop()

    run(scene())
