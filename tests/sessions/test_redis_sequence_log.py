"""The inputs of sequences in a real Redis: numbered before they are sent, and replayed only if none is missing."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from gateway.config.specs import ReplaySpec
from gateway.protocol.sequence import Sequence
from gateway.redis.address import read_address
from gateway.redis.bounded_client import BoundedRedis
from gateway.redis.command import StoreError
from gateway.sessions import sequence_log as inputs_module
from gateway.sessions.sequence_log import Input, InputProtocol, RedisSequenceLog, ReplayUnavailableError
from gateway.sessions.session import flat, session_key
from tests.support.redis_server import RedisServer

SPEC = ReplaySpec(patience=2.0)
INPUTS = [
    Input(InputProtocol.REST, b"/v2/models/m/infer", (), b"one"),
    Input(InputProtocol.GRPC, b"/inference.GRPCInferenceService/ModelInfer", (), b"\n\n2"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


class Worker:
    """One worker's sequence log, and the places that it reported."""

    def __init__(self, url: str) -> None:
        self.store = BoundedRedis(read_address(url), deadline=2.0)
        self.places: list[bytes] = []
        self.inputs = RedisSequenceLog(self.store, asyncio.get_running_loop(), self._placed)

    def _placed(self, name: str, answer: object) -> None:
        self.places.append(b" ".join(flat(answer)))

    async def number(self, number: int = 7, *, start: bool = False, spec: ReplaySpec = SPEC) -> Sequence:
        """One request of a sequence, with its number."""
        sequence = Sequence(str(number), "m", starts=start)
        if not self.inputs.number_at_once(sequence, spec):
            numbered = asyncio.Event()
            self.inputs.number(sequence, spec, numbered.set)
            await numbered.wait()
        return sequence

    async def why_not(self, sequence: Sequence) -> str:
        with pytest.raises(ReplayUnavailableError) as raised:
            await self.inputs.before(sequence, 1.0)
        return str(raised.value)


Scene = Callable[[Worker, Worker], Awaitable[None]]


def play(server: RedisServer, scene: Scene) -> None:
    """Play a scene with two workers over an empty Redis."""
    server.client.flushall()

    async def played() -> None:
        workers = Worker(server.url), Worker(server.url)
        await scene(*workers)
        for worker in workers:
            await worker.store.close()

    asyncio.run(asyncio.wait_for(played(), 120))


@pytest.mark.parametrize(
    "report",
    [*INPUTS, Input(InputProtocol.REST, b"/v2/models/m/versions/2/infer?a=b", ((b"content-type", b"b: c"),), b"\n\n2")],
)
def test_an_input_reads_as_it_was_written(report: Input) -> None:
    """An input keeps any bytes when it is written and read."""
    assert Input.read(bytes(report)) == report


@pytest.mark.parametrize(
    "stored",
    [
        b"rest /v2/repository/models/evil/load\n\n{}",
        b"rest /v2/logging\n\n{}",
        b"rest /v2/models/m/infer HTTP/1.1\r\nx: y\n\n{}",
        b"rest /v2/models/m/infer\nauthorization: Bearer x\n\n{}",
        b"rest /v2/models/m/infer\ncontent-type: a\rx: y\n\n{}",
        b"grpc /inference.GRPCInferenceService/RepositoryModelLoad\n\n",
        b"other /v2/models/m/infer\n\n{}",
        b"",
    ],
)
def test_what_is_no_inference_is_not_replayed(stored: bytes) -> None:
    """Who can write to Redis cannot have engines do what clients may not."""
    with pytest.raises(ReplayUnavailableError, match="cannot be read"):
        Input.read(stored)


def test_what_workers_keep_together_each_can_tell(server: RedisServer) -> None:
    """The requests of one sequence come through several workers; the log has their inputs in order, without refused
    ones."""

    async def scene(one: Worker, other: Worker) -> None:
        first = await one.number(start=True)
        one.inputs.keep(first, SPEC, INPUTS[0])
        second = await other.number()
        other.inputs.keep(second, SPEC, None)
        third = await one.number()
        one.inputs.keep(third, SPEC, INPUTS[1])
        fourth = await other.number()
        assert [each.step for each in (first, second, third, fourth)] == [1, 2, 3, 4]
        assert await other.inputs.before(fourth, 1.0) == INPUTS
        assert 0 < server.client.ttl("pointsman:1:inputs:{m:7}") <= SPEC.ttl
        other.inputs.forget(fourth)
        await other.store.flush()
        assert server.client.keys() == []

    play(server, scene)


def test_a_number_comes_with_the_place_as_of_the_request_before(server: RedisServer) -> None:
    """A worker whose writes are late does not send another worker's request to where its sequence was."""

    async def scene(one: Worker, other: Worker) -> None:
        first = await one.number(start=True)
        waiting = asyncio.ensure_future(other.number())
        while not other.places:
            await asyncio.sleep(0.001)
        assert other.places[-1] == b"" and not waiting.done()
        one.store.enqueue(("HSET", session_key(first.name), "at:it", "http://b"))
        one.inputs.keep(first, SPEC, INPUTS[0])
        assert (await waiting).step == 2
        assert other.places[-1] == b"at:it http://b"

    play(server, scene)


