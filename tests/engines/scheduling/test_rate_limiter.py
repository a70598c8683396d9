"""Rate limiting by resources."""

import pytest

from engines.core.errors import EngineError
from engines.scheduling.factory import scheduler_for
from engines.scheduling.rate_limiter import GLOBAL, PER_DEVICE, RateLimiter
from tests.engines.scheduling.stage import CANCELLED, FakeInstance, HandClock, SchedulerClient, config


class Model:
    """A model with a limiter: one instance for each device number."""

    def __init__(self, limiter: RateLimiter, name: str, limits: str, devices: str = "0", more: str = "") -> None:
        self.clock = HandClock()
        self.instances = [FakeInstance(f"{name}_0_{n}", device_id=int(d)) for n, d in enumerate(devices)]
        text = f'name: "{name}" instance_group {{ count: {len(devices)} rate_limiter {{ {limits} }} }} {more}'
        self.scheduler = scheduler_for(config(text), self.instances, self.clock, limiter=limiter)
        self.client = SchedulerClient(self.scheduler.submit, self.clock)

    @property
    def running(self) -> list[str]:
        return [call.request.id for instance in self.instances for call in instance.running]


GLOBAL_R = "resources { name: 'R' global: true count: %d }"
DEVICE_R = "resources { name: 'R' count: %d }"


def test_what_needs_a_resource_waits_for_it():
    """Instances of several models share a global resource, which by default covers the largest demand."""
    limiter = RateLimiter()
    a, b = Model(limiter, "a", GLOBAL_R % 1, "00"), Model(limiter, "b", GLOBAL_R % 2)
    free = Model(limiter, "free", "")
    for model in (a, b, free):
        model.client.submit("1")
        model.client.submit("2")
    assert (a.running, b.running, free.running) == (["1", "2"], [], ["1"])
    assert repr(limiter) == "<RateLimiter: R@global 2/2; 1 waiting>"
    a.instances[0].answer()
    assert (a.running, b.running) == (["2"], [])
    a.instances[1].answer()
    assert (a.running, b.running) == ([], ["1"])
    b.instances[0].answer()
    b.instances[0].answer()
    assert set(a.client.outcomes() + b.client.outcomes()) == {"answered"}
    assert repr(limiter) == "<RateLimiter: R@global 0/2; 0 waiting>"


def test_devices_have_resources_of_their_own():
    """An instance uses the resource of its own device."""
    model = Model(RateLimiter(), "a", DEVICE_R % 1, "001")
    for number in "123":
        model.client.submit(number)
    assert [len(instance.running) for instance in model.instances] == [1, 0, 1]
    assert model.scheduler.num_pending == 1
    model.instances[0].answer()
    assert len(model.running) == 2


def test_a_large_demand_is_met_in_the_end():
    """A waiting instance reserves its resources before later ones."""
    limiter = RateLimiter({(GLOBAL, "R"): 2})
    small, large = Model(limiter, "small", GLOBAL_R % 1, "00"), Model(limiter, "large", GLOBAL_R % 2)
    for number in "1234":
        small.client.submit(number)
    large.client.submit("L")
    small.instances[0].answer()
    assert (small.running, large.running) == (["2"], [])
    small.instances[1].answer()
    assert (small.running, large.running) == ([], ["L"])
    large.instances[0].answer()
    assert small.running == ["3", "4"]


def test_priorities_share_executions():
    """An instance of priority 2 gets half the executions of one of priority 1."""
    limiter = RateLimiter()
    often = Model(limiter, "often", GLOBAL_R % 1 + " priority: 1")
    seldom = Model(limiter, "seldom", GLOBAL_R % 1 + " priority: 2")
    for number in range(30):
        often.client.submit(str(number))
        seldom.client.submit(str(number))
    for _ in range(18):
        (often if often.running else seldom).instances[0].answer()
    assert (len(often.instances[0].batches), len(seldom.instances[0].batches)) in ((12, 7), (13, 6))


def test_what_is_cancelled_while_it_waits_takes_nothing():
    """Resources are granted only to instances with work."""
    limiter = RateLimiter()
    a, b = Model(limiter, "a", GLOBAL_R % 1), Model(limiter, "b", GLOBAL_R % 1)
    c = Model(limiter, "c", GLOBAL_R % 1)
    for model in (a, b, c):
        model.client.submit("1")
    b.client.calls["1"].cancel()
    a.instances[0].answer()
    assert (b.client.outcomes(), c.running) == ([CANCELLED], ["1"])


