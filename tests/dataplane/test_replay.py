"""Sequences with stored inputs continue on another endpoint when theirs is gone."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.protocol.engine_load import Readiness
from gateway.redis.command import StoreError
from tests.dataplane.adding import INFER, Sums, parameters, step
from tests.dataplane.stage import Engine, Reply, Stage, post, rules, run, stage, until

Fleet = tuple[Stage, list[Engine], list[Sums]]


@asynccontextmanager
async def fleet(
    tmp_path: Path,
    size: int = 2,
    *,
    replay: str = "replay",
    options: str = "balance: session",
    head: str = "",
    **more: Any,
) -> AsyncIterator[Fleet]:
    """A data plane with `size` engines that add, whose route replays sequences."""
    sums = [Sums() for _ in range(size)]
    engines = [Engine(each.by_rest) for each in sums]
    for engine in engines:
        await engine.start()
    routes = f"  - {{name: all, engine: it, session: {{sequences: {replay}}}}}\n"
    async with stage(rules(*engines, options=options, routes=routes) + head, tmp_path, **more) as it:
        yield it, engines, sums
    for engine in engines:
        engine.stop()


def total(reply: Reply) -> int:
    assert reply.status == 200, reply.body
    return int(json.loads(reply.body)["id"])


async def begun(fleet: Fleet, number: int = 7) -> int:
    """Send a sequence's first three values; return the index of its engine."""
    it, _, sums = fleet
    assert total(await it.ask(step(number, 1, start=True))) == 1
    assert total(await it.ask(step(number, 2))) == 3
    assert total(await it.ask(step(number, 3))) == 6
    return next(index for index, each in enumerate(sums) if number in each.totals)


def endpoint(fleet: Fleet, at: int) -> Any:
    it, engines, _ = fleet
    return next(each for each in it.endpoints() if each.url == engines[at].url)


def counts(fleet: Fleet) -> tuple[int, int, int]:
    """The number of sequences replayed, handed over and lost."""
    found = fleet[0].plane.affinity.book.counts
    moved = Counter(dict.fromkeys(("lost", "drained"), 0))
    for (_, _, why), number in found.sequences_moved.items():
        moved[why] += number
    return moved["lost"], moved["drained"], found.sequences_lost.total()


async def lost(fleet: Fleet, request: bytes) -> str:
    """The error that the client gets for a sequence that cannot continue."""
    reply = await fleet[0].ask(request)
    assert (reply.status, reply.reason) == (503, "sequence_lost"), reply.body
    return str(json.loads(reply.body)["error"])


@pytest.mark.parametrize("balance", ["session", "power_of_two"])
@pytest.mark.parametrize("how", ["down", "refuses"])
def test_another_endpoint_is_told_all_inputs(tmp_path: Path, how: str, balance: str) -> None:
    """A sequence whose endpoint is down or refuses connections continues on another one, which gets its inputs in
    order. The client gets no error, whatever the engine's balancing."""

    async def scene() -> None:
        async with fleet(tmp_path, options=f"balance: {balance}") as it:
            at = await begun(it)
            if how == "down":
                endpoint(it, at).condition = Readiness.DOWN
            else:
                it[1][at].stop()
            assert total(await it[0].ask(step(7, 4))) == 10
            assert it[2][1 - at].received == [1, 2, 3, 4]
            assert total(await it[0].ask(step(7, 5, end=True))) == 15
            assert counts(it) == (1, 0, 0)
            assert not it[0].plane.affinity.inputs._logs

    run(scene())


def test_a_request_whose_endpoint_dies_under_it_is_told_to_another(tmp_path: Path) -> None:
    """The request goes to another endpoint with its sequence's inputs, though it may not be sent twice to the same
    one."""

    async def scene() -> None:
        async with fleet(tmp_path) as it:
            at = await begun(it)

            async def dies(engine: Engine, received: Any, reader: Any, writer: Any) -> None:
                engine.stop()

            it[1][at].script = dies
            assert total(await it[0].ask(step(7, 4))) == 10
            assert total(await it[0].ask(step(7, 5))) == 15
            assert it[2][1 - at].received == [1, 2, 3, 4, 5]

    run(scene())


