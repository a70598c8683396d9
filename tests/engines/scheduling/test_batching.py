"""Dynamic batching, as Triton's configuration describes it."""

import pytest

from engines.core.messages import InferResponse, SharedMemory, TensorData
from engines.scheduling.factory import scheduler_for
from tests.engines.scheduling.stage import CANCELLED, MS, US, FakeInstance, HandClock, SchedulerClient, config

TIMED_OUT = "UNAVAILABLE: Request timeout expired"


class Batching:
    """A model with dynamic batching, whose instance is busy until the test ends its work."""

    def __init__(self, batching: str, more: str = "", max_batch_size: int = 8, num_instances: int = 1) -> None:
        self.clock = HandClock()
        self.instances = [FakeInstance(f"m_0_{number}") for number in range(num_instances)]
        text = f'name: "m" max_batch_size: {max_batch_size} dynamic_batching {{ {batching} }} {more}'
        self.scheduler = scheduler_for(config(text), self.instances, self.clock)
        self.client = SchedulerClient(self.scheduler.submit, self.clock)

    @property
    def instance(self) -> FakeInstance:
        return self.instances[0]

    def occupy(self) -> None:
        """Occupy each instance, so that later calls wait."""
        for number, instance in enumerate(self.instances):
            self.client.submit(f"busy{number}", rows=8)
            self.clock.move(0)
            assert instance.running

    def run(self) -> list[str]:
        """Answer all running batches, until none is left; the batches so far, each as its ids."""
        while any(instance.running for instance in self.instances):
            for instance in self.instances:
                if instance.running:
                    instance.answer()
        return ["+".join(ids) for instance in self.instances for ids in instance.ids]


@pytest.mark.parametrize(
    "batching, rows, batches",
    [
        ("", "11", ["a+b"]),
        ("", "11111111111", ["a+b+c+d+e+f+g+h", "i+j+k"]),
        ("", "345", ["a+b", "c"]),
        ("", "83", ["a", "b"]),
        ("preferred_batch_size: [4]", "111111", ["a+b+c+d", "e+f"]),
        ("preferred_batch_size: [2, 4]", "111", ["a+b", "c"]),
        ("preferred_batch_size: [4]", "32", ["a", "b"]),  # not 5: that is more than any that is preferred
        ("preferred_batch_size: [4]", "62", ["a", "b"]),
        ("preferred_batch_size: [4]", "8111", ["a", "b+c+d"]),
        ("preferred_batch_size: [4, 6]", "2223", ["a+b+c", "d"]),
    ],
)
def test_what_waits_is_batched(batching, rows, batches):
    """A free instance gets as many waiting calls as fit, in a preferred size if there are enough."""
    stage = Batching(batching)
    stage.occupy()
    for name, number in zip("abcdefghijk", rows, strict=False):
        stage.client.submit(name, rows=int(number))
    assert stage.run() == ["busy0", *batches]
    assert stage.scheduler.num_pending == 0


def test_without_a_delay_nothing_waits_for_company():
    """A call that finds a free instance runs at once, alone."""
    stage = Batching("preferred_batch_size: [4]", num_instances=2)
    for name in "abc":
        stage.client.submit(name)
    assert [instance.ids for instance in stage.instances] == [[["a"]], [["b"]]]


def test_a_model_without_a_batch_axis_runs_one_call_at_a_time():
    """With max_batch_size 0 each call is a batch."""
    stage = Batching("", max_batch_size=0)
    stage.client.submit("a")
    stage.client.submit("b")
    stage.client.submit("c")
    assert stage.run() == ["a", "b", "c"]


def test_a_batch_waits_for_a_preferred_size_until_the_delay_is_over():
    """max_queue_delay_microseconds counts from the oldest call."""
    stage = Batching("preferred_batch_size: [3] max_queue_delay_microseconds: 100")
    stage.client.submit("a")
    stage.clock.move(60 * US)
    stage.client.submit("b")
    assert stage.instance.ids == []
    stage.clock.move(39 * US)
    assert stage.instance.ids == []
    stage.clock.move(1 * US)
    assert stage.instance.ids == [["a", "b"]]

    stage.instance.answer()
    for name in "cde":
        stage.client.submit(name)
    assert stage.instance.ids[1:] == [["c", "d", "e"]]
    assert stage.clock.num_timers == 0


