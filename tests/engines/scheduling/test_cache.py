"""The response cache: its keys, its contents, and the scheduler in front of it."""

import json
from dataclasses import replace

import pytest

from engines.core.calls import InferenceCall
from engines.core.errors import invalid
from engines.core.messages import InferRequest, InferResponse, SharedMemory, TensorData, WantedOutput
from engines.scheduling.cache import CachedScheduler, ResponseCache, is_cached, key_of
from engines.scheduling.cache_stores import ENTRY_BYTES, LocalStore, RedisStore, decode, encode
from engines.scheduling.factory import scheduler_for
from tests.engines.scheduling.stage import CANCELLED, MS, FakeInstance, HandClock, S, SchedulerClient, answer_of, config

X = TensorData("X", "FP32", (1, 2), b"12345678")
Y = TensorData("Y", "BYTES", (1,), b"\x01\0\0\0y")
REQUEST = InferRequest("m", id="1", inputs=(X, Y))
REGION = SharedMemory("/region", 0, 8)


@pytest.mark.parametrize(
    "other",
    [
        replace(REQUEST, id="2", priority=3, timeout_us=5, trace={"traceparent": "00"}, version="1"),
        replace(REQUEST, inputs=(Y, X)),
        replace(REQUEST, inputs=(replace(X, data=memoryview(b"12345678")), Y)),
    ],
)
def test_like_requests(other):
    """Neither the client nor the order of inputs changes the key."""
    assert key_of(other, "1") == key_of(REQUEST, "1")


@pytest.mark.parametrize(
    "other, version",
    [
        (REQUEST, "2"),
        (replace(REQUEST, model="n"), "1"),
        (replace(REQUEST, parameters={"k": 1}), "1"),
        (replace(REQUEST, outputs=(WantedOutput("O"),)), "1"),
        (replace(REQUEST, outputs=(WantedOutput("O", 3),)), "1"),
        (replace(REQUEST, inputs=(X,)), "1"),
        *(
            (replace(REQUEST, inputs=(replace(X, **change), Y)), "1")
            for change in ({"name": "Z"}, {"datatype": "INT32"}, {"shape": (2, 1)}, {"data": b"12345679"})
        ),
        # Inputs whose bytes would be equal when concatenated.
        (replace(REQUEST, inputs=(replace(X, data=b"1234"), replace(Y, data=b"5678" + Y.data))), "1"),
    ],
)
def test_unlike_requests(other, version):
    """Everything that may change the response changes the key."""
    assert key_of(other, version) not in (key_of(REQUEST, "1"), None)


@pytest.mark.parametrize(
    "request_",
    [
        replace(REQUEST, inputs=(replace(X, data=REGION),)),
        replace(REQUEST, outputs=(WantedOutput("O", shared_memory=REGION),)),
    ],
)
def test_requests_that_have_no_key(request_):
    """Requests with shared memory have no key: inputs may change at any time, and outputs must be written each time."""
    assert key_of(request_, "1") is None


@pytest.mark.parametrize(
    "more, is_so",
    [
        ("", False),
        ("response_cache { enable: true }", True),
        ("response_cache { enable: true } dynamic_batching {}", True),
        ("response_cache { enable: true } ensemble_scheduling {}", True),
        ("response_cache { enable: true } model_transaction_policy { decoupled: true }", False),
        ("response_cache { enable: true } sequence_batching {}", False),
    ],
)
def test_models_that_use_the_cache(more, is_so):
    """A cached model enables the cache, and its responses depend on the request alone."""
    assert is_cached(config(more)) is is_so


def response(size: int, text: bytes = b"x") -> InferResponse:
    return InferResponse((TensorData("O", "UINT8", (size,), text * size),), {"p": "v", "n": 1, "b": True})


def found_in(store: LocalStore, key: str) -> InferResponse | None:
    found: list[InferResponse | None] = []
    store.get(key, found.append)
    assert len(found) == 1
    return found[0]


def test_the_local_store_keeps_what_was_used_last():
    """The store evicts the least recently used entries, and does not store an entry larger than its capacity."""
    store = LocalStore(3 * (ENTRY_BYTES + 100))
    for key in "abc":
        store.put(key, response(100))
    assert found_in(store, "a") == response(100)
    store.put("d", response(100))
    assert [found_in(store, key) is not None for key in "abcd"] == [True, False, True, True]
    store.put("e", response(4 * ENTRY_BYTES))
    assert found_in(store, "e") is None
    store.put("d", response(10))
    assert (store.num_bytes, store.num_evicted) == (3 * ENTRY_BYTES + 210, 1)


