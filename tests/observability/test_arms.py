"""A worker's counters of experiment arms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.observability.arm_stats import NUM_BUCKETS, ArmCounts, ArmKey, bin_of
from gateway.observability.arms import MAX_FEEDBACK_NAMES, Arms, Meter, RecentAnswers
from gateway.protocol.errors import ErrorKind

ID = b"r-1"


def counts_of(arms: Arms) -> ArmCounts:
    (counts,) = arms.counted().values()
    return counts


@given(st.lists(st.floats(0.0, 1e5), max_size=30))
def test_latencies_fall_into_the_bins_that_statistics_read(latencies: list[float]) -> None:
    """The hot path's bin index equals `bin_of`."""
    arms = Arms(0)
    for seconds in latencies:
        arms.meter("x", "a").of_bucket(3).answered(ID, 200, 1, seconds)
    expected: dict[int, int] = {}
    for seconds in latencies:
        expected[bin_of(seconds)] = expected.get(bin_of(seconds), 0) + 1
    if latencies:
        counts = counts_of(arms)
        assert counts.latency.bins == expected
        assert counts.latency.seconds[3] == pytest.approx(sum(latencies))


def test_counts_go_on_while_somebody_asks() -> None:
    """Reading the counters twice counts nothing twice."""
    arms = Arms(0)
    meter = arms.meter("x", "a").of_bucket(5)
    meter.answered(ID, 200, 10, 0.5)
    assert counts_of(arms).requests[5] == 1
    assert counts_of(arms).requests[5] == 1
    meter.answered(ID, 500, 10, 0.5)
    counts = counts_of(arms)
    assert (counts.key, counts.requests[5], counts.errors[5], counts.request_bytes[5]) == (ArmKey("x", "a"), 2, 1, 20)
    assert (counts.latency.count[5], counts.latency.seconds[5], counts.kinds) == (1, 0.5, {"500": 1})


def test_requests_of_no_unit_take_the_buckets_in_turn() -> None:
    """Requests without a unit are spread evenly over the buckets."""
    arms = Arms(0)
    for _ in range(2 * NUM_BUCKETS + 3):
        arms.meter("x", "a").answered(ID, 200, 1, 0.1)
    assert sorted(set(counts_of(arms).requests)) == [2, 3]


OUTCOMES = [
    (lambda meter: meter.answered(ID, 404, 1, 0.1), 1, 0, {}),
    (lambda meter: meter.answered(ID, 502, 1, 0.1), 1, 1, {"502": 1}),
    (lambda meter: meter.answered_rpc(ID, 0, 1, 0.1), 1, 0, {}),
    (lambda meter: meter.answered_rpc(ID, 5, 1, 0.1), 1, 0, {}),
    (lambda meter: meter.answered_rpc(ID, 14, 1, 0.1), 1, 1, {"grpc_14": 1}),
    (lambda meter: meter.answered_rpc(ID, None, 1, 0.1), 1, 1, {"upstream_protocol": 1}),
    (lambda meter: meter.failed(ID, ErrorKind.DEADLINE, True, 1), 1, 1, {"deadline": 1}),
    (lambda meter: meter.failed(ID, ErrorKind.RATE_LIMITED, False, 1), 0, 0, {"rate_limited": 1}),
    (lambda meter: meter.failed(ID, ErrorKind.HISTORY_MISSING, True, 1), 0, 0, {"history_missing": 1}),
    (lambda meter: meter.failed(ID, ErrorKind.BAD_REQUEST, False, 1), 0, 0, {"bad_request": 1}),
    (lambda meter: meter.kept_out("client_gone"), 0, 0, {"client_gone": 1}),
    (lambda meter: meter.streamed(ID, 5, 2, "grpc_13", 9, None), 7, 2, {"grpc_13": 2}),
]


@pytest.mark.parametrize("happen, requests, errors, kinds", OUTCOMES)
def test_what_is_an_error_of_an_arm(happen: object, requests: int, errors: int, kinds: dict[str, int]) -> None:
    """Server faults count as errors of the arm; faults of clients, limits and the gateway's Redis do not."""
    arms = Arms(0)
    happen(arms.meter("x", "a").of_bucket(0))  # type: ignore[operator]
    counts = counts_of(arms)
    assert (sum(counts.requests), sum(counts.errors), counts.kinds) == (requests, errors, kinds)


def test_a_forced_request_only_counts_as_such() -> None:
    """A forced request counts only as forced, however it ends."""
    arms = Arms(10)
    meter = arms.meter("x", "a", is_forced=True)
    meter.of_bucket(3).answered(ID, 500, 1, 0.1)
    meter.failed(ID, ErrorKind.DEADLINE, True, 1)
    meter.generated(1, 2, 0.1, 0.1)
    meter.exposed()
    meter.crossed()
    assert counts_of(arms) == ArmCounts(ArmKey("x", "a"), forced=2)
    assert arms.recent.get(ID) is None


@given(st.integers(0, 40), st.lists(st.integers(0, 30), max_size=120))
def test_the_last_requests_are_remembered(size: int, ids: list[int]) -> None:
    """At least half of the capacity of recent requests is kept, and never more than the capacity."""
    recent, meter = RecentAnswers(size), Meter(ArmCounts(ArmKey("x", "a")), RecentAnswers(0), 0)
    for number in ids:
        recent.put(b"%d" % number, meter)
    last = list(dict.fromkeys(reversed(ids)))[: size // 2]
    assert all(recent.get(b"%d" % number) is meter for number in last)
    assert sum(recent.get(b"%d" % number) is not None for number in range(31)) <= size


def test_feedback_is_bounded_by_names() -> None:
    """One feedback name too many is refused and stored nowhere."""
    arms = Arms(0)
    meter = arms.meter("x", "a").of_bucket(7)
    for number in range(MAX_FEEDBACK_NAMES):
        meter.rated(f"n{number}", 0.5, None)
    with pytest.raises(ValueError, match="feedback of 20 names; 'more' would be one more"):
        meter.rated("more", 1.0, None)
    counts = counts_of(arms)
    assert len(counts.feedback) == MAX_FEEDBACK_NAMES
    assert counts.feedback["n0"].total[7] == 0.5
