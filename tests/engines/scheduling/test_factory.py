"""The scheduler of models without batching."""

import pytest

from engines.scheduling.factory import DefaultScheduler, scheduler_for
from tests.engines.scheduling.stage import CANCELLED, FakeInstance, HandClock, SchedulerClient, config

STOPPED = (
    "UNAVAILABLE: [request id: {}] Server is stopping, scheduler for model has stopped accepting new inference requests"
)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def test_without_batching_each_call_runs_alone(clock):
    """Calls wait while all instances are busy, and start in order when one is free."""
    first, second = FakeInstance("m_0_0"), FakeInstance("m_0_1")
    scheduler = scheduler_for(config('name: "m" max_batch_size: 8'), [first, second], clock)
    client = SchedulerClient(scheduler.submit, clock)
    for name in "abcd":
        client.submit(name)
    assert (first.ids, second.ids, scheduler.num_pending) == ([["a"]], [["b"]], 2)

    second.answer()
    first.answer()
    assert (first.ids, second.ids, scheduler.num_pending) == ([["a"], ["d"]], [["b"], ["c"]], 0)
    assert client.outcomes() == ["answered", "answered", "waits", "waits"]
    assert client.calls["a"].started_ns == clock.now


def test_a_cancelled_call_leaves_the_queue_at_once(clock):
    """A waiting call fails as cancelled and does not run; a running one is left to its instance."""
    instance = FakeInstance()
    scheduler = DefaultScheduler([instance], clock)
    client = SchedulerClient(scheduler.submit, clock)
    for name in "abc":
        client.submit(name)
    client.calls["b"].cancel()
    client.calls["a"].cancel()
    assert client.outcomes() == ["waits", CANCELLED, "waits"]
    assert scheduler.num_pending == 1

    instance.answer()
    assert instance.ids == [["a"], ["c"]]


def test_a_call_cancelled_before_it_comes_is_not_run(clock):
    """A call that is cancelled before it is submitted does not run."""
    instance = FakeInstance()
    client = SchedulerClient(lambda call: (call.cancel(), DefaultScheduler([instance], clock).submit(call)), clock)
    client.submit("a")
    assert (client.outcomes(), instance.batches) == ([CANCELLED], [])


def test_an_instance_that_goes_is_not_used_until_it_is_back(clock):
    """Calls wait for an instance that restarts."""
    instance = FakeInstance()
    scheduler = DefaultScheduler([instance], clock)
    client = SchedulerClient(scheduler.submit, clock)
    client.submit("a")
    client.submit("b")
    instance.crash()
    scheduler.instance_changed(instance)
    client.submit("c")
    assert client.outcomes() == ["INTERNAL: crashed", "waits", "waits"]

    instance.is_up = True
    scheduler.instance_changed(instance)
    scheduler.instance_changed(instance)
    assert instance.ids == [["a"], ["b"]]
    instance.answer()
    instance.answer()
    assert client.outcomes() == ["INTERNAL: crashed", "answered", "answered"]


def test_an_idle_instance_that_goes_is_not_used(clock):
    """The instance is reported by `instance_changed`, or checked before its use."""
    gone, silent, other = FakeInstance("m_0_0"), FakeInstance("m_0_1"), FakeInstance("m_0_2")
    scheduler = DefaultScheduler([gone, silent, other], clock)
    client = SchedulerClient(scheduler.submit, clock)
    gone.is_up = silent.is_up = False
    scheduler.instance_changed(gone)
    client.submit("a")
    client.submit("b")
    assert (gone.batches, silent.batches, other.ids) == ([], [], [["a"]])


def test_an_instance_that_is_not_there_yet_is_used_once_it_is(clock):
    """Calls may arrive before the model's instances are up."""
    instance = FakeInstance()
    instance.is_up = False
    scheduler = DefaultScheduler([instance], clock)
    client = SchedulerClient(scheduler.submit, clock)
    client.submit("a")
    instance.is_up = True
    scheduler.instance_changed(instance)
    assert instance.ids == [["a"]]


def test_stopping_fails_what_waits(clock):
    """A running call ends; waiting and later calls fail as unavailable."""
    instance = FakeInstance()
    scheduler = DefaultScheduler([instance], clock)
    client = SchedulerClient(scheduler.submit, clock)
    client.submit("a")
    client.submit("b")
    scheduler.stop()
    client.submit("")
    instance.answer()
    assert client.outcomes() == ["answered", STOPPED.format("b"), STOPPED.format("<id_unknown>")]


def test_a_thousand_calls_that_are_answered_at_once(clock):
    """An instance that responds before `execute` returns uses no stack for each waiting call."""
    instance = FakeInstance()
    scheduler = DefaultScheduler([instance], clock)
    client = SchedulerClient(scheduler.submit, clock)
    for number in range(3000):
        client.submit(str(number))
    instance.is_instant = True
    instance.answer()
    assert set(client.outcomes()) == {"answered"}
    assert client.order == [str(number) for number in range(3000)]


def test_an_instance_that_raises_costs_its_call_only(clock):
    """The call fails with the exception, and the instance is used again."""

    class Raising(FakeInstance):
        def execute(self, calls, done):
            if calls[0].request.id == "a":
                raise BrokenPipeError("no one there")
            super().execute(calls, done)

    scheduler = DefaultScheduler([Raising(is_instant=True)], clock)
    client = SchedulerClient(scheduler.submit, clock)
    client.submit("a")
    client.submit("b")
    assert client.outcomes() == ["INTERNAL: failed to hand the request to the model instance: no one there", "answered"]