@pytest.mark.parametrize("ending", ["crash", "stop", "go"])
def test_what_ends_gives_back(ending):
    """Crashed instances, removed ones and unloaded models hold no resources."""
    limiter = RateLimiter()
    a, b = Model(limiter, "a", GLOBAL_R % 1), Model(limiter, "b", GLOBAL_R % 1)
    waiting = Model(limiter, "w", GLOBAL_R % 1)
    a.client.submit("1")
    b.client.submit("1")
    waiting.client.submit("1")
    if ending == "crash":
        a.instances[0].crash()
        b.instances[0].answer()
    elif ending == "stop":
        b.scheduler.stop()
        a.instances[0].answer()
    else:
        b.instances[0].is_up = False
        b.scheduler.instance_changed(b.instances[0])
        a.instances[0].answer()
    assert waiting.running == ["1"]


def test_a_batch_is_made_when_the_resource_is_free():
    """Calls that arrive while the instance waits join its batch."""
    limiter = RateLimiter()
    a = Model(limiter, "a", GLOBAL_R % 1)
    b = Model(limiter, "b", GLOBAL_R % 1, more="max_batch_size: 8 dynamic_batching {}")
    a.client.submit("1")
    for number in "123":
        b.client.submit(number)
    assert b.running == []
    a.instances[0].answer()
    assert b.running == ["1", "2", "3"]


@pytest.mark.parametrize("batching", ["direct {}", "oldest { max_candidate_sequences: 4 }"])
def test_sequences_wait_for_resources_too(batching):
    """Each batch of a sequence model is an execution and waits for resources."""
    limiter = RateLimiter()
    a = Model(limiter, "a", GLOBAL_R % 1)
    b = Model(limiter, "b", GLOBAL_R % 1, more=f"max_batch_size: 4 sequence_batching {{ {batching} }}")
    a.client.submit("1")
    b.client.submit("s", sequence_id=1, sequence_start=True)
    assert b.running == []
    a.instances[0].answer()
    assert b.running == ["s"]
    b.instances[0].answer()
    assert repr(limiter) == "<RateLimiter: R@global 0/1; 0 waiting>"


@pytest.mark.parametrize(
    "given, limits, text",
    [
        (
            {(GLOBAL, "R"): 1},
            GLOBAL_R % 2,
            'Resource count for "R" is limited to 1 which will prevent scheduling of one or more model instances, the '
            "minimum required count is 2",
        ),
        (
            {(GLOBAL, "S"): 1},
            DEVICE_R % 1,
            'Resource count for "R" is limited to 0 which will prevent scheduling of one or more model instances, the '
            "minimum required count is 1",
        ),
        (
            {},
            GLOBAL_R % 1 + DEVICE_R % 1,
            'Resource "R" is present as both global and device-specific resource in the model configuration.',
        ),
        ({(PER_DEVICE, "R"): 2}, DEVICE_R % 2, ""),
        ({(0, "R"): 2, (PER_DEVICE, "R"): 1}, DEVICE_R % 2, ""),
        ({(0, "R"): 2}, GLOBAL_R % 2, ""),
    ],
)
def test_demands_that_cannot_be_met_are_load_errors(given, limits, text):
    """The load fails with Triton's text, and the refused model leaves no resources."""
    limiter = RateLimiter(given)
    if text:
        with pytest.raises(EngineError) as error:
            Model(limiter, "a", limits)
        assert error.value.message == text
        assert repr(limiter) == "<RateLimiter: no resources; 0 waiting>"
    else:
        Model(limiter, "a", limits).client.submit("1")


def test_without_a_limiter_resources_mean_nothing():
    """--rate-limit off, the default."""
    clock = HandClock()
    instances = [FakeInstance("a_0_0"), FakeInstance("a_0_1")]
    text = 'name: "a" instance_group { count: 2 rate_limiter { %s } }' % (GLOBAL_R % 1)
    scheduler = scheduler_for(config(text), instances, clock)
    client = SchedulerClient(scheduler.submit, clock)
    client.submit("1")
    client.submit("2")
    assert all(instance.running for instance in instances)
