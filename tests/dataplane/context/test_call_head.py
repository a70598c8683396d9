"""Call heads that differ in a few fields: a head derived from an earlier one equals a head parsed from scratch."""

from __future__ import annotations

from inspect import isdatadescriptor
from pathlib import Path
from typing import Any

import pytest
from hpack import Encoder
from hpack.struct import NeverIndexedHeaderTuple
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.config.settings import Settings
from gateway.dataplane.context.call_head import CallHead
from gateway.dataplane.context.call_reader import CallReader
from gateway.dataplane.context.data_plane import DataPlane
from gateway.wire.http2.field_decoder import FieldDecoder
from gateway.wire.http2.fields import Block, Field, request_fault
from gateway.wire.http2.hpack import literals
from tests.dataplane.grpc.peers import STREAM, Call, GrpcClient, GrpcEngine
from tests.dataplane.grpc.stage import GrpcStage, grpc_rules, request
from tests.dataplane.grpc.test_engine_peers import scene
from tests.dataplane.grpc.test_unary_call import answer
from tests.dataplane.stage import load, run

ENGINES = """
version: 1
engines:
  a: {endpoints: ['http://127.0.0.1:1'], balance: %s}
  b: {endpoints: ['http://127.0.0.1:1']}
"""
ROUTES = "routes: [{name: b, match: {model: b}, engine: b}, {name: all, engine: a}]\n"
PLAIN = ENGINES % "least_outstanding" + ROUTES
SESSIONS = ENGINES % "session" + ROUTES + "identity: {session_cookie: sid}\n"
UNITS = (
    ENGINES % "least_outstanding"
    + """
routes: [{name: all, experiment: x}]
experiments:
  x:
    unit: 'header:x-user'
    arms: [{name: one, engine: a, weight: 1}, {name: two, engine: b, weight: 1}]
"""
)
STEADY: list[Field] = [(b":method", b"POST"), (b":scheme", b"http")]
STEADY += [(b":path", b"/inference.GRPCInferenceService/ModelInfer"), (b"te", b"trailers")]
STEADY += [(b"content-type", b"application/grpc"), (b"cookie", b"sid=steady")]
VALUES = {
    b"x-request-id": [b"1", b"2", b"id-3"],
    b"traceparent": [b"00-1-1-01", b"00-2-2-01"],
    b"authorization": [b"Bearer a", b"Bearer b", b""],
    b"cookie": [b"sid=a", b"sid=b"],
    b"grpc-timeout": [b"1S", b"2S", b"x"],
    b"x-user": [b"u", b"v"],
    b"x-mine": [b"1"],
    b"x-%b": [b"%d", b"v" * ord("%"), b"v" * 200],  # these and their lengths look like places for values
}
OWN = st.lists(
    st.sampled_from(sorted(VALUES)).flatmap(lambda name: st.tuples(st.just(name), st.sampled_from(VALUES[name]))),
    min_size=1,
    max_size=4,
)


def told(head: CallHead) -> list[Any]:
    fields = [
        name for name, value in vars(CallHead).items() if isdatadescriptor(value) and name not in ("error", "_block")
    ]
    assert len(fields) > 3
    names = [name.strip("_") for name in fields]
    return [getattr(head, name) for name in names] + [repr(head.error)]