def test_the_delay_counts_while_instances_are_at_work():
    """A call that has waited longer than the delay for an instance does not wait for a larger batch."""
    stage = Batching("preferred_batch_size: [4] max_queue_delay_microseconds: 100")
    stage.occupy()
    stage.client.submit("a")
    stage.clock.move(200 * US)
    stage.client.submit("b")
    assert stage.run() == ["busy0", "a+b"]


def test_after_the_delay_a_batch_may_grow_past_the_preferred_size():
    """Once the oldest call has exceeded the delay, the batch takes all calls that fit."""
    stage = Batching("preferred_batch_size: [2] max_queue_delay_microseconds: 100")
    stage.occupy()
    for name in "abc":
        stage.client.submit(name)
    stage.clock.move(100 * US)
    assert stage.run() == ["busy0", "a+b+c"]


def test_a_batch_that_waits_goes_when_the_next_call_does_not_fit():
    """A batch that cannot take the next call runs at once."""
    stage = Batching("preferred_batch_size: [8] max_queue_delay_microseconds: 100", num_instances=2)
    stage.client.submit("a", rows=5)
    stage.client.submit("b", rows=4)
    assert stage.instances[0].ids == [["a"]]
    assert stage.instances[1].ids == []
    stage.clock.move(100 * US)
    assert stage.instances[1].ids == [["b"]]


def test_a_cancelled_call_leaves_the_batch_that_waits():
    """The remaining calls wait on for a preferred size."""
    stage = Batching("preferred_batch_size: [2] max_queue_delay_microseconds: 100")
    stage.client.submit("a")
    stage.client.calls["a"].cancel()
    assert (stage.client.outcomes(), stage.clock.num_timers) == ([CANCELLED], 0)
    stage.client.submit("b")
    assert stage.instance.ids == []
    stage.client.submit("c")
    assert stage.instance.ids == [["b", "c"]]


FP = "input { name: 'X' data_type: TYPE_FP32 dims: [%s] %s }"


def x(*shape: int, name: str = "X", data: bytes | SharedMemory = b"") -> TensorData:
    return TensorData(name, "FP32", shape, data)


REGION = SharedMemory("/region", 0, 4)


@pytest.mark.parametrize(
    "inputs, calls, batches",
    [
        # Shapes count where they vary, without the first axis.
        (FP % ("-1", ""), [[x(1, 2)], [x(1, 2)], [x(1, 3)], [x(1, 2)]], ["a+b", "c", "d"]),
        (FP % ("-1", ""), [[x(1, 2)], [x(3, 2)]], ["a+b"]),
        (FP % ("-1", "allow_ragged_batch: true"), [[x(1, 2)], [x(1, 3)]], ["a+b"]),
        (FP % ("4", ""), [[x(1, 4)], [x(1, 4)]], ["a+b"]),
        # The content of a shape tensor counts.
        (
            FP % ("2", "is_shape_tensor: true"),
            [[x(1, 2, data=b"ab")], [x(1, 2, data=memoryview(b"ab"))], [x(1, 2, data=b"cd")]],
            ["a+b", "c"],
        ),
        (FP % ("2", "is_shape_tensor: true"), [[x(1, 2, data=REGION)], [x(1, 2, data=REGION)]], ["a+b"]),
        (FP % ("2", "is_shape_tensor: true"), [[x(1, 2, data=b"ab")], [x(1, 2, data=REGION)]], ["a", "b"]),
        # With optional inputs, those that are there are to be the same.
        (
            FP % ("2", "optional: true"),
            [[x(1, 2)], [x(1, 2)], [x(1, 2), x(1, 2, name="Y")], [x(1, 2, name="Y"), x(1, 2)], []],
            ["a+b", "c+d", "e"],
        ),
    ],
)
def test_only_like_calls_share_a_batch(inputs, calls, batches):
    """Inputs must be equal under the same conditions as in Triton."""
    stage = Batching("", more=inputs)
    stage.occupy()
    for name, tensors in zip("abcdef", calls, strict=False):
        stage.client.submit(name, inputs=tensors)
    assert stage.run() == ["busy0", *batches]


