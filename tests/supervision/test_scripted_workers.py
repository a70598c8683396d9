"""The worker pool with workers that die, fall silent or do not stop."""

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.config.settings import Settings
from gateway.control.channel import ChildProcess
from gateway.control.messages import Message, QueryReply, SetLogLevel, SetWeights
from gateway.protocol.advertised_models import AdvertisedModels
from gateway.protocol.engine_load import Load, Readiness
from gateway.supervision import worker_pool
from gateway.supervision.ports import ReservedPort
from gateway.supervision.worker_pool import StartError, WorkerPool, start_seconds
from gateway.upstream.health import Findings
from tests.supervision.stage import any_rules, scripted

DEADLINE_SECONDS = 120.0


@asynccontextmanager
async def force_of(mode: str, folder: Path, workers: int = 1, hang_timeout: float = 30.0) -> AsyncIterator[WorkerPool]:
    """Workers of one mode; the messages they receive are in `notes` in the folder."""
    port = ReservedPort("127.0.0.1", 0, "--http-port")
    settings = Settings(workers=workers, drain_timeout=0.1, hang_timeout=hang_timeout)
    force = WorkerPool(settings, any_rules(folder), [port], scripted(mode, folder / "notes"))
    try:
        yield force
    finally:
        await force.close()
        assert not force._processes
        port.close()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not is_so():
            await asyncio.sleep(0.01)


def kill_worker(force: WorkerPool) -> None:
    """Kill the only worker, as the system does when memory is short."""
    (worker,) = force._workers
    os.kill(worker.pid, signal.SIGKILL)


def test_a_worker_that_dies_at_the_start_is_told(tmp_path: Path) -> None:
    """The gateway does not start when a worker dies before it serves; the error has its exit status."""

    async def scene() -> None:
        async with force_of("dies", tmp_path, workers=2) as force:
            with pytest.raises(StartError, match="a worker ended with status 3"):
                await force.start()

    asyncio.run(scene())


def test_restarts_slow_down(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A worker whose successors die is restarted with delays that double, and each try logs one line."""
    caplog.set_level(logging.ERROR)

    async def scene() -> None:
        async with force_of("once", tmp_path) as force:
            await force.start()
            kill_worker(force)
            await until(lambda: force.restarts == 1 and force.num_serving == 1)

    asyncio.run(scene())
    ended, first, second = [record.getMessage() for record in caplog.records if record.name == worker_pool.__name__]
    assert ended.endswith("ended with status -9; starting another in 0.1 s")
    assert first == "cannot start a worker: a worker ended with status 3; trying again in 0.2 s"
    assert second == "cannot start a worker: a worker ended with status 3; trying again in 0.4 s"


def test_a_worker_that_nobody_hears_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When an internal error stops the reading of a worker's messages, the worker is still killed at the end
    (`force_of` checks)."""
    report = WorkerPool._received

    def fail(self: WorkerPool, worker: ChildProcess, message: Message) -> None:
        if isinstance(message, QueryReply):
            raise RuntimeError("a fault of ours")
        report(self, worker, message)

    monkeypatch.setattr(WorkerPool, "_received", fail)
    monkeypatch.setattr(worker_pool, "_ANSWER_SECONDS", 0.2)

    async def scene() -> None:
        async with force_of("good", tmp_path) as force:
            await force.start()
            (worker,) = force._workers
            await force.count()
            await until(lambda: worker.ended is not None and worker.ended.done())
            assert not worker.has_exited
        assert worker.has_exited

    asyncio.run(scene())


def test_a_new_worker_knows_what_the_others_know(tmp_path: Path) -> None:
    """A worker that replaces a dead one starts with the current rules, weights and health."""

    async def scene() -> None:
        async with force_of("good", tmp_path) as force:
            await force.start()
            force.use_rules(any_rules(tmp_path), 2)
            force.set(SetWeights({"x": {"a": 1.0}}, {"x": 1}))
            force.set(SetWeights({"x": {"a": 1.0}}, {"x": 1}))  # unchanged, so not sent
            it = ("it", "http://127.0.0.1:1")
            force.set_health(
                Findings({it: Readiness.DOWN}, {it: AdvertisedModels(frozenset({"llama"}))}, {it: Load(1)})
            )
            await until(lambda: "changed" in (tmp_path / "notes").read_text())
            kill_worker(force)
            await until(lambda: force.restarts == 1 and force.num_serving == 1)

    asyncio.run(scene())
    report = (tmp_path / "notes").read_text().splitlines()
    weights = "weights {'x': {'a': 1.0}}"
    before = ["start 1", "rules 2", weights, "changed ['down'] models ['llama'] loads [1]"]
    assert report == [*before, "start 2", weights, "health ['down'] models ['llama']"]


def test_counts_outlive_a_worker(tmp_path: Path) -> None:
    """A dead worker's counts stay in the sum; its requests in flight and connections do not."""

    async def scene() -> None:
        async with force_of("good", tmp_path) as force:
            await force.start()
            await force.count()
            assert [(series.statuses, series.in_flight) for series in force.counters.series().values()][-1] == (
                {200: 1},
                1,
            )
            assert force.counters.total().connections == 1
            kill_worker(force)
            await until(lambda: force.restarts == 1 and force.num_serving == 1)
            assert [(series.statuses, series.in_flight) for series in force.counters.series().values()][-1] == (
                {200: 1},
                0,
            )
            assert force.counters.total().connections == 0
            await force.count()
            assert [series.statuses for series in force.counters.series().values()][-1] == {200: 2}

    asyncio.run(scene())


@pytest.mark.parametrize(("mode", "is_used"), [("late", True), ("frail", False)])
def test_settled_workers_have_what_was_sent(
    mode: str, is_used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of the rules waits for a busy worker, however long a scrape would; one that dies is not waited for."""
    monkeypatch.setattr(worker_pool, "_ANSWER_SECONDS", 0.001)
    monkeypatch.setattr(worker_pool, "_START_SECONDS", 2 * DEADLINE_SECONDS)

    async def scene() -> None:
        async with force_of(mode, tmp_path) as force:
            await force.start()
            force.use_rules(any_rules(tmp_path), 2)
            async with asyncio.timeout(DEADLINE_SECONDS):
                await force.settle()
            notes = (tmp_path / "notes").read_text()
            assert "rules 2" in notes and ("used" in notes) is is_used

    asyncio.run(scene())


def test_a_worker_that_does_not_settle_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.WARNING)

    async def scene() -> None:
        async with force_of("silent", tmp_path) as force:
            await force.start()
            monkeypatch.setattr(worker_pool, "_START_SECONDS", 0.05)
            await force.settle()

    asyncio.run(scene())
    (line,) = [record.getMessage() for record in caplog.records if "have not taken" in record.getMessage()]
    assert line.startswith("1 of 1 workers have not taken rules 1 in 0.0")


def test_a_silent_worker_holds_no_scrape_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape waits only briefly for a busy worker's counters and continues without them."""
    monkeypatch.setattr(worker_pool, "_ANSWER_SECONDS", 0.05)

    async def scene() -> None:
        async with force_of("silent", tmp_path) as force:
            await force.start()
            async with asyncio.timeout(DEADLINE_SECONDS):
                await force.count()
            assert force.counters.series() == {}

    asyncio.run(scene())


@pytest.mark.parametrize(
    "mode, limit, is_killed", [("silent", 0.05, True), ("good", 60.0, False), ("silent", 0.0, False)]
)
def test_a_worker_that_hangs_is_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, limit: float, is_killed: bool
) -> None:
    """A worker that does not reply for longer than the limit is killed and replaced; one that replies stays."""

    async def scene() -> None:
        async with force_of(mode, tmp_path, hang_timeout=limit) as force:
            await force.start()
            (first,) = force._workers
            heard: list[ChildProcess] = []
            monkeypatch.setattr(force._hang_watch, "answered", heard.append)
            if is_killed:
                await until(lambda: force.restarts >= 1)
            elif limit:
                await until(lambda: first in heard)
            assert (first in force._workers) is not is_killed

    asyncio.run(scene())


@pytest.mark.parametrize("mode, goes", [("good", True), ("stubborn", False)])
def test_drain_ends_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, goes: bool) -> None:
    """On a drain workers end by themselves; those that do not end in time are killed, and drain() returns False."""
    monkeypatch.setattr(worker_pool, "_KILL_MARGIN_SECONDS", 0.2)

    async def scene() -> None:
        async with force_of(mode, tmp_path, workers=2) as force:
            await force.start()
            ends = [worker.ended for worker in force._workers if worker.ended is not None]
            assert await force.drain() is goes
            statuses = await asyncio.wait_for(asyncio.gather(*ends), DEADLINE_SECONDS)
            assert statuses == [0 if goes else -signal.SIGKILL] * 2
            assert force.restarts == 0

    asyncio.run(scene())


