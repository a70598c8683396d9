"""Sequence batching: instances and times of execution, and the model's control inputs."""

import struct

import pytest

from engines.core.messages import SharedMemory, TensorData
from engines.scheduling.factory import scheduler_for
from tests.engines.scheduling.stage import CANCELLED, MS, US, FakeInstance, HandClock, S, SchedulerClient, config

NO_START = (
    "INVALID_ARG: inference request for sequence {} to model 'm' must specify the START flag on the first request of "
    "the sequence"
)
GONE = "UNAVAILABLE: model instance 'm_0_0' has gone, and its sequences with it"


class Sequences:
    """A sequence model, whose instances are busy until the test ends their work."""

    def __init__(self, batching: str, more: str = "max_batch_size: 4", num_instances: int = 1) -> None:
        self.clock = HandClock()
        self.instances = [FakeInstance(f"m_0_{number}") for number in range(num_instances)]
        self.dropped: list[tuple[str, str]] = []
        self.scheduler = scheduler_for(
            config(f'name: "m" {more} sequence_batching {{ {batching} }}'),
            self.instances,
            self.clock,
            drop_state=lambda instance, key: self.dropped.append((instance.name, key)),
        )
        self.client = SchedulerClient(self.scheduler.submit, self.clock)

    @property
    def instance(self) -> FakeInstance:
        return self.instances[0]

    @property
    def batches(self) -> list[str]:
        """The batches of all instances; an idle row is "-"."""
        return [
            "+".join(call.request.id or "-" for call in batch)
            for instance in self.instances
            for batch in instance.batches
        ]

    def step(self, id: str, sequence: int | str, flags: str = "", **more) -> None:
        """A request of a sequence: S starts it, E ends it."""
        self.client.submit(id, sequence_id=sequence, sequence_start="S" in flags, sequence_end="E" in flags, **more)

    def run(self) -> list[str]:
        """Answer all running batches, until none is left."""
        while any(instance.running for instance in self.instances):
            for instance in self.instances:
                if instance.running:
                    instance.answer()
        return self.batches


BOTH = pytest.mark.parametrize("strategy", ["direct {}", "oldest { max_candidate_sequences: 4 }"])


@BOTH
@pytest.mark.parametrize(
    "sequence, flags, rows, outcomes",
    [
        (0, "S", 1, "INVALID_ARG: inference request to model 'm' must specify a non-zero or non-empty correlation ID"),
        ("", "S", 1, "INVALID_ARG: inference request to model 'm' must specify a non-zero or non-empty correlation ID"),
        (7, "", 1, NO_START.format(7)),
        ("chat", "E", 1, NO_START.format("chat")),
        (
            7,
            "S",
            2,
            "INVALID_ARG: inference request to model 'm' must specify batch-size 1 due to requirements of sequence "
            "batcher",
        ),
    ],
)
def test_requests_that_are_no_part_of_a_sequence(strategy, sequence, flags, rows, outcomes):
    """Such requests are refused with Triton's texts."""
    stage = Sequences(strategy)
    stage.step("a", sequence, flags, rows=rows)
    assert (stage.client.outcomes(), stage.batches) == ([outcomes], [])


@BOTH
def test_a_sequence_is_over_with_its_end(strategy):
    """A request after END must start a new sequence."""
    stage = Sequences(strategy)
    stage.step("a", 7, "S")
    stage.step("b", 7)
    stage.step("c", 7, "E")
    stage.step("d", 7)
    assert stage.run() == ["a", "b", "c"]
    assert stage.client.outcomes() == ["answered", "answered", "answered", NO_START.format(7)]
    stage.step("e", 7, "SE")
    assert stage.run()[3:] == ["e"]