def test_the_cache_keeps_data_of_its_own():
    """The cache copies its data, because views may refer to reused memory. Errors and outputs in shared memory are not
    stored."""
    store = LocalStore(1 << 20)
    cache = ResponseCache(store)
    memory = bytearray(b"before")
    cache.put("a", InferResponse((TensorData("O", "UINT8", (6,), memoryview(memory)),)))
    memory[:] = b"after!"
    cache.put("b", InferResponse(error=invalid("no")))
    cache.put("c", InferResponse((TensorData("O", "UINT8", (8,), REGION),)))
    stored = found_in(store, "a")
    assert stored is not None
    assert stored.outputs[0].data == b"before"
    assert (found_in(store, "b"), found_in(store, "c")) == (None, None)


@pytest.mark.parametrize("written", [response(0), response(3), InferResponse(), InferResponse((X, Y))])
def test_responses_survive_redis(written):
    """Encoding and decoding restore the response."""
    assert decode(encode(written)) == written


def stored(outputs, parameters=None, data=b"\x04\0\0\0"):
    head = json.dumps({"outputs": outputs, "parameters": parameters if parameters is not None else {}}).encode()
    return len(head).to_bytes(4, "little") + head + data


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff\xff\xff\xff",
        stored([["sum", "INT32", [1, 2], 4]]),
        stored([["sum", "INT33", [1], 4]]),
        stored([[None, "INT32", [1], 4]]),
        stored([["sum", "INT32", [-1], -4]]),
        stored([["sum", "INT32", ["1"], 4]]),
        stored([["sum", "INT32", [1], True]]),
        stored([["sum", "INT32", [1], 4]], parameters=[1]),
        stored([["sum", "INT32", [1], 4]], parameters={"a": [1]}),
        stored({"sum": 1}),
        stored([["sum", "INT32", [1], 4]], data=b"12345678"),
        stored([["text", "BYTES", [1], 4]]),  # an element of four bytes that are not there
        stored([["text", "BYTES", [2], 5]], data=b"\1\0\0\0a"),
    ],
)
def test_what_no_host_has_written_is_a_miss(value):
    """Entries that somebody else has written are none: the model runs."""
    assert decode(stored([["sum", "INT32", [1], 4]])).outputs[0].data == b"\x04\0\0\0"
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        decode(value)


class FakeRedis:
    """A Redis whose replies the test controls, by resuming its coroutines."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.error: Exception | None = None
        self.waiting: list = []

    async def get(self, name: str) -> bytes | None:
        self._complain()
        return self.values.get(name)

    async def set(self, name: str, value: bytes, *, ex: int | None) -> None:
        assert ex == 24 * 3600
        self._complain()
        self.values[name] = value

    def _complain(self) -> None:
        if self.error:
            raise self.error

    def spawn(self, coroutine) -> None:
        self.waiting.append(coroutine)

    def go_on(self) -> None:
        waiting, self.waiting = self.waiting, []
        for coroutine in waiting:
            with pytest.raises(StopIteration):
                coroutine.send(None)


class RecordedStatistics:
    """Records the reported statistics."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str, int]] = []

    def cache_hit(self, call: InferenceCall, looked_up_ns: int) -> None:
        self.log.append(("hit", call.request.id, looked_up_ns))

    def cache_miss(self, call: InferenceCall, took_ns: int) -> None:
        self.log.append(("miss", call.request.id, took_ns))


class Cached:
    """A model of two instances behind a cache."""

    def __init__(self, more: str = "", redis: FakeRedis | None = None) -> None:
        self.clock = HandClock()
        self.instances = [FakeInstance("m_0_0"), FakeInstance("m_0_1")]
        self.statistics = RecordedStatistics()
        model = config(f"name: 'm' max_batch_size: 8 response_cache {{ enable: true }} {more}")
        inner = scheduler_for(model, self.instances, self.clock)
        store = RedisStore(redis, self.clock, redis.spawn) if redis else LocalStore(1 << 20)
        self.scheduler = CachedScheduler(model, "1", inner, ResponseCache(store), self.clock, self.statistics)
        self.client = SchedulerClient(self.scheduler.submit, self.clock)

    def submit(self, id: str, data: bytes) -> InferenceCall:
        return self.client.submit(id, inputs=[TensorData("X", "UINT8", (1, len(data)), data)])

    def answer(self, id: str) -> TensorData:
        return self.client.replies[id].responses[0].outputs[0]


