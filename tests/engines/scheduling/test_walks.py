"""Schedulers on random walks: their invariants hold at each step and at the end, for any order of events."""

import random
from collections import defaultdict

import pytest

from engines.core.calls import InferenceCall
from engines.core.messages import InferResponse, TensorData, WantedOutput
from engines.scheduling.ensemble import Ensemble
from engines.scheduling.factory import scheduler_for
from engines.scheduling.rate_limiter import GLOBAL, RateLimiter
from tests.engines.scheduling.stage import MS, US, FakeInstance, HandClock, SchedulerClient, config

NUM_STEPS = 400


class Walk:
    """A model with its clients and instances, and a source of random choices."""

    def __init__(self, text: str, seed: int, num_instances: int = 3, limiter: RateLimiter | None = None) -> None:
        self.chance = random.Random(seed)
        self.clock = HandClock()
        self.config = config(text)
        self.instances = [FakeInstance(f"m_0_{number}") for number in range(num_instances)]
        self.scheduler = scheduler_for(self.config, self.instances, self.clock, limiter=limiter)
        self.client = SchedulerClient(self.scheduler.submit, self.clock)
        self.number = 0

    def go(self) -> None:
        """One random event."""
        running = [instance for instance in self.instances if instance.running]
        gone = [instance for instance in self.instances if not instance.is_up]
        match self.chance.choices(range(7), weights=[12, 8, 2, 4, 1, 1, 1])[0]:
            case 0:
                self.number += 1
                self.submit(str(self.number))
            case 1 if running:
                self.chance.choice(running).answer()
            case 2 if self.client.calls:
                self.client.calls[self.chance.choice(list(self.client.calls))].cancel()
            case 3:
                self.clock.move(self.chance.choice([10 * US, 100 * US, 3 * MS]))
            case 4 if running:
                instance = self.chance.choice(running)
                instance.crash()
                self.scheduler.instance_changed(instance)
            case 5 if gone:
                instance = self.chance.choice(gone)
                instance.is_up = True
                self.scheduler.instance_changed(instance)
            case 6:
                instance = self.chance.choice(self.instances)
                if not instance.running:
                    instance.is_up = False
                    self.scheduler.instance_changed(instance)

    def submit(self, id: str) -> None:
        shape = (1, self.chance.choice([2, 2, 2, 3]))
        self.client.submit(
            id,
            rows=self.chance.choice([1, 1, 2, 3]) if self.config.max_batch_size else 1,
            inputs=[TensorData("X", "FP32", shape, bytes(4 * shape[1]))],
            priority=self.chance.randrange(4),
            timeout_us=self.chance.choice([0, 50, 500]),
        )

    def finish(self) -> None:
        """End everything: bring instances back, answer what runs, advance the clock."""
        for instance in self.instances:
            if not instance.is_up:
                instance.is_up = True
                self.scheduler.instance_changed(instance)
        while any(instance.running for instance in self.instances) or self.clock.num_timers:
            for instance in self.instances:
                if instance.running:
                    instance.answer()
            self.clock.move(MS)

    def check(self) -> None:
        """At each step the waiting calls are counted, and an instance is idle only if nothing can run on it."""
        waiting = sum(not call.is_over for call in self.client.calls.values())
        at_work = sum(call.request.id != "" for instance in self.instances for call in instance.running)
        assert self.scheduler.num_pending == waiting - at_work

    def check_end(self) -> None:
        assert "waits" not in self.client.outcomes()
        assert self.scheduler.num_pending == 0
        # Sinks assert that no call ends twice; here, that none has run twice.
        ran = [call.request.id for instance in self.instances for batch in instance.batches for call in batch]
        ran = [id for id in ran if id]
        assert len(ran) == len(set(ran))
        for id, outcomes in zip(self.client.replies, self.client.outcomes(), strict=True):
            assert (id in ran) or outcomes != "answered"


BATCHING = """
    name: "m" max_batch_size: 8 input {{ name: "X" data_type: TYPE_FP32 dims: [-1] }}
    dynamic_batching {{ {} }}
"""
QUEUES = """
    priority_levels: 3 default_priority_level: 2
    default_queue_policy { default_timeout_microseconds: 400 allow_timeout_override: true max_queue_size: 20 }
    priority_queue_policy { key: 3 value { timeout_action: DELAY default_timeout_microseconds: 200 } }
"""


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "batching",
    [
        "",
        "preferred_batch_size: [2, 4]",
        "preferred_batch_size: [3] max_queue_delay_microseconds: 300",
        "preferred_batch_size: [4] max_queue_delay_microseconds: 300 " + QUEUES,
        "preserve_ordering: true " + QUEUES,
    ],
)
def test_dynamic_batching(batching, seed):
    """No batch exceeds its size or mixes shapes, no call waits beyond its delay while an instance is idle, and
    responses keep their order if configured."""
    walk = Walk(BATCHING.format(batching), seed)
    delay_ns = walk.config.dynamic_batching.max_queue_delay_microseconds * 1000
    for _ in range(NUM_STEPS):
        walk.go()
        walk.check()
        if any(instance.is_available for instance in walk.instances):
            waiting = [c for c in walk.client.calls.values() if not c.is_over and not c.started_ns]
            assert all(walk.clock.now - call.arrived_ns < delay_ns for call in waiting)
    walk.finish()
    walk.check_end()
    batches = [batch for instance in walk.instances for batch in instance.batches]
    for batch in batches:
        assert sum(call.batch_size for call in batch) <= 8
        assert len({call.request.inputs[0].shape for call in batch}) == 1
    assert any(len(batch) > 1 for batch in batches)
    if "preserve_ordering" in batching:
        started = [id for id in walk.client.order if walk.client.calls[id].started_ns]
        times = [walk.client.calls[id].started_ns for id in started]
        assert times == sorted(times)