@BOTH
def test_a_sequence_stays_on_its_instance(strategy):
    """Sequences are spread over the instances; all requests of one run on the same instance."""
    stage = Sequences(strategy, num_instances=2)
    for number in range(4):
        stage.step(f"{number}a", number + 1, "S")
    stage.run()
    for step in "bc":
        for number in range(4):
            stage.step(f"{number}{step}", number + 1, "E" if step == "c" else "")
        stage.run()
    ran_on = [
        {call.request.sequence_id for batch in i.batches for call in batch if call.request.id} for i in stage.instances
    ]
    assert ran_on == [{1, 3}, {2, 4}]
    assert set(stage.client.outcomes()) == {"answered"}


def test_direct_sequences_keep_their_places():
    """A slot without a request is filled with one that is not ready."""
    stage = Sequences("direct {}")
    stage.step("1a", 1, "S")
    for number in (2, 3, 4):
        stage.step(f"{number}a", number, "S")
    assert stage.batches == ["1a"]
    stage.instance.answer()
    assert stage.batches[1:] == ["-+2a+3a+4a"]
    stage.instance.answer()
    stage.step("3b", 3, "E")
    stage.instance.answer()
    stage.step("2b", 2)
    stage.instance.answer()
    stage.step("5a", 5, "S")  # takes the slot of sequence 3
    assert stage.run()[2:] == ["-+-+3b", "-+2b", "-+-+5a"]


def test_oldest_sequences_send_one_request_at_a_time():
    """A batch has at most one request of each sequence, without fixed slots."""
    stage = Sequences("oldest { max_candidate_sequences: 8 }")
    stage.step("1a", 1, "S")
    stage.step("1b", 1)
    stage.step("2a", 2, "S")
    stage.step("3a", 3, "SE")
    assert stage.batches == ["1a"]
    stage.instance.answer()
    stage.step("2b", 2)
    assert stage.run()[1:] == ["2a+3a+1b", "2b"]


def test_oldest_waits_for_a_preferred_size():
    """max_queue_delay_microseconds and preferred_batch_size work as in dynamic batching."""
    stage = Sequences("oldest { preferred_batch_size: [2] max_queue_delay_microseconds: 100 }")
    stage.step("1a", 1, "S")
    assert stage.batches == []
    stage.step("2a", 2, "S")
    assert stage.run() == ["1a+2a"]
    stage.step("1b", 1)
    stage.clock.move(100 * US)
    assert stage.run() == ["1a+2a", "1b"]


def test_direct_waits_for_slots():
    """A batch waits for minimum_slot_utilization, at most for max_queue_delay_microseconds."""
    stage = Sequences("direct { minimum_slot_utilization: 0.5 max_queue_delay_microseconds: 100 }")
    stage.step("1a", 1, "S")
    assert stage.batches == []
    stage.step("2a", 2, "S")
    assert stage.run() == ["1a+2a"]
    stage.step("2b", 2)
    stage.clock.move(99 * US)
    assert stage.batches == ["1a+2a"]
    stage.clock.move(2 * US)
    assert stage.run() == ["1a+2a", "-+2b"]


@pytest.mark.parametrize("more, shape", [("max_batch_size: 4", (1, 1)), ("max_batch_size: 0", (1,))])
@BOTH
def test_controls(strategy, more, shape):
    """START, END and READY have the configured values, CORRID has its datatype, and each has one element."""
    stage = Sequences(
        strategy
        + """
        control_input { name: "S" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 7] } }
        control_input { name: "E" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [0, 1] } }
        control_input { name: "R" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [false, true] } }
        control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT32 } }
        """,
        more,
    )
    for id, flags in (("a", "S"), ("b", ""), ("c", "E"), ("d", "SE")):
        stage.step(id, 1 << 33 | 9, flags)
    stage.run()
    statistics = {}
    for id, call in stage.client.calls.items():
        start, end, ready, corrid = call.controls
        assert [(t.name, t.datatype, t.shape) for t in call.controls] == [
            ("S", "INT32", shape),
            ("E", "FP32", shape),
            ("R", "BOOL", shape),
            ("C", "INT32", shape),
        ]
        assert corrid.data == struct.pack("<i", 9)
        statistics[id] = (
            struct.unpack("<i", start.data) + struct.unpack("<f", end.data) + struct.unpack("<?", ready.data)
        )
    assert statistics == {"a": (7, 0.0, True), "b": (0, 0.0, True), "c": (0, 1.0, True), "d": (7, 1.0, True)}


