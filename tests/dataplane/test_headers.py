"""The header fields of requests and replies on each hop."""

import asyncio
import gc
import gzip
from pathlib import Path

import pytest

from gateway.protocol.errors import GatewayError
from tests.dataplane.stage import Engine, ReceivedRequest, get, load, post, rules, run, stage

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
INFER = "/v2/models/m/infer"


def test_what_an_engine_gets(tmp_path: Path) -> None:
    """End-to-end fields pass, hop-by-hop fields do not; the gateway adds the client's address, protocol and host, and
    `via`."""
    fields = (
        "traceparent: 00-1-2-01",
        "X-Own: Kept  As Is",
        "Connection: keep-alive, X-Hop",
        "X-Hop: secret",
        "Keep-Alive: timeout=5",
        "TE: trailers",
        "Upgrade: h2c",
        "Proxy-Authorization: Basic x",
        "X-Pointsman-Shadow: r",
        "X-Forwarded-For: 6.6.6.6",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Client-Cert: URI=spiffe://a",
        "Via: 1.1 other",
        "Authorization: Bearer mine",
    )

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            assert (await it.ask(post(INFER, b"{}", *fields))).status == 200
        received = engine.received[0]
        assert received.line == "POST /v2/models/m/infer HTTP/1.1"
        assert received.value("host") == engine.url.removeprefix("http://")
        assert received.value("traceparent") == "00-1-2-01"
        assert received.value("x-own") == "Kept  As Is"
        assert received.value("authorization") == "Bearer mine"
        assert received.value("content-length") == "2"
        for name in ("connection", "x-hop", "keep-alive", "te", "upgrade", "proxy-authorization"):
            assert received.value(name) is None, name
        assert received.value("x-pointsman-shadow") is received.value("x-forwarded-client-cert") is None
        assert received.value("x-forwarded-for") == "127.0.0.1"
        assert received.value("x-forwarded-proto") == "http"
        assert received.value("x-forwarded-host") == "gateway"
        assert received.value("via") == "1.1 other, 1.1 pointsman"
        engine.stop()

    run(scene())


def test_a_framing_field_cannot_be_named_away(tmp_path: Path) -> None:
    """`Connection: content-length` does not remove the length from the next hop's request."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            assert (await it.ask(post(INFER, b"abc", "Connection: content-length, host"))).status == 200
        assert (engine.received[0].value("content-length"), engine.received[0].body) == ("3", b"abc")
        engine.stop()

    run(scene())


def test_trusted_forwarding(tmp_path: Path) -> None:
    """With --trust-forwarded the fields of a proxy in front are kept and extended."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        fields = (
            "X-Pointsman-Shadow: r",
            "X-Forwarded-For: 6.6.6.6",
            "X-Forwarded-Proto: https",
            "X-Forwarded-Host: public",
            "X-Forwarded-Client-Cert: URI=spiffe://a",
        )
        async with stage(rules(engine), tmp_path, trust_forwarded=True) as it:
            await it.ask(post(INFER, b"{}", *fields))
        received = engine.received[0]
        assert received.value("x-pointsman-shadow") == "r"
        assert received.value("x-forwarded-for") == "6.6.6.6, 127.0.0.1"
        assert received.value("x-forwarded-proto") == "https"
        assert received.value("x-forwarded-host") == "public"
        assert received.value("x-forwarded-client-cert") == "URI=spiffe://a"
        engine.stop()

    run(scene())