@pytest.mark.parametrize("seed", range(10))
def test_one_at_a_time(seed):
    """Without batching calls run alone, in order of arrival."""
    walk = Walk('name: "m"', seed)
    for _ in range(NUM_STEPS):
        walk.go()
        walk.check()
        waiting = any(not call.is_over and not call.started_ns for call in walk.client.calls.values())
        assert not (waiting and any(instance.is_available for instance in walk.instances))
    walk.finish()
    walk.check_end()
    assert all(len(batch) == 1 for instance in walk.instances for batch in instance.batches)
    started = [call for call in walk.client.calls.values() if call.started_ns]
    assert [call.started_ns for call in started] == sorted(call.started_ns for call in started)


class SequenceWalk(Walk):
    """Clients that mostly follow the rules of sequences, and track them."""

    def __init__(self, text: str, seed: int) -> None:
        super().__init__(text, seed)
        self.open: set[int] = set()
        self.life: dict[
            str, tuple[int, int]
        ] = {}  # of each request: its sequence, and the number of that id's sequence
        self.lives: dict[int, int] = defaultdict(int)

    def submit(self, id: str) -> None:
        sequence = self.chance.randrange(1, 8)
        is_start = sequence not in self.open or self.chance.random() < 0.05
        is_end = self.chance.random() < 0.2
        if is_start:
            self.lives[sequence] += 1
        self.open.add(sequence)
        if is_end:
            self.open.discard(sequence)
        self.life[id] = sequence, self.lives[sequence]
        shape = (1, self.chance.choice([2, 2, 2, 3]))
        self.client.submit(
            id,
            inputs=[TensorData("X", "FP32", shape, bytes(4 * shape[1]))],
            sequence_id=sequence,
            sequence_start=is_start,
            sequence_end=is_end,
            timeout_us=self.chance.choice([0, 0, 800]),
        )
        if self.client.replies[id].is_over and self.client.replies[id].error:
            self.open.discard(sequence)  # the client starts again


SEQUENCES = """
    name: "m" max_batch_size: 2 input {{ name: "X" data_type: TYPE_FP32 dims: [-1] }}
    sequence_batching {{
        {} max_sequence_idle_microseconds: 4000
        state {{ input_name: "I" output_name: "O" data_type: TYPE_INT32 dims: [1] }}
    }}
"""


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "strategy",
    [
        "direct {}",
        "direct { minimum_slot_utilization: 1 max_queue_delay_microseconds: 200 }",
        "oldest { max_candidate_sequences: 3 }",
        "oldest { max_candidate_sequences: 3 preferred_batch_size: [2] max_queue_delay_microseconds: 200 }",
    ],
)
def test_sequences(strategy, seed):
    """The requests of a sequence run in order, one after another, on one instance and with one state; in a direct batch
    always in one slot."""
    walk = SequenceWalk(SEQUENCES.format(strategy), seed)
    for _ in range(NUM_STEPS):
        walk.go()
        walk.check()
    walk.finish()
    walk.check_end()

    place_of: dict[str, set[tuple[str, int]]] = defaultdict(set)
    keys_of: dict[tuple[int, int], set[str]] = defaultdict(set)
    ran: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for instance in walk.instances:
        for batch in instance.batches:
            assert len(batch) <= 2
            assert len({call.request.inputs[0].shape for call in batch}) == 1
            keys = [call.state_key for call in batch if call.request.id]
            assert len(keys) == len(set(keys)) > 0
            for place, call in enumerate(batch):
                if call.request.id:
                    life = walk.life[call.request.id]
                    place_of[call.state_key].add((instance.name, place if "direct" in strategy else 0))
                    keys_of[life].add(call.state_key)
                    ran[life].append((call.started_ns, int(call.request.id)))
    assert all(len(places) == 1 for places in place_of.values())
    assert all(len(keys) == 1 for keys in keys_of.values())
    assert len(keys_of) == len(place_of)
    for steps in ran.values():
        assert [number for _, number in sorted(steps)] == sorted(number for _, number in steps)
    assert len(ran) > 10