@pytest.mark.parametrize("rules", [PLAIN, SESSIONS, UNITS], ids=["plain", "sessions", "units"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(own=st.lists(st.tuples(OWN, st.booleans()), min_size=1, max_size=8))
def test_heads_that_are_made_of_others(tmp_path: Path, rules: str, own: list[tuple[list[Field], bool]]) -> None:
    """A head depends on its own fields alone, whatever came before on the connection. Each head comes three times,
    interleaved with others, with or without Huffman coding."""

    async def play() -> None:
        plane = DataPlane(Settings(), load(rules, tmp_path), 1, {}, None)
        read: CallReader = plane.read_call
        decoder = FieldDecoder(1 << 16, read.own_names)
        base: dict[int, CallHead] = {}
        for fields, huffman in own * 3:
            coded = Encoder().encode([NeverIndexedHeaderTuple(*field) for field in fields], huffman=huffman)
            block = decoder.decode(literals(STEADY) + coded)
            alone = read(Block(list(block.fields)))
            assert alone.own == [field for field in block.fields if field in alone.own]
            if block.base is None:
                continue
            if id(block.base) not in base:
                base[id(block.base)] = read(block.base)
            head = read.again(base[id(block.base)], block)
            assert head is not None and told(head) == told(alone)
        plane.close()

    run(play())


def test_hosts_must_agree(tmp_path: Path) -> None:
    """An experiment may assign by the `host` field: a `host` that differs from `:authority` is a fault (RFC 9113
    section 8.3.1)."""

    async def play() -> None:
        plane = DataPlane(Settings(), load(UNITS.replace("x-user", "host"), tmp_path), 1, {}, None)
        decoder = FieldDecoder(1 << 16, plane.read_call.own_names)
        fields = [*STEADY[:3], (b":authority", b"one"), *STEADY[3:]]
        for _ in range(3):
            for host, fault in ((b"one", None), (b"two", ":authority and host do not agree")):
                block = decoder.decode(literals([*fields, (b"host", host)]))
                assert block.fault(request_fault) == fault
            head = plane.read_call(decoder.decode(literals([*fields, (b"host", b"one")])))
            assert head.units == {"host": "one"}
        plane.close()

    run(play())


def test_each_call_has_its_own(tmp_path: Path) -> None:
    """On one connection each call passes its own request id and trace to the engine, and new rules apply to the next
    call."""

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        async def ask(number: int) -> Call:
            own = [("x-request-id", f"r-{number:03d}"), ("traceparent", f"00-{number:032d}-{number:016d}-01")]
            call = client.call("/inference.GRPCInferenceService/ModelInfer", *map(never_indexed, own))
            await call.send(request(), ended=True)
            return await call.over()

        for number in range(1, 9):
            if number == 5:
                it.plane.use_rules(load(grpc_rules(engine, routes="  - {name: new, engine: it}\n"), tmp_path), 2)
            call = await ask(number)
            assert (call.status, call.value("x-request-id")) == (0, f"r-{number:03d}")
            assert call.value("x-pointsman-route") == ("all" if number < 5 else "new")
            received = engine.calls[-1]
            assert received.value("x-request-id") == f"r-{number:03d}"
            assert received.value("traceparent") == f"00-{number:032d}-{number:016d}-01"

    scene(tmp_path, play, GrpcEngine(answer))


def never_indexed(field: tuple[str, str]) -> Any:
    """A literal that changes no table, as gRPC's C library encodes an application's metadata."""
    return NeverIndexedHeaderTuple(*field)


def test_metadata_with_blanks(tmp_path: Path) -> None:
    """The rules see a value without the blanks around it; the engine gets it with them, but for ids and traces."""

    async def play() -> None:
        plane = DataPlane(Settings(), load(UNITS, tmp_path), 1, {}, None)
        decoder = FieldDecoder(1 << 16, plane.read_call.own_names)
        for number in range(3):
            own = [(b"x-user", b" u "), (b"x-note", b"a\\ "), (b"traceparent", b" t-%d" % number)]
            block = decoder.decode(literals([*STEADY, *own]))
            head = plane.read_call(block)
            assert (block.fault(request_fault), head.units) == (None, {"x-user": "u"})
            assert (head.value(b"x-note"), head.value(b"traceparent")) == (b"a\\", b"t-%d" % number)
            assert b"a\\ " in head.passing and (b"x-note", b"a\\") in head.rest_fields()
        plane.close()

    run(play())


def test_metadata_with_blanks_is_sent_as_it_came(tmp_path: Path) -> None:
    """Repeated metadata stays repeated, and blanks stay, also for an engine that declares another field."""
    rules = PLAIN.replace("balance: least_outstanding", "headers: {x-mine: its}")

    async def play() -> None:
        plane = DataPlane(Settings(), load(rules, tmp_path), 1, {}, None)
        own = [(b"x-k", b"v"), (b"x-k", b"v"), (b"x-b", b" b "), (b"x-mine", b"m")]
        head = plane.read_call(Block([*STEADY, *own]))
        assert head.passing.endswith(literals(own))
        assert head.passing_to(plane.snapshot.engines["a"]).endswith(literals(own[:3]))
        assert head.passing_to(plane.snapshot.engines["b"]) == head.passing
        assert (head.value(b"x-b"), head.own[-4:-2]) == (b"b", own[:2])
        plane.close()

    run(play())


@pytest.mark.parametrize("path", ["/inference.GRPCInferenceService/ModelInfer", STREAM])
def test_an_engines_own_headers_replace_the_callers(tmp_path: Path, path: str) -> None:
    """A field that an engine declares is sent once, with the engine's value: the caller's credentials do not leave."""

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        for number in range(3):
            mine = [("authorization", f"Bearer mine-{number}"), ("x-user", f"u-{number}")]
            call = client.call(path, *map(never_indexed, mine))
            await call.send(request(), ended=True)
            assert (await call.over()).status == 0
            received = [field for field in engine.calls[-1].fields if field[0] in ("authorization", "x-user")]
            assert received == [("authorization", "Bearer its"), ("x-user", f"u-{number}")]

    scene(tmp_path, play, GrpcEngine(answer), options="headers: {authorization: Bearer its}")


def test_fields_of_any_name_share_a_plan(tmp_path: Path) -> None:
    """Fields that no rule reads, whatever their names, are not in the plan; what proxies alone may say is dropped."""

    async def play() -> None:
        rules = PLAIN.replace("match: {model: b}", "match: {model: b, header: {x-tier: gold}}")
        plane = DataPlane(Settings(), load(rules, tmp_path), 1, {}, None)
        heads = []
        for number in range(3):
            own = [(b"x-any-%d" % number, b"1"), (b"x-trace", b"%d" % number), (b"x-forwarded-for", b"1.2.3.4")]
            heads.append(plane.read_call(Block([*STEADY, *own])))
            assert [name for name, _ in heads[-1].own][-2:] == [b"x-any-%d" % number, b"x-trace"]
            assert b"1.2.3" not in heads[-1].passing and b"x-trace" in heads[-1].passing
        assert heads[0].plan is heads[1].plan is heads[2].plan
        assert plane.read_call(Block([*STEADY, (b"x-tier", b"gold")])).plan is not heads[0].plan
        plane.close()

    run(play())


def test_names_of_metadata_do_not_fill_the_memory(tmp_path: Path) -> None:
    """Clients that send other names with each call fill a small bounded cache, without the longest of them."""

    async def play() -> None:
        plane = DataPlane(Settings(), load(PLAIN, tmp_path), 1, {}, None)
        read = plane.read_call
        decoder = FieldDecoder(1 << 16, read.own_names)
        before = read(decoder.decode(literals(STEADY)))
        for number in range(1500):
            name = b"x-%d" % number if number % 2 else b"x-%d-" % number + b"n" * 1100
            head = read.again(before, decoder.decode(literals([*STEADY, (name, b"1")])))
            assert head is not None and head.own[-1] == (name, b"1")
        assert 0 < len(read._layouts) <= 1024
        assert max(sum(map(len, names)) for names in read._layouts) <= 1024
        plane.close()

    run(play())