def test_a_start_whose_endpoint_dies_under_it_begins_elsewhere(tmp_path: Path) -> None:
    """A request that starts a sequence goes to another endpoint without a replay."""

    async def scene() -> None:
        async with fleet(tmp_path) as it:

            async def dies(engine: Engine, received: Any, reader: Any, writer: Any) -> None:
                engine.stop()

            first = await begun(it)
            it[1][first].script = dies
            assert total(await it[0].ask(step(7, 9, start=True))) == 9
            assert it[2][1 - first].received == [9]
            assert total(await it[0].ask(step(7, 1))) == 10
            assert counts(it) == (0, 0, 0)

    run(scene())


def test_a_reply_that_has_begun_is_not_replayed(tmp_path: Path) -> None:
    """When a reply breaks off, it is unknown whether the engine took the input, so the sequence is lost."""

    async def scene() -> None:
        async with fleet(tmp_path, replay="{on_loss: replay, patience: 10ms}") as it:
            at = await begun(it)

            async def breaks_off(engine: Engine, received: Any, reader: Any, writer: Any) -> None:
                writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n{"id":')
                await writer.drain()
                await asyncio.sleep(0.01)
                engine.stop()

            it[1][at].script = breaks_off
            client = await it[0].client()
            await client.send(step(7, 4))
            assert (await client.head())[0] == 200
            assert await client.reader.read() == b'{"id":'
            reply = await lost(it, step(7, 5))
            assert "its inputs cannot be replayed: nobody knows whether input 4 of 4 was taken: start it anew" in reply
            assert counts(it) == (0, 0, 1)
            assert total(await it[0].ask(step(7, 1, start=True))) == 1

    run(scene())


def test_what_an_engine_refused_is_not_told_again(tmp_path: Path) -> None:
    """A refused input did not change the engine's state, so it is not replayed."""

    async def scene() -> None:
        async with fleet(tmp_path) as it:
            at = await begun(it)
            assert (await it[0].ask(step(7, -1))).status == 400
            assert total(await it[0].ask(step(7, 4))) == 10
            endpoint(it, at).condition = Readiness.DOWN
            assert total(await it[0].ask(step(7, 5))) == 15
            assert it[2][1 - at].received == [1, 2, 3, 4, 5]

    run(scene())


LIMITS = [
    ("{on_loss: replay, max_steps: 2}", "they are more than 2 (max_steps)"),
    ("{on_loss: replay, max_bytes: 300}", "they have more than 300 bytes (max_bytes)"),
    ("{on_loss: replay, max_bytes: 100}", "they have more than 100 bytes (max_bytes)"),
]


@pytest.mark.parametrize("replay, why", LIMITS)
def test_a_sequence_beyond_its_limits_ends_with_its_endpoint(tmp_path: Path, replay: str, why: str) -> None:
    """A sequence with too many or too long inputs is not stored; when its endpoint is lost, the error gives the
    reason."""

    async def scene() -> None:
        async with fleet(tmp_path, replay=replay) as it:
            at = await begun(it)
            endpoint(it, at).condition = Readiness.DOWN
            reply = await lost(it, step(7, 4))
            assert f"was at endpoint {it[1][at].url}, which is down, and its inputs cannot be replayed: {why}" in reply
            assert counts(it) == (0, 0, 1)
            assert it[2][1 - at].received == []

    run(scene())


def test_several_workers_without_redis_keep_nothing(tmp_path: Path) -> None:
    """Without Redis none of several workers sees all inputs of a sequence, so it is not replayed."""

    async def scene() -> None:
        async with fleet(tmp_path, workers=2) as it:
            at = await begun(it)
            endpoint(it, at).condition = Readiness.DOWN
            reply = await lost(it, step(7, 4))
            assert "cannot be replayed: a gateway of several workers keeps none without Redis" in reply

    run(scene())


def test_an_endpoint_that_fails_meanwhile_gives_way_to_another(tmp_path: Path) -> None:
    """When the endpoint of the replay fails too, a third one continues the sequence."""

    async def scene() -> None:
        async with fleet(tmp_path, 3) as it:
            at = await begun(it)
            endpoint(it, at).condition = Readiness.DOWN
            others = [index for index in range(3) if index != at]
            broken: list[int] = []

            def dies_at(index: int) -> Any:
                async def script(engine: Engine, received: Any, reader: Any, writer: Any) -> None:
                    if len(it[2][index].received) == 1 and broken in ([], [index]):
                        broken[:] = [index]
                        engine.stop()
                    else:
                        await it[2][index].by_rest(engine, received, reader, writer)

                return script

            for index in others:
                it[1][index].script = dies_at(index)
            assert total(await it[0].ask(step(7, 4))) == 10
            assert len(broken) == 1
            other = next(index for index in others if index not in broken)
            assert it[2][other].received == [1, 2, 3, 4]

    run(scene())


def test_the_only_endpoint_may_have_been_started_anew(tmp_path: Path) -> None:
    """A restarted endpoint replies without the sequence's state: it gets all inputs again."""

    async def scene() -> None:
        async with fleet(tmp_path, 1) as it:
            await begun(it)
            engine, sums = it[1][0], it[2][0]
            port = int(engine.url.rpartition(":")[2])
            engine.stop()
            sums.totals.clear()
            sums.received.clear()
            server = await asyncio.start_server(engine._serve, "127.0.0.1", port, limit=1 << 20)
            engine._server = server
            assert total(await it[0].ask(step(7, 4))) == 10
            assert sums.received == [1, 2, 3, 4]

    run(scene())


def test_an_input_that_is_refused_ends_the_sequence(tmp_path: Path) -> None:
    """When an input is refused during a replay, the client's error names the input and has the engine's message."""

    async def scene() -> None:
        async with fleet(tmp_path) as it:
            at = await begun(it)
            other = it[2][1 - at]

            async def forgets(engine: Engine, received: Any, reader: Any, writer: Any) -> None:
                other.totals.clear()
                await other.by_rest(engine, received, reader, writer)

            it[1][1 - at].script = forgets
            endpoint(it, at).condition = Readiness.DOWN
            reply = await lost(it, step(7, 4))
            assert f"{it[1][1 - at].url} refused input 2 of 3: 400" in reply and "START flag" in reply

    run(scene())


def test_without_a_healthy_endpoint_the_inputs_stay(tmp_path: Path) -> None:
    """While all endpoints are down, a sequence keeps its inputs; it continues once an endpoint is healthy."""

    async def scene() -> None:
        async with fleet(tmp_path) as it:
            at = await begun(it)
            for each in it[0].endpoints():
                each.condition = Readiness.DOWN
            refused = await it[0].ask(step(7, 4))
            assert (refused.status, refused.reason) == (503, "no_healthy_endpoint")
            assert b"which is down, and no other is healthy" in refused.body
            endpoint(it, 1 - at).condition = Readiness.READY
            assert total(await it[0].ask(step(7, 4))) == 10
            assert counts(it) == (1, 0, 0)

    run(scene())


def test_a_drained_endpoint_hands_its_sequences_over(tmp_path: Path) -> None:
    """At its next request a sequence of a drained endpoint continues on another one, unless this request is its last or
    the sequence cannot be replayed."""

    async def scene() -> None:
        async with fleet(tmp_path, replay="{on_loss: replay, max_steps: 4}") as it:
            at = await begun(it, 7)
            number = 8
            others = []
            while len(others) < 2:
                if await begun(it, number) == at:
                    others.append(number)
                number += 1
            ending, long = others
            for value in (1, 1):
                await it[0].ask(step(long, value))
            it[0].plane.set_drained({("it", it[1][at].url)})
            assert total(await it[0].ask(step(7, 4))) == 10
            assert 7 in it[2][1 - at].totals
            assert total(await it[0].ask(step(ending, 4, end=True))) == 10
            assert ending not in it[2][1 - at].totals and ending not in it[2][at].totals
            assert total(await it[0].ask(step(long, 1))) == 9
            assert long in it[2][at].totals
            assert counts(it) == (0, 1, 0)
            assert total(await it[0].ask(step(7, 5))) == 15

    run(scene())


def test_a_hand_over_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    """When the hand-over takes too long, the request goes to the drained endpoint in time, and the sequence stays
    there."""

    async def scene() -> None:
        async with fleet(tmp_path, options="balance: session\n    timeout: 400ms") as it:
            at = await begun(it)

            async def slow(engine: Engine, received: Any, reader: Any, writer: Any) -> None:
                await reader.read()

            it[1][1 - at].script = slow
            it[0].plane.set_drained({("it", it[1][at].url)})
            assert total(await it[0].ask(step(7, 4))) == 10
            assert it[2][at].received == [1, 2, 3, 4]

    run(scene())


def test_a_sequence_stays_on_a_drained_endpoint_that_is_the_only_one(tmp_path: Path) -> None:
    """A sequence stays on a drained endpoint when no other is healthy."""

    async def scene() -> None:
        async with fleet(tmp_path) as it:
            at = await begun(it)
            endpoint(it, 1 - at).condition = Readiness.DOWN
            it[0].plane.set_drained({("it", it[1][at].url)})
            assert total(await it[0].ask(step(7, 4))) == 10
            assert counts(it) == (0, 0, 0)

    run(scene())


@pytest.mark.parametrize("is_drained", [False, True])
def test_a_replay_that_redis_does_not_confirm_sends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_drained: bool
) -> None:
    """When Redis does not confirm the new endpoint, other workers may read either one, so the request is refused, even
    if the drained endpoint could serve it. The sequence is not lost."""

    async def away(*_: Any) -> None:
        raise StoreError("away")

    async def scene() -> None:
        async with fleet(tmp_path) as it:
            at = await begun(it)
            if is_drained:
                it[0].plane.set_drained({("it", it[1][at].url)})
            else:
                endpoint(it, at).condition = Readiness.DOWN
            with monkeypatch.context() as patched:
                patched.setattr(it[0].plane.affinity.inputs, "place", away)
                refused = await it[0].ask(step(7, 4))
            assert (refused.status, refused.reason) == (503, "no_healthy_endpoint")
            assert b"and Redis, which has its inputs, does not answer" in refused.body
            assert it[2][0].received == it[2][1].received == [1, 2, 3]
            assert total(await it[0].ask(step(7, 4))) == 10
            assert it[2][1 - at].received == [1, 2, 3, 1, 2, 3, 4]

    run(scene())


