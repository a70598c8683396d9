"""A client that requests it gets the phases of its request's time."""

import asyncio
from pathlib import Path
from time import monotonic

from tests.dataplane.generating import (
    CHAT,
    DONE,
    LAST,
    MESSAGES,
    ROLE,
    STOP,
    STREAM,
    asked,
    chunk,
    started,
    token,
    writes,
)
from tests.dataplane.stage import OK, Engine, ReceivedRequest, Reply, get, post, rules, run, stage
from tests.dataplane.test_failures import gone

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
ASKS = "X-Pointsman-Timing: 1"
INFER = "/v2/models/m/infer"


def phases(reply: Reply) -> dict[str, float]:
    """The milliseconds of each phase."""
    metrics = [metric.split(";") for metric in reply.headers["server-timing"].split(", ")]
    return {name: float(report.removeprefix("dur=")) for name, report, *_ in metrics}


async def slow(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
    await asyncio.sleep(0.05)
    writer.write(OK)


def test_the_engines_time_is_told_with_its_endpoint(tmp_path: Path) -> None:
    """The first request has connect time, the second reuses the connection; the field that requests the timing does not
    reach the engine."""

    async def scene() -> None:
        engine = Engine(slow)
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            began = monotonic()
            first, second = [await it.ask(post(INFER, b"{}", ASKS)) for _ in range(2)]
            took = (monotonic() - began) * 1000
            assert list(phases(first)) == ["decide", "wait", "retry", "connect", "engine"]
            assert phases(first)["connect"] > 0
            assert phases(second)["connect"] == 0
            for reply in first, second:
                assert reply.headers["server-timing"].endswith(f';desc="{engine.url}"')
                assert 49 < phases(reply)["engine"] <= took
                assert (phases(reply)["wait"], phases(reply)["retry"]) == (0, 0)
        assert engine.received[0].value("x-pointsman-timing") is None
        engine.stop()

    run(scene())


def test_who_does_not_ask_is_not_told(tmp_path: Path) -> None:
    """By default replies have no timing. With `name_decision` off the timing omits the endpoint's address."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            assert "server-timing" not in (await it.ask(post())).headers
        async with stage(rules(engine), tmp_path, name_decision=False) as it:
            reply = (await it.ask(post(INFER, b"{}", ASKS))).headers["server-timing"]
            assert "engine;dur=" in reply
            assert engine.url not in reply
        engine.stop()

    run(scene())


def test_a_try_that_fails_is_time_of_its_own(tmp_path: Path) -> None:
    """The time that a dead endpoint costs counts as `retry`, and not as the other endpoint's time."""

    async def scene() -> None:
        there = Engine()
        await there.start()
        async with stage(rules(await gone(), there, options="balance: round_robin"), tmp_path) as it:
            replies = [await it.ask(post(INFER, b"{}", ASKS)) for _ in range(2)]
            assert [reply.status for reply in replies] == [200, 200]
            assert any(phases(reply)["retry"] > 0 for reply in replies)
        there.stop()

    run(scene())


def test_an_error_tells_how_long_it_took(tmp_path: Path) -> None:
    """An error from the gateway itself has the timing too."""

    async def scene() -> None:
        async with stage(rules(await gone()), tmp_path) as it:
            reply = await it.ask(post(INFER, b"{}", ASKS))
            assert reply.status == 502
            assert sum(phases(reply).values()) > 0

    run(scene())


def test_a_wait_for_limits_is_told(tmp_path: Path) -> None:
    """The time that a limit holds a request back counts as `wait`, and not as the engine's time."""

    async def scene() -> None:
        engine = Engine(slow)
        await engine.start()
        text = rules(engine) + "limits: [{name: narrow, concurrency: 1, max_wait: 120s}]\n"
        async with stage(text, tmp_path) as it:
            began = monotonic()
            replies = await asyncio.gather(*[it.ask(post(INFER, b"{}", ASKS)) for _ in range(2)])
            took = (monotonic() - began) * 1000
            waits = sorted(phases(reply)["wait"] for reply in replies)
            assert waits[0] == 0
            assert waits[1] > 40
            assert all(phases(reply)["wait"] + phases(reply)["engine"] <= took for reply in replies)
        engine.stop()

    run(scene())


def test_generations_and_translations_tell_it_too(tmp_path: Path) -> None:
    """Generations have the timing whether they are passed through or translated."""

    async def scene() -> None:
        script = writes(STREAM + chunk(ROLE + token("a")), chunk(STOP + DONE) + LAST)
        [engine], text = await started(script)
        async with stage(text, tmp_path) as it:
            for path in CHAT, MESSAGES:
                reply = await it.ask(post(path, asked(path), ASKS))
                assert reply.status == 200
                assert reply.headers["server-timing"].count("engine;dur=") == 1
                assert engine.url in reply.headers["server-timing"]
                assert phases(reply)["decide"] > 0
                assert "server-timing" not in (await it.ask(post(path, asked(path)))).headers
        assert all(received.value("x-pointsman-timing") is None for received in engine.received)
        engine.stop()

    run(scene())


def test_two_who_ask_alike_have_times_of_their_own(tmp_path: Path) -> None:
    """Requests with the same head share a prepared head, but not their times."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            client = await it.client()
            question = get("/v2/models/m", ASKS)
            assert phases(await client.ask(question))["decide"] < 1000
            await asyncio.sleep(0.05)
            assert phases(await client.ask(question))["decide"] < 40
        engine.stop()

    run(scene())