def test_a_sequence_that_lacks_an_input_is_not_told(server: RedisServer) -> None:
    """It is unknown whether an engine took the second input: the third is sent, but the sequence is never replayed."""

    async def scene(one: Worker, other: Worker) -> None:
        one.inputs.keep(await one.number(start=True), SPEC, INPUTS[0])
        other.inputs.doubt(await other.number(), SPEC)
        third = await one.number()
        assert third.step == 3
        one.inputs.keep(third, SPEC, INPUTS[0])
        assert await other.why_not(await other.number()) == "nobody knows whether input 2 of 3 was taken"

    play(server, scene)


def test_a_request_whose_worker_died_is_never_settled(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next request waits for the unsettled one and is refused, since the sequence may be moving. Later requests are
    sent."""
    monkeypatch.setattr(inputs_module, "_SETTLE_SECONDS", 0.05)

    async def scene(one: Worker, other: Worker) -> None:
        first = await one.number(start=True)
        one.inputs.keep(first, SPEC, INPUTS[0])
        assert (await other.number()).step == 2
        third = await one.number()
        assert (third.step, third.adrift) == (0, "nobody knows how the request before this one went")
        fourth = await other.number()
        assert (fourth.step, fourth.adrift) == (4, "")
        assert await one.why_not(fourth) == "nobody knows whether input 2 of 3 was taken"

    play(server, scene)


def test_an_id_that_is_used_again_is_another_sequence(server: RedisServer) -> None:
    """Late writes for a sequence that has restarted meanwhile do not change the new sequence."""

    async def scene(one: Worker, other: Worker) -> None:
        old = await one.number(start=True)
        one.inputs.keep(await other.number(start=True), SPEC, INPUTS[0])
        one.inputs.keep(old, SPEC, INPUTS[1])
        one.inputs.forget(old)
        await one.store.flush()
        assert await other.inputs.before(await other.number(), 1.0) == INPUTS[:1]
        old.step = 2
        assert await one.why_not(old) == "it was started anew meanwhile"

    play(server, scene)


LIMITS = [
    (ReplaySpec(max_steps=2, patience=2.0), "they are more than 2 (max_steps)"),
    (ReplaySpec(max_bytes=60, patience=2.0), "they have more than 60 bytes (max_bytes)"),
    (ReplaySpec(max_bytes=10, patience=2.0), "they have more than 10 bytes (max_bytes)"),
]


@pytest.mark.parametrize("spec, why", LIMITS)
def test_beyond_its_limits_a_sequence_is_kept_no_more(server: RedisServer, spec: ReplaySpec, why: str) -> None:
    """Beyond a limit, Redis keeps the reason in place of the inputs."""

    async def scene(one: Worker, other: Worker) -> None:
        for index in range(3):
            one.inputs.keep(await one.number(start=not index, spec=spec), spec, INPUTS[0])
        await one.store.flush()
        assert set(server.client.hgetall("pointsman:1:inputs:{m:7}")) == {"run", "steps", "why"}
        assert await other.why_not(await other.number(spec=spec)) == why

    play(server, scene)


def test_a_sequence_whose_start_nobody_saw_is_not_told(server: RedisServer) -> None:
    """A sequence that began before its rule, or was forgotten, is not replayed; the error gives this reason."""

    async def scene(one: Worker, other: Worker) -> None:
        late = await one.number()
        assert late.step == 0
        assert await one.why_not(late) == "its start was not seen, or is forgotten"

    play(server, scene)


def test_without_redis_only_starts_are_sent(server: RedisServer) -> None:
    """Without Redis the location of a sequence is unknown, so its requests are refused; they are sent again once Redis
    is back. A sequence that begins meanwhile is never replayed."""

    async def scene(one: Worker, other: Worker) -> None:
        quick = ReplaySpec(patience=0.05)
        one.inputs.keep(await one.number(start=True), SPEC, INPUTS[0])
        one.inputs.keep(await one.number(8, start=True), SPEC, INPUTS[0])
        await one.store.flush()
        server.pause()
        try:
            while one.store.is_available:
                refused = await one.number(spec=quick)
                assert (refused.step, refused.adrift) == (0, "Redis does not answer")
            assert (await one.number(spec=quick)).adrift == "Redis does not answer"
            with pytest.raises(StoreError):
                await one.inputs.before(refused, 0.05)
            begun = await one.number(8, start=True, spec=quick)
            assert (begun.step, begun.adrift) == (0, "")
        finally:
            server.resume()
        while not one.store.is_available:
            await asyncio.sleep(0.01)
        await one.store.flush()
        assert await other.inputs.before(await other.number(), 1.0) == INPUTS[:1]
        assert await other.why_not(await other.number(8)) == "Redis did not answer when it began"

    play(server, scene)


def test_a_key_of_somebody_elses_is_as_good_as_no_redis(server: RedisServer) -> None:
    """Requests of a sequence whose key has another type are refused."""

    async def scene(one: Worker, other: Worker) -> None:
        server.client.lpush("pointsman:1:inputs:{m:7}", "not a hash")
        wrong = await one.number()
        assert (wrong.step, wrong.adrift) == (0, "Redis does not answer")
        assert await one.why_not(wrong) == "what is kept of them cannot be read"

    play(server, scene)