def test_without_redis_a_drained_endpoint_keeps_its_sequences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Redis the inputs cannot be read, so the sequences stay on the drained endpoint."""

    async def away(*_: Any) -> None:
        raise StoreError("away")

    async def scene() -> None:
        async with fleet(tmp_path) as it:
            at = await begun(it)
            it[0].plane.set_drained({("it", it[1][at].url)})
            monkeypatch.setattr(it[0].plane.affinity.inputs, "before", away)
            assert total(await it[0].ask(step(7, 4))) == 10
            assert it[2][at].received == [1, 2, 3, 4]

    run(scene())


@pytest.mark.parametrize("limits", ["", "limits: [{name: narrow, concurrency: 1}]\n"])
def test_a_client_that_leaves_stops_the_replay(tmp_path: Path, limits: str) -> None:
    """When the client leaves, the replay stops and its concurrency slot is free again."""

    async def scene() -> None:
        async with fleet(tmp_path, head=limits) as it:
            at = await begun(it)
            goes_on, is_told = asyncio.Event(), asyncio.Event()

            async def slow(engine: Engine, received: Any, reader: Any, writer: Any) -> None:
                is_told.set()
                await goes_on.wait()

            it[1][1 - at].script = slow
            endpoint(it, at).condition = Readiness.DOWN
            client = await it[0].client()
            await client.send(step(7, 4))
            await is_told.wait()
            client.close()
            await until(lambda: it[0].errors().get("client_gone") == 1)
            goes_on.set()
            await until(lambda: endpoint(it, 1 - at).in_flight == 0)
            assert len(it[1][1 - at].received) == 1
            it[1][1 - at].script = it[2][1 - at].by_rest
            assert total(await it[0].ask(step(7, 5))) == 11
            assert total(await it[0].ask(step(7, 6))) == 17

    run(scene())


def test_a_replay_has_the_requests_own_time(tmp_path: Path) -> None:
    """A replay that exceeds the request's timeout fails the request, but does not lose the sequence."""

    async def scene() -> None:
        async with fleet(tmp_path, options="balance: session\n    timeout: 100ms") as it:
            at = await begun(it)
            other = it[2][1 - at]

            async def slow(engine: Engine, received: Any, reader: Any, writer: Any) -> None:
                await reader.read()

            it[1][1 - at].script = slow
            endpoint(it, at).condition = Readiness.DOWN
            late = await it[0].ask(step(7, 4))
            assert (late.status, late.reason) == (504, "deadline"), late.body
            assert b"its inputs were not told to another one within 0." in late.body
            it[1][1 - at].script = other.by_rest
            assert total(await it[0].ask(step(7, 4))) == 10

    run(scene())