@pytest.mark.parametrize(
    "datatype, sequence, data",
    [
        ("TYPE_UINT64", 2**64 - 1, b"\xff" * 8),
        ("TYPE_INT64", 5, struct.pack("<q", 5)),
        ("TYPE_UINT32", 5, struct.pack("<I", 5)),
        ("TYPE_STRING", "chät", b"\x05\0\0\0ch\xc3\xa4t"),
        ("TYPE_STRING", 12, b"\x02\0\0\x0012"),
        ("TYPE_UINT64", "chat", None),
    ],
)
def test_correlation_ids(datatype, sequence, data):
    """A sequence id is converted to the configured datatype; a text cannot become a number."""
    stage = Sequences(
        f'direct {{}} control_input {{ name: "C" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: {datatype} }} }}'
    )
    stage.step("a", sequence, "S")
    if data is None:
        assert stage.client.outcomes()[0].startswith(
            "INVALID_ARG: inference request for sequence chat to model 'm' must"
        )
    else:
        assert stage.client.calls["a"].controls[0].data == data


REGION = SharedMemory("/region", 0, 12)


@pytest.mark.parametrize(
    "tensor, data",
    [
        (TensorData("X", "INT32", (1, 3), b"\x01" * 12), b"\0" * 12),
        (TensorData("X", "INT32", (1, 3), memoryview(b"\x01" * 12)), b"\0" * 12),
        (TensorData("X", "INT32", (1, 3), REGION), b"\0" * 12),
        (TensorData("X", "BYTES", (1, 2), b"\1\0\0\0a\1\0\0\0b"), b"\0" * 8),
    ],
)
def test_what_fills_a_place(tensor, data):
    """Inputs of zeros like those of a running request, controls of a row that is not ready, and no stored state."""
    stage = Sequences(
        """direct {}
        control_input { name: "S" control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }
        control_input { name: "R" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [0, 1] } }
        control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT32 } }
        state { input_name: "I" output_name: "O" data_type: TYPE_INT32 dims: [1] }
        """
    )
    stage.step("1a", 1, "S", inputs=[tensor])
    stage.step("2a", 2, "S", inputs=[tensor])
    stage.run()
    filler = stage.instance.batches[1][0]
    assert filler.request.inputs == (TensorData("X", tensor.datatype, tensor.shape, data),)
    assert [control.data for control in filler.controls] == [b"\0\0\0\0"] * 3
    assert filler.state_key == ""


def test_direct_batches_have_like_shapes():
    """A request of another shape waits for the next batch, and its slot is filled."""
    stage = Sequences("direct {}", "max_batch_size: 4 input { name: 'X' data_type: TYPE_FP32 dims: [-1] }")
    short, long = TensorData("X", "FP32", (1, 1), b"\0" * 4), TensorData("X", "FP32", (1, 2), b"\0" * 8)
    stage.step("0a", 9, "S", inputs=[short])
    stage.step("1a", 1, "S", inputs=[short])
    stage.step("2a", 2, "S", inputs=[long])
    stage.step("3a", 3, "S", inputs=[short])
    assert stage.run() == ["0a", "-+1a+-+3a", "-+-+2a"]


@BOTH
def test_sequences_wait_for_slots(strategy):
    """Waiting sequences get slots in the order of their starts, with all requests that have arrived."""
    stage = Sequences(strategy)
    for number in range(1, 5):
        stage.step(f"{number}a", number, "S")
    stage.step("5a", 5, "S")
    stage.step("6a", 6, "S")
    stage.step("5b", 5)
    stage.step("6b", 6, "E")
    stage.run()
    assert stage.client.outcomes("5a", "5b", "6a", "6b") == ["waits"] * 4
    assert stage.scheduler.num_pending == 4
    stage.step("6x", 6)  # that sequence is complete
    assert stage.client.outcomes("6x") == [NO_START.format(6)]

    stage.step("2b", 2, "E")
    stage.run()
    assert stage.client.outcomes("5a", "5b", "6a", "6b") == ["answered", "answered", "waits", "waits"]
    stage.step("5c", 5, "E")
    stage.run()
    assert stage.client.outcomes("5c", "6a", "6b") == ["answered"] * 3
    assert stage.scheduler.num_pending == 0