def test_an_unlike_call_sends_off_the_batch_that_waits():
    """A call that cannot join starts the earlier calls: their batch can no longer grow."""
    stage = Batching("preferred_batch_size: [8] max_queue_delay_microseconds: 100", more=FP % ("-1", ""))
    stage.client.submit("a", inputs=[x(1, 2)])
    stage.client.submit("b", inputs=[x(1, 2)])
    assert stage.instance.ids == []
    stage.client.submit("c", inputs=[x(1, 3)])
    assert stage.instance.ids == [["a", "b"]]


POLICY = "default_queue_policy { %s }"


@pytest.mark.parametrize(
    "policy, timeouts_us, after_us, outcomes",
    [
        ("default_timeout_microseconds: 100", [0, 0], 100, ["waits", "waits"]),
        ("default_timeout_microseconds: 100", [0, 0], 101, [TIMED_OUT, TIMED_OUT]),
        ("default_timeout_microseconds: 100", [50, 0], 60, ["waits", "waits"]),
        ("default_timeout_microseconds: 100 allow_timeout_override: true", [0, 50], 60, ["waits", TIMED_OUT]),
        ("default_timeout_microseconds: 100 allow_timeout_override: true", [200, 50], 1100, [TIMED_OUT, TIMED_OUT]),
        ("allow_timeout_override: true", [50, 50], 1000, ["waits", "waits"]),
        ("timeout_action: DELAY default_timeout_microseconds: 100", [0, 0], 1000, ["waits", "waits"]),
        ("max_queue_size: 1", [0, 0], 0, ["waits", "UNAVAILABLE: [request id: b] Exceeds maximum queue size"]),
    ],
)
def test_queue_policies(policy, timeouts_us, after_us, outcomes):
    """A waiting call is rejected at its timeout though every instance is busy, and a full queue rejects new calls. A
    request may shorten the timeout where that is allowed, and never lengthen it."""
    stage = Batching(POLICY % policy)
    stage.occupy()
    for name, timeout_us in zip("ab", timeouts_us, strict=True):
        stage.client.submit(name, timeout_us=timeout_us)
    stage.clock.move(after_us * US)
    assert stage.client.outcomes("a", "b") == outcomes
    assert stage.scheduler.num_pending == outcomes.count("waits")
    stage.run()


def test_delayed_calls_run_after_those_in_time():
    """With timeout_action DELAY a late call runs after those in time."""
    stage = Batching("preferred_batch_size: [1] " + POLICY % "timeout_action: DELAY default_timeout_microseconds: 100")
    stage.occupy()
    stage.client.submit("a")
    stage.clock.move(200 * US)
    stage.client.submit("b")
    assert stage.run() == ["busy0", "b", "a"]


def test_a_deadline_breaks_up_the_batch_that_waits():
    """A call may be rejected before the queue delay is over."""
    stage = Batching(
        "preferred_batch_size: [8] max_queue_delay_microseconds: 5000 "
        + POLICY % "default_timeout_microseconds: 500 allow_timeout_override: true"
    )
    stage.client.submit("a", timeout_us=10)
    stage.client.submit("b")
    stage.clock.move(20 * US)
    assert stage.client.outcomes() == [TIMED_OUT, "waits"]
    stage.clock.move(2 * MS)
    assert stage.client.outcomes() == [TIMED_OUT, TIMED_OUT]
    assert stage.instance.ids == []


def test_priorities_run_first():
    """With priority_levels, level 1 precedes 2; no level or an unknown one means the default."""
    stage = Batching("preferred_batch_size: [1] priority_levels: 3 default_priority_level: 2")
    stage.occupy()
    for name, priority in zip("abcdef", [3, 2, 0, 1, 9, 1], strict=True):
        stage.client.submit(name, priority=priority)
    assert stage.run() == ["busy0", "d", "f", "b", "c", "e", "a"]