def test_changes_of_health_are_sent_alone(tmp_path: Path) -> None:
    """What the probes find is sent when it changes, without what has not changed; a new worker gets what holds."""

    async def scene() -> None:
        it, other = ("it", "http://127.0.0.1:1"), ("it", "http://127.0.0.1:2")
        async with force_of("good", tmp_path) as force:
            await force.start()
            force.set_health(Findings({it: Readiness.READY}, {it: AdvertisedModels(frozenset({"llama"}))}))
            force.set_health(Findings(loads={it: Load(1)}))
            force.set_health(Findings({other: Readiness.DOWN}, {it: AdvertisedModels(frozenset({"llama", "qwen"}))}))
            force.set_health(Findings({it: None}, {it: None}))
            await until(lambda: (tmp_path / "notes").read_text().count("changed") == 4)
            kill_worker(force)
            await until(lambda: force.restarts == 1 and force.num_serving == 1)

    asyncio.run(scene())
    report = (tmp_path / "notes").read_text().splitlines()
    assert report[1:] == [
        "changed ['ready'] models ['llama'] loads []",
        "changed [] models [] loads [1]",
        "changed ['down'] models ['llama', 'qwen'] loads []",
        "changed [None] models [] loads []",
        "start 1",
        "health ['down'] models []",
    ]


def test_the_logs_level_outlives_a_worker(tmp_path: Path) -> None:
    """The log level is sent to all workers and to the replacement of a dead one."""

    async def scene() -> list[str]:
        async with force_of("good", tmp_path) as force:
            await force.start()
            force.set(SetLogLevel("debug"))
            notes = tmp_path / "notes"
            await until(lambda: notes.read_text().count("level debug") == 1)
            kill_worker(force)
            await until(lambda: force.restarts == 1 and force.num_serving == 1)
            return notes.read_text().splitlines()

    assert asyncio.run(scene())[-2:] == ["start 1", "level debug"]


def test_the_time_to_start_grows_with_the_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each route and each endpoint gives a worker more time to serve; the error says how much it had."""
    rules = any_rules(tmp_path)
    many = replace(rules, routes=rules.routes * 10_000)
    assert start_seconds(rules) < 31
    assert start_seconds(many) > 60
    monkeypatch.setattr(worker_pool, "_START_SECONDS", 0.1)
    monkeypatch.setattr(worker_pool, "_START_SECONDS_EACH", 0.1)

    async def scene() -> None:
        async with force_of("slow", tmp_path) as force:
            with pytest.raises(StartError, match=r"^a worker did not serve within 0\.3 s$"):
                await force.start()

    asyncio.run(scene())