@pytest.mark.parametrize("strategy", ["direct {}", "oldest { max_candidate_sequences: 1 }"])
def test_a_silent_sequence_loses_its_slot(strategy):
    """After max_sequence_idle_microseconds without a request the sequence ends, and a waiting one gets the slot."""
    stage = Sequences(strategy + " max_sequence_idle_microseconds: 5000", "max_batch_size: 1")
    stage.step("1a", 1, "S")
    stage.run()
    stage.clock.move(4 * MS)
    stage.step("1b", 1)
    stage.step("2a", 2, "S")
    stage.run()
    stage.clock.move(4 * MS)
    assert stage.client.outcomes("2a") == ["waits"]
    stage.clock.move(1 * MS)
    stage.run()
    assert stage.client.outcomes("2a") == ["answered"]
    stage.step("1c", 1)
    assert stage.client.outcomes("1c") == [NO_START.format(1)]


@BOTH
def test_an_idle_sequence_runs_what_it_has(strategy):
    """The idle timeout ends a sequence after the requests that already wait, as in Triton."""
    stage = Sequences(strategy + " max_sequence_idle_microseconds: 1000")
    stage.step("1a", 1, "S")
    stage.step("1b", 1)
    stage.clock.move(1 * MS)
    stage.step("1c", 1)
    assert stage.run() == ["1a", "1b"]
    assert stage.client.outcomes() == ["answered", "answered", NO_START.format(1)]


def test_the_default_idle_timeout_is_a_second():
    """The default idle timeout is Triton's."""
    stage = Sequences("direct {}")
    stage.step("a", 1, "S")
    stage.run()
    stage.clock.move(S - 1)
    stage.step("b", 1)
    stage.run()
    stage.clock.move(S)
    stage.step("c", 1)
    assert stage.client.outcomes() == ["answered", "answered", NO_START.format(1)]


def test_a_sequence_in_the_backlog_may_time_out():
    """A waiting sequence ends at the shortest timeout of its requests: all of them fail, and other sequences wait
    on."""
    stage = Sequences("direct {}", "max_batch_size: 1")
    stage.step("1a", 1, "S")
    stage.step("2a", 2, "S", timeout_us=900)
    stage.step("2b", 2, timeout_us=500)
    stage.step("3a", 3, "S", timeout_us=2000)
    stage.step("4a", 4, "S")
    stage.clock.move(500 * US)
    expired = "UNAVAILABLE: timeout of the corresponding sequence has been expired"
    assert stage.client.outcomes() == ["waits", expired, expired, "waits", "waits"]
    stage.clock.move(1500 * US)
    assert stage.client.outcomes("3a", "4a") == [expired, "waits"]
    stage.step("2c", 2)
    assert stage.client.outcomes("2c") == [NO_START.format(2)]


@BOTH
def test_a_sequence_may_start_again(strategy):
    """START in a running sequence begins a new one in its slot."""
    stage = Sequences(
        strategy + " state { input_name: 'I' output_name: 'O' data_type: TYPE_INT32 dims: [1] }", num_instances=2
    )
    for id, flags in (("a", "S"), ("b", ""), ("c", "S"), ("d", "E")):
        stage.step(id, 1, flags)
    assert stage.run() == ["a", "b", "c", "d"]
    keys = [stage.client.calls[id].state_key for id in "abcd"]
    assert keys[0] == keys[1] != keys[2] == keys[3]
    assert stage.dropped == [("m_0_0", keys[0])]