def test_a_priority_may_have_a_policy_of_its_own():
    """priority_queue_policy takes precedence over default_queue_policy."""
    stage = Batching(
        "preferred_batch_size: [1] priority_levels: 2 default_priority_level: 2 "
        "default_queue_policy { max_queue_size: 1 } "
        "priority_queue_policy { key: 1 value { max_queue_size: 2 default_timeout_microseconds: 10 } }"
    )
    stage.occupy()
    for name, priority in zip("abcde", [1, 1, 1, 2, 2], strict=True):
        stage.client.submit(name, priority=priority)
    full = "UNAVAILABLE: [request id: {}] Exceeds maximum queue size"
    assert stage.client.outcomes(*"abcde") == ["waits", "waits", full.format("c"), "waits", full.format("e")]
    stage.clock.move(1 * MS)
    assert stage.client.outcomes(*"abd") == [TIMED_OUT, TIMED_OUT, "waits"]


def test_a_higher_priority_changes_the_batch_that_waits():
    """A call of higher priority comes first in the waiting batch."""
    stage = Batching(
        "preferred_batch_size: [3] max_queue_delay_microseconds: 100 priority_levels: 2 default_priority_level: 2"
    )
    stage.client.submit("a")
    stage.client.submit("b", priority=1)
    stage.clock.move(100 * US)
    assert stage.instance.ids == [["b", "a"]]


def test_responses_keep_the_order_of_their_calls():
    """With preserve_ordering a response is held back until all earlier calls have theirs."""
    stage = Batching("preserve_ordering: true", num_instances=3)
    for name in "abc":
        stage.client.submit(name)
    second, third = stage.instances[1], stage.instances[2]
    third.answer()
    second.answer()
    assert stage.client.outcomes() == ["waits", "waits", "waits"]
    stage.instances[0].answer()
    assert stage.client.order == ["a", "b", "c"]


def test_order_is_kept_response_by_response():
    """The first call of a decoupled model gets its responses at once; later calls wait for its end."""
    stage = Batching("preserve_ordering: true", num_instances=2)
    first, second = stage.client.submit("a"), stage.client.submit("b")
    replies = stage.client.replies
    second.respond(InferResponse(), is_final=False)
    first.respond(InferResponse(), is_final=False)
    assert (len(replies["a"].responses), len(replies["b"].responses)) == (1, 0)
    first.finish()
    assert len(replies["b"].responses) == 1
    second.respond(InferResponse(), is_final=True)
    assert stage.client.order == ["a", "b"]


def test_without_preserve_ordering_answers_go_as_they_come():
    """Without preserve_ordering, Triton's default, responses are sent as they come."""
    stage = Batching("", num_instances=2)
    stage.client.submit("a")
    stage.client.submit("b")
    stage.instances[1].answer()
    assert stage.client.order == ["b"]


def test_stopping_fails_what_waits():
    """Stopping also fails calls that wait for a larger batch, and leaves no timer."""
    stage = Batching(
        "preferred_batch_size: [3] max_queue_delay_microseconds: 100 "
        "default_queue_policy { default_timeout_microseconds: 1000 }"
    )
    stage.client.submit("a")
    stage.scheduler.stop()
    stage.client.submit("b")
    stopped = "Server is stopping, scheduler for model has stopped accepting new inference requests"
    assert stage.client.outcomes() == [f"UNAVAILABLE: [request id: {name}] {stopped}" for name in "ab"]
    assert stage.clock.num_timers == 0


def test_a_crash_fails_its_batch_alone():
    """The next batch waits for an instance."""
    stage = Batching("")
    stage.occupy()
    stage.client.submit("a")
    stage.client.submit("b")
    stage.instance.crash()
    assert stage.client.outcomes() == ["INTERNAL: crashed", "waits", "waits"]
    stage.instance.is_up = True
    stage.scheduler.instance_changed(stage.instance)
    assert stage.run() == ["busy0", "a+b"]