def test_request_ids(tmp_path: Path) -> None:
    """A request id is the client's own or a new unique one; engine and client get the same id."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            replies = [await it.ask(post()) for _ in range(3)]
            replies.append(await it.ask(post(INFER, b"{}", "X-Request-Id: mine")))
            report = [reply.headers["x-request-id"] for reply in replies]
            assert report == [received.value("x-request-id") for received in engine.received]
            assert len(set(report)) == 4
            assert report[3] == "mine"
            for path in ("/nothing", "/v2", "/v2/health/live"):
                assert (await it.ask(get(path, "x-request-id: a"))).headers["x-request-id"] == "a"
        engine.stop()

    run(scene())


def test_a_request_that_goes_in_a_circle_ends(tmp_path: Path) -> None:
    """Where an endpoint is the gateway itself, a request passes through it a few times, not until all connections are
    taken; gateways behind each other are no circle."""

    async def scene() -> None:
        text = "version: 1\nengines:\n  it: {endpoints: ['http://127.0.0.1:1']}\nroutes:\n  - {name: all, engine: it}\n"
        async with stage(text, tmp_path) as it:
            itself = text.replace("127.0.0.1:1'", f"127.0.0.1:{it.port}'")
            it.plane.use_rules(load(itself, tmp_path), 2)
            reply = await it.ask(post(INFER))
            assert reply.status == 508 and b"has passed through 9 gateways" in reply.body
            fields = "via: 1.1 pointsman, 1.1 other", "via: " + ", ".join(["1.1 pointsman"] * 7)
            it.plane.use_rules(load(text, tmp_path), 3)
            assert (await it.ask(post(INFER, b"{}", *fields))).status == 502
            reply = await it.ask(post(INFER, b"{}", "via: 1.1 pointsman", *fields))
            assert (reply.status, reply.reason) == (508, "loop")

    run(scene())


def test_what_a_client_gets(tmp_path: Path) -> None:
    """A reply's end-to-end fields pass, hop-by-hop fields do not. The reply names the routing decision unless that is
    disabled."""

    async def answer(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        fields = (
            b"X-Own: a\r\nSet-Cookie: 1\r\nSet-Cookie: 2\r\nConnection: close, X-Hop\r\nX-Hop: s\r\nKeep-Alive: t\r\n"
        )
        writer.write(
            b"HTTP/1.1 418 I'm a teapot\r\n" + fields + b"X-Request-Id: of the engine\r\nContent-Length: 0\r\n\r\n"
        )

    async def scene() -> None:
        engine = Engine(answer)
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            client = await it.client()
            reply = await client.ask(post(INFER, b"{}", "X-Request-Id: mine"))
            assert reply.status == 418
            assert (reply.headers["x-own"], reply.headers["set-cookie"]) == ("a", "2")
            assert not {"connection", "x-hop", "keep-alive"} & reply.headers.keys()
            assert reply.headers["x-request-id"] == "mine"
            assert reply.headers["via"] == "1.1 pointsman"
            assert (reply.headers["x-pointsman-route"], reply.headers["x-pointsman-engine"]) == ("all", "it")
            assert "x-pointsman-arm" not in reply.headers
            assert (await client.ask(post())).status == 418  # the client's connection stays open
        async with stage(rules(engine), tmp_path, name_decision=False) as it:
            assert "x-pointsman-route" not in (await it.ask(post())).headers
        engine.stop()

    run(scene())


def test_engine_fields_and_keys(tmp_path: Path) -> None:
    """An engine's api_key and headers replace the client's fields of the same names."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        options = "api_key: sesame\n    headers: {x-team: ours}"
        async with stage(rules(engine, options=options), tmp_path) as it:
            await it.ask(post(INFER, b"{}", "Authorization: Bearer mine", "X-Team: theirs"))
        assert engine.received[0].value("authorization") == "Bearer sesame"
        assert engine.received[0].value("x-team") == "ours"
        engine.stop()

    run(scene())