@BOTH
def test_state_keys(strategy):
    """Each sequence has its own key, never used again. The instance is notified of ends without a final request."""
    stage = Sequences(
        strategy
        + " max_sequence_idle_microseconds: 1000 state { input_name: 'I' output_name: 'O' data_type: TYPE_INT32 }"
    )
    stage.step("1a", 1, "S")
    stage.step("2a", 2, "SE")
    stage.run()
    stage.clock.move(1 * MS)
    stage.step("1b", 1, "S")
    stage.run()
    keys = [stage.client.calls[id].state_key for id in ("1a", "2a", "1b")]
    assert len(set(keys)) == 3
    assert stage.dropped == [("m_0_0", keys[0])]


@BOTH
def test_a_cancelled_request_ends_its_sequence(strategy):
    """A waiting request fails together with the later ones; earlier ones run. Then the slot is free."""
    stage = Sequences(strategy)
    for id, flags in (("a", "S"), ("b", ""), ("c", ""), ("d", "E")):
        stage.step(id, 1, flags)
    stage.client.calls["c"].cancel()
    assert stage.client.outcomes() == ["waits", "waits", CANCELLED, CANCELLED]
    stage.step("e", 1)
    assert stage.client.outcomes("e") == [NO_START.format(1)]
    assert stage.run() == ["a", "b"]
    stage.step("f", 1, "SE")
    assert stage.run() == ["a", "b", "f"]


def test_a_cancelled_request_ends_its_sequence_in_the_backlog():
    """None of the sequence's requests runs."""
    stage = Sequences("direct {}", "max_batch_size: 1")
    stage.step("1a", 1, "S")
    stage.step("2a", 2, "S")
    stage.step("2b", 2)
    stage.step("3a", 3, "S")
    stage.client.calls["2b"].cancel()
    assert stage.client.outcomes() == ["waits", CANCELLED, CANCELLED, "waits"]
    stage.step("1b", 1, "E")
    assert stage.run() == ["1a", "1b", "3a"]


@BOTH
def test_an_instance_takes_its_sequences_along(strategy):
    """The sequences of a crashed instance fail and others continue. When it is back, it takes new ones."""
    stage = Sequences(strategy, num_instances=2)
    stage.step("1a", 1, "S")
    stage.step("2a", 2, "S")
    stage.step("1b", 1)
    stage.instance.crash()
    stage.scheduler.instance_changed(stage.instance)
    stage.step("1c", 1)
    stage.step("2b", 2)
    stage.instances[1].answer()
    assert stage.client.outcomes("1a", "1b", "1c", "2a") == ["INTERNAL: crashed", GONE, NO_START.format(1), "answered"]
    stage.step("3a", 3, "S")

    stage.instance.is_up = True
    stage.scheduler.instance_changed(stage.instance)
    stage.step("4a", 4, "S")
    stage.run()
    assert stage.client.outcomes("2b", "3a", "4a") == ["answered"] * 3
    assert "4a" in stage.instance.ids[-1]


def test_sequences_wait_for_instances():
    """Sequences that start without an available instance wait for one."""
    stage = Sequences("direct {}")
    stage.instance.is_up = False
    stage.scheduler.instance_changed(stage.instance)
    stage.step("1a", 1, "S")
    stage.step("1b", 1)
    stage.instance.is_up = True
    stage.scheduler.instance_changed(stage.instance)
    assert stage.run() == ["1a", "1b"]


@BOTH
def test_stopping_fails_what_waits(strategy):
    """Stopping fails waiting requests in slots and in the backlog."""
    stage = Sequences(strategy, "max_batch_size: 1")
    stage.step("1a", 1, "S")
    stage.step("1b", 1)
    for number in range(2, 8):
        stage.step(f"{number}a", number, "S", timeout_us=10)
    stage.scheduler.stop()
    stage.step("9a", 9, "S")
    stage.run()
    assert stage.client.outcomes("1a") == ["answered"]
    stopped = "Server is stopping, scheduler for model has stopped accepting new inference requests"
    assert stage.client.outcomes()[1:] == [f"UNAVAILABLE: {stopped}"] * 8
    assert stage.clock.num_timers == 0
    assert stage.scheduler.num_pending == 0