@pytest.mark.parametrize("seed", range(8))
def test_resources_are_never_exceeded(seed):
    """Several models share one limiter; a batch with available resources runs."""
    limits = {(GLOBAL, "R"): 3}
    limiter = RateLimiter(limits)
    text = (
        "name: 'm' instance_group {{ count: 2 rate_limiter {{ resources {{ name: 'R' global: true count: {} }} }} }} {}"
    )
    walks = [
        Walk(text.format(1, ""), seed, 2, limiter),
        Walk(text.format(2, "max_batch_size: 8 dynamic_batching {}"), seed + 100, 2, limiter),
        Walk(
            text.format(3, "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 200 }"), seed, 2, limiter
        ),
    ]

    def in_use() -> int:
        return sum(
            need * sum(bool(instance.running) for instance in walk.instances) for need, walk in enumerate(walks, 1)
        )

    for _ in range(NUM_STEPS):
        for walk in walks:
            walk.go()
            walk.check()
            assert in_use() <= 3
            assert f"R@global {in_use()}/3" in repr(limiter)
    for _ in range(100):
        for walk in walks:
            walk.finish()
    for walk in walks:
        walk.check_end()
    assert repr(limiter) == "<RateLimiter: R@global 0/3; 0 waiting>"


class Graph:
    """A random ensemble, whose models respond with the path of their inputs."""

    def __init__(self, chance: random.Random) -> None:
        self.steps: list[tuple[list[str], list[str]]] = []
        tensors = ["in0", "in1"]
        for number in range(chance.randrange(1, 8)):
            made = [f"t{number}.{output}" for output in range(chance.randrange(1, 3))]
            self.steps.append((chance.sample(tensors, chance.randrange(1, min(4, len(tensors) + 1))), made))
            tensors += made
        self.outputs = chance.sample(tensors[2:], chance.randrange(1, len(tensors) - 1))
        self.wanted = chance.sample(self.outputs, chance.randrange(1, len(self.outputs) + 1))

    def config(self) -> str:
        text = 'name: "e" input { name: "in0" } input { name: "in1" } '
        text += "".join(f'output {{ name: "{name}" }} ' for name in self.outputs)
        steps = ""
        for number, (used, made) in enumerate(self.steps):
            maps = "".join(f'input_map {{ key: "i{n}" value: "{name}" }} ' for n, name in enumerate(used))
            maps += "".join(f'output_map {{ key: "o{n}" value: "{name}" }} ' for n, name in enumerate(made))
            steps += f'step {{ model_name: "{number}" model_version: -1 {maps} }} '
        return text + f"ensemble_scheduling {{ {steps} }}"

    def compute(self) -> dict[str, bytes]:
        """All tensors, computed step by step."""
        values = {"in0": b"0", "in1": b"1"}
        for number, (used, made) in enumerate(self.steps):
            for output, name in enumerate(made):
                values[name] = model_of(number, output, [values[source] for source in used])
        return values


def model_of(number: int, output: int, inputs: list[bytes]) -> bytes:
    return b"%d.%d(%s)" % (number, output, b",".join(inputs))


@pytest.mark.parametrize("seed", range(40))
def test_an_ensemble_follows_its_graph(seed):
    """Whatever the order of responses, each needed step runs once and no other step runs."""
    chance = random.Random(seed)
    graph = Graph(chance)
    requests: list[InferenceCall] = []
    ensemble = Ensemble(config(graph.config()), lambda model, version: requests.append)
    client = SchedulerClient(ensemble.submit, HandClock())
    client.submit(
        "1",
        inputs=[TensorData("in0", "UINT8", (1,), b"0"), TensorData("in1", "UINT8", (1,), b"1")],
        outputs=tuple(WantedOutput(name) for name in graph.wanted),
    )
    ran = []
    while requests:
        call = requests.pop(chance.randrange(len(requests)))
        number = int(call.request.model)
        ran.append(number)
        inputs = [tensor.data for tensor in sorted(call.request.inputs, key=lambda tensor: tensor.name)]
        made = [model_of(number, output, inputs) for output in range(len(graph.steps[number][1]))]
        outputs = tuple(TensorData(f"o{n}", "UINT8", (len(data),), data) for n, data in enumerate(made))
        call.respond(InferResponse(outputs), is_final=True)
    assert client.outcomes() == ["answered"]
    expected = graph.compute()
    (response,) = client.replies["1"].responses
    assert {tensor.name: tensor.data for tensor in response.outputs} == {name: expected[name] for name in graph.wanted}
    needed = {n for n in range(len(graph.steps)) if any(b"%d." % n in expected[name] for name in graph.wanted)}
    assert sorted(ran) == sorted(needed)