def test_the_same_is_computed_once():
    """The second request is answered from the cache, at once."""
    stage = Cached()
    stage.submit("a", b"1")
    stage.instances[0].answer()
    stage.submit("b", b"1")
    stage.submit("c", b"2")
    assert stage.client.outcomes() == ["answered", "answered", "waits"]
    assert stage.answer("b") == stage.answer("a")
    assert stage.statistics.log == [("miss", "a", 0), ("hit", "b", 0)]


def test_errors_are_not_kept():
    """A request that failed runs again."""
    stage = Cached()
    stage.submit("a", b"1")
    stage.instances[0].crash()
    stage.submit("b", b"1")
    stage.instances[1].answer()
    assert stage.client.outcomes() == ["INTERNAL: crashed", "answered"]
    assert stage.statistics.log == [("miss", "b", 0)]


def test_answers_of_the_cache_stand_in_line():
    """With preserve_ordering cached responses wait for earlier requests."""
    stage = Cached("dynamic_batching { preserve_ordering: true }")
    stage.submit("a", b"1")
    stage.instances[0].answer()
    stage.submit("b", b"2")
    stage.submit("c", b"1")
    assert stage.client.outcomes() == ["answered", "waits", "waits"]
    stage.instances[0].answer()
    assert stage.client.order == ["a", "b", "c"]


def test_redis_is_shared():
    """A response that one host has stored is found by another."""
    redis = FakeRedis()
    stage = Cached(redis=redis)
    stage.submit("a", b"1")
    assert (stage.client.outcomes(), stage.scheduler.num_pending, stage.instances[0].batches) == (["waits"], 1, [])
    redis.go_on()
    stage.instances[0].answer()
    redis.go_on()

    other = Cached(redis=redis)
    other.submit("b", b"1")
    other.clock.move(3 * MS)
    redis.go_on()
    assert other.client.outcomes() == ["answered"]
    assert other.answer("b").data == b"a"
    assert other.statistics.log == [("hit", "b", 3 * MS)]
    assert other.clock.num_timers == 0


def test_an_entry_that_no_host_has_written_is_replaced():
    """It costs a miss, and Redis is asked on."""
    redis = FakeRedis()
    stage = Cached(redis=redis)
    key = "pointsman:response:1:" + str(key_of(_request(b"1"), "1"))
    redis.values = {key: b"\xff\0\0\0{"}
    stage.submit("a", b"1")
    redis.go_on()
    assert stage.instances[0].ids == [["a"]]
    stage.instances[0].answer()
    redis.go_on()
    assert decode(redis.values[key]).outputs
    stage.submit("b", b"1")
    redis.go_on()
    assert stage.client.outcomes() == ["answered", "answered"]
    assert stage.instances[0].ids == [["a"]]


@pytest.mark.parametrize("fault", ["error", "slow"])
def test_a_redis_that_fails_costs_a_miss(fault):
    """After a failure Redis is not called for a second."""
    redis = FakeRedis()
    stage = Cached(redis=redis)
    if fault == "error":
        redis.error = ConnectionError("refused")
    stage.submit("a", b"1")
    if fault == "slow":
        stage.clock.move(50 * MS)
    else:
        redis.go_on()
    assert stage.instances[0].ids == [["a"]]
    stage.instances[0].answer()
    stage.submit("b", b"1")
    assert stage.instances[0].ids == [["a"], ["b"]]
    redis.go_on()
    assert stage.client.outcomes() == ["answered", "waits"]

    stage.clock.move(S)
    stage.submit("c", b"1")
    assert stage.client.outcomes("c") == ["waits"]
    assert len(redis.waiting) == 1
    redis.go_on()


def _request(data: bytes) -> InferRequest:
    return InferRequest("m", inputs=(TensorData("X", "UINT8", (1, len(data)), data),))


def test_a_call_may_be_cancelled_while_it_is_looked_up():
    """The call ends at once, and does not run."""
    redis = FakeRedis()
    stage = Cached(redis=redis)
    stage.submit("a", b"1").cancel()
    assert stage.client.outcomes() == [CANCELLED]
    redis.go_on()
    assert (stage.instances[0].batches, stage.scheduler.num_pending) == ([], 0)


def test_what_is_written_to_redis_is_bounded():
    """A slow Redis gets no further writes."""
    redis = FakeRedis()
    clock = HandClock()
    store = RedisStore(redis, clock, redis.spawn)
    for number in range(1000):
        store.put(str(number), answer_of(InferenceCall(_request(b""), lambda *_: None)))
    assert len(redis.waiting) == 64
    redis.go_on()
    assert len(redis.values) == 64