@BOTH
def test_a_long_sequence_that_is_answered_at_once(strategy):
    """Many responses at once use no stack for each waiting request."""
    stage = Sequences(strategy)
    stage.step("first", 1, "S")
    for number in range(2000):
        stage.step(str(number), 1)
    stage.instance.is_instant = True
    stage.instance.answer()
    assert set(stage.client.outcomes()) == {"answered"}
    assert stage.client.order[1:] == [str(number) for number in range(2000)]


ITERATIVE = pytest.mark.parametrize(
    "strategy", ["direct {}", "oldest { max_candidate_sequences: 2 }", "oldest { preserve_ordering: true }"]
)


@ITERATIVE
def test_iterative_sequences(strategy):
    """A request that the model reschedules runs again in its slot, without the flags; it needs no correlation ID."""
    stage = Sequences(f"iterative_sequence: true {strategy}", "max_batch_size: 2")
    for name in "abc":
        stage.client.submit(name)
    for _ in range(3):
        stage.instance.reschedule()
    requests = [call.request for call in stage.client.calls.values()]
    assert [request.sequence_id for request in requests] == [1, 2, 3]
    assert [request.sequence_start for request in requests] == [False, False, True]  # the third has no slot yet
    assert stage.client.outcomes() == ["waits"] * 3
    stage.run()
    assert stage.client.outcomes() == ["answered"] * 3
    assert stage.scheduler.num_pending == 0
    for name in "defg":  # the slots are free again
        stage.client.submit(name)
    stage.run()
    assert stage.client.outcomes() == ["answered"] * 7


@ITERATIVE
def test_an_iterative_sequence_ends_with_its_first_request(strategy):
    """With the last response to the request that started it, the sequence is over and its state dropped."""
    state = 'state [ { input_name: "s" output_name: "s_out" data_type: TYPE_FP32 dims: [ 1 ] } ]'
    stage = Sequences(f"iterative_sequence: true {strategy} {state}")
    stage.step("a", 7, "S")
    stage.instance.reschedule()
    stage.run()
    assert stage.dropped == [("m_0_0", "m_0_0/1")]
    stage.step("b", 7)
    assert stage.client.outcomes() == ["answered", NO_START.format(7)]


@ITERATIVE
def test_a_rescheduled_request_whose_sequence_was_idle(strategy):
    """A sequence that timed out while its request ran has lost its slot: the request fails."""
    stage = Sequences(f"iterative_sequence: true max_sequence_idle_microseconds: 1000 {strategy}")
    stage.step("a", 7, "S")
    stage.clock.move(2 * MS)
    stage.instance.reschedule()
    assert stage.client.outcomes() == [NO_START.format(7)]
    stage.step("b", 8, "S")
    stage.run()
    assert stage.client.outcomes()[1:] == ["answered"]


def test_many_iterations_use_no_stack():
    """A generation of thousands of tokens is as many runs of one request."""
    stage = Sequences("iterative_sequence: true oldest { preserve_ordering: true }")
    stage.client.submit("a")
    for _ in range(3000):
        stage.instance.reschedule()
    stage.run()
    assert stage.client.outcomes() == ["answered"]


def test_only_iterative_sequences_may_be_rescheduled():
    """Requests of other models have no way back into the queue."""
    stage = Sequences("oldest {}")
    stage.step("a", 7, "S")
    assert [call.reschedule for call in stage.instance.running] == [None]


def test_a_sequence_may_have_begun_elsewhere():
    """With an external state store a request without START is accepted: the instance looks up the state."""
    state = 'state [ { input_name: "s" output_name: "s_out" data_type: TYPE_FP32 dims: [ 1 ] } ]'
    stored = 'max_batch_size: 4 parameters { key: "STATE_STORE" value { string_value: "local" } }'
    it = Sequences(f"direct {{}} {state}", stored)
    it.step("a", 5)
    assert it.run() == ["a"]
    plain = Sequences(f"direct {{}} {state}")
    plain.step("a", 5)
    assert plain.client.outcomes() == [NO_START.format(5)]