@pytest.mark.parametrize("trusted", [False, True], ids=["untrusted", "trusted"])
def test_engine_fields_replace_the_gateways(tmp_path: Path, trusted: bool) -> None:
    """What the gateway adds itself is not added where the engine declares it: each field comes once."""
    names = ("x-request-id", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "via")
    own = ("X-Request-Id: mine", *(f"{name}: theirs" for name in names[1:]))

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        options = f"headers: {{{', '.join(f'{name}: ours' for name in names)}, accept-encoding: identity}}"
        async with stage(rules(engine, options=options), tmp_path, trust_forwarded=trusted) as it:
            assert (await it.ask(post(INFER, b"{}", *own))).headers["x-request-id"] == "mine"
            assert (await it.ask(post("/v2/repository/models/m/load", b"{}", *own))).status == 200
        assert len(engine.received) == 2
        for received in engine.received:
            assert [received.value(name) for name in names] == ["ours"] * len(names)
            assert received.value("accept-encoding") == "identity"
            assert received.body == b"{}"
        engine.stop()

    run(scene())


def test_an_engine_field_replaces_one_of_the_gateways(tmp_path: Path) -> None:
    """The others are added as ever."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        for name in ("x-request-id", "x-forwarded-for", "x-forwarded-proto"):
            async with stage(rules(engine, options=f"headers: {{{name}: ours}}"), tmp_path) as it:
                await it.ask(post(INFER, b"{}", "X-Request-Id: mine"))
            usual = {"x-request-id": "mine", "x-forwarded-for": "127.0.0.1", "x-forwarded-proto": "http"}
            assert {each: engine.received[-1].value(each) for each in usual} == {**usual, name: "ours"}
        engine.stop()

    run(scene())


def test_compressed_bodies_pass(tmp_path: Path) -> None:
    """gzip bodies pass both ways unchanged, with their content-encoding fields."""
    zipped = gzip.compress(b'{"inputs": []}')

    async def answer(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(zipped), zipped)
        )

    async def scene() -> None:
        engine = Engine(answer)
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            reply = await it.ask(post(INFER, zipped, "Content-Encoding: gzip", "Accept-Encoding: gzip"))
            assert (reply.body, reply.headers["content-encoding"]) == (zipped, "gzip")
        received = engine.received[0]
        assert (received.body, received.value("content-encoding"), received.value("accept-encoding")) == (
            zipped,
            "gzip",
            "gzip",
        )
        engine.stop()

    run(scene())


def test_nobody_answers_unknown_paths_and_verbs(tmp_path: Path) -> None:
    """Unknown paths get 404 and wrong methods 405, with Triton's texts; a model without a route gets Triton's error for
    an unknown model."""
    only = "  - {name: one, match: {model: known}, engine: it}\n"

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine, routes=only), tmp_path) as it:
            reply = await it.ask(get("/v2/models/known/infer/"))
            assert (reply.status, reply.body, reply.reason) == (404, b'{"error":"Not Found"}', "not_found")
            reply = await it.ask(get("/v2/models/known/infer"))
            assert (reply.status, reply.body) == (405, b'{"error":"Method Not Allowed"}')
            assert reply.headers["allow"] == "POST"
            reply = await it.ask(post("/v2/models/other/versions/2/infer"))
            assert (reply.status, reply.reason) == (404, "no_route")
            assert reply.body == b"""{"error":"Request for unknown model: 'other' version 2 is not found"}"""
            assert engine.received == []
        engine.stop()

    run(scene())


def test_an_error_that_is_kept_keeps_no_requests(tmp_path: Path) -> None:
    """The error of an unknown model is prepared once for a head, and keeps nothing of the requests that it refuses."""
    only = "  - {name: one, match: {model: known}, engine: it}\n"

    def frames() -> int:
        longest = 0
        for error in [each for each in gc.get_objects() if isinstance(each, GatewayError)]:
            count, at = 0, error.__traceback__
            while at is not None:
                count, at = count + 1, at.tb_next
            longest = max(longest, count)
        return longest

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine, routes=only), tmp_path) as it:
            for _ in range(30):
                reply = await it.ask(post("/v1/chat/completions", b'{"model": "other"}'))
                assert (reply.status, reply.reason) == (404, "no_route")
            assert frames() < 30
        engine.stop()

    run(scene())