def test_an_endpoint_that_has_forgotten_a_sequence_is_told_again(tmp_path: Path) -> None:
    """When Triton drops an idle sequence, the sequence is replayed to another healthy endpoint."""

    async def scene() -> None:
        async with fleet(tmp_path) as it:
            at = await begun(it)
            it[2][at].totals.clear()
            assert total(await it[0].ask(step(7, 4))) == 10
            it[2][1 - at].totals.clear()
            assert total(await it[0].ask(step(7, 5, end=True))) == 15
            assert counts(it) == (2, 0, 0)
            assert (await it[0].ask(step(7, 5))).status == 400

    run(scene())


def test_whose_an_input_was_is_not_kept(tmp_path: Path) -> None:
    """The replay uses the current request's credentials; none are stored with the inputs."""

    async def scene() -> None:
        async with fleet(tmp_path) as it:
            at = await begun(it)
            assert total(await it[0].ask(step(7, 4, "Authorization: Bearer old"))) == 10
            endpoint(it, at).condition = Readiness.DOWN
            assert total(await it[0].ask(step(7, 5, "Authorization: Bearer new"))) == 15
            assert {received.value("authorization") for received in it[1][1 - at].received} == {"Bearer new"}

    run(scene())


@pytest.mark.parametrize("kind", ["binary", "compressed", "long", "in pieces"])
def test_an_input_is_told_as_it_was(tmp_path: Path, kind: str) -> None:
    """The replay sends the same bytes for binary tensors, compressed bodies, and bodies above --retry-body-bytes."""

    async def scene() -> None:
        async with fleet(tmp_path, limits={"retry_body_bytes": 1000}) as it:
            text = json.dumps({"parameters": parameters(7, 5), "inputs": []}).encode()
            match kind:
                case "binary":
                    length = f"Inference-Header-Content-Length: {len(text)}"
                    request = post(INFER, text + bytes(range(256)), length)
                case "compressed":
                    request = post(INFER, gzip.compress(text), "Content-Encoding: gzip")
                case _:
                    request = post(INFER, text + b" " * 100_000)
            at = await begun(it)
            client = await it[0].client()
            if kind == "in pieces":
                await client.send(request[:-5])
                await asyncio.sleep(0.005)
            await client.send(request[-5:] if kind == "in pieces" else request)
            assert total(await client.reply()) == 11
            endpoint(it, at).condition = Readiness.DOWN
            assert total(await it[0].ask(step(7, 4))) == 15
            reply, first = it[1][1 - at].received[3], it[1][at].received[3]
            assert reply.body == first.body
            assert reply.value("content-encoding") == first.value("content-encoding")
            assert reply.value("inference-header-content-length") == first.value("inference-header-content-length")

    run(scene())


def test_a_route_without_it_keeps_nothing(tmp_path: Path) -> None:
    """Without replay in its route, a sequence ends with its endpoint."""

    async def scene() -> None:
        async with fleet(tmp_path, replay="end") as it:
            at = await begun(it)
            assert not it[0].plane.affinity.inputs._logs
            endpoint(it, at).condition = Readiness.DOWN
            assert "which is down: start it anew" in await lost(it, step(7, 4))

    run(scene())
