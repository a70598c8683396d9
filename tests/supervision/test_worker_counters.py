"""The sum of the workers' counters."""

from gateway.control.channel import ChildProcess
from gateway.observability.arm_stats import ArmKey
from gateway.observability.metrics import CountersSnapshot, Metrics, SeriesKey
from gateway.observability.stats import AccountSnapshot, LimitSnapshot, SessionUse, StoreUse
from gateway.supervision.worker_counters import WorkerCounters

KEY = SeriesKey("all", "", "it", "http://a:1")


def worker() -> ChildProcess:
    return ChildProcess(lambda worker, message: None, ())


def snapshot(requests: int, in_flight: int = 0, connections: int = 0, is_open: bool = False) -> CountersSnapshot:
    metrics = Metrics()
    series = metrics.series(KEY)
    for _ in range(requests):
        series.count(200, 0.5, 0.25, 0.25)
    series.in_flight = in_flight
    return CountersSnapshot(metrics.by_key, connections, {("it", "http://a:1"): is_open})


def test_totals_never_go_back() -> None:
    """Totals never decrease, in whatever order workers die."""
    tally, one, other = WorkerCounters(), worker(), worker()
    tally.take(one, snapshot(3, in_flight=2, connections=4))
    tally.take(other, snapshot(5, in_flight=1, connections=1))
    tally.take(one, snapshot(4, in_flight=2, connections=4))  # replaces the first
    assert (tally.series()[KEY].statuses, tally.series()[KEY].in_flight, tally.total().connections) == ({200: 9}, 3, 5)
    tally.retire(one)
    assert (tally.series()[KEY].statuses, tally.series()[KEY].in_flight, tally.total().connections) == ({200: 9}, 1, 1)
    tally.retire(other)
    tally.retire(other)  # once is enough
    assert (tally.series()[KEY].statuses, tally.series()[KEY].in_flight, tally.total().connections) == ({200: 9}, 0, 0)
    assert tally.series()[KEY].total.sum == 4.5


def test_a_breaker_is_open_where_some_worker_says_so() -> None:
    """Each worker has its own breakers; the total reports an open one if any worker's is open."""
    tally = WorkerCounters()
    tally.take(worker(), snapshot(0))
    assert tally.total().breakers_open == {("it", "http://a:1"): False}
    tally.take(worker(), snapshot(0, is_open=True))
    tally.take(worker(), snapshot(0))
    assert tally.total().breakers_open == {("it", "http://a:1"): True}


def test_the_use_of_redis_is_summed() -> None:
    """Calls of dead workers stay in the sum; availability is that of the living workers."""
    tally, one, other = WorkerCounters(), worker(), worker()
    assert tally.total().store is None
    tally.take(one, CountersSnapshot(store=StoreUse(calls=3, late=1, seconds=0.5, available=1, live=1)))
    tally.take(other, CountersSnapshot(store=StoreUse(calls=4, available=1)))
    assert tally.total().store == StoreUse(calls=7, late=1, seconds=0.5, available=2, live=1)
    tally.retire(one)
    assert tally.total().store == StoreUse(calls=7, late=1, seconds=0.5, available=1, live=0)
    tally.retire(other)
    assert tally.total().store == StoreUse(calls=7, late=1, seconds=0.5)


def test_sessions_are_summed_by_where_they_were() -> None:
    """Session counters are summed by endpoint, and a dead worker's counts stay."""
    tally = WorkerCounters()
    one, other = worker(), worker()
    left = ("gpu", "http://a", "drained")
    tally.take(one, CountersSnapshot(sessions=SessionUse(created=3, moved={left: 2}, known=5)))
    tally.take(
        other, CountersSnapshot(sessions=SessionUse(moved={left: 1}, sequences_lost={("gpu", "http://b"): 1}, known=4))
    )
    lost = {("gpu", "http://b"): 1}
    assert tally.total().sessions == SessionUse(created=3, moved={left: 3}, sequences_lost=lost, known=9)
    tally.retire(one)
    assert tally.total().sessions == SessionUse(created=3, moved={left: 3}, sequences_lost=lost, known=4)


def test_what_limits_have_counted_outlives_a_worker() -> None:
    """Counts of a dead worker stay, its slots in use do not; an account that several workers have is counted once."""
    tally, one, other = WorkerCounters(), worker(), worker()
    tally.take(one, CountersSnapshot(limits={"l": LimitSnapshot("l", 5, 1, 2, 1, 3, {"a": AccountSnapshot(3, 2.0)})}))
    tally.take(
        other, CountersSnapshot(limits={"l": LimitSnapshot("l", 7, 1, 0, 1, 1, {"a": AccountSnapshot(1, 1.0)}, True)})
    )
    assert tally.total().limits == {"l": LimitSnapshot("l", 12, 2, 2, 2, 4, {"a": AccountSnapshot(4, 3.0)}, True)}
    tally.retire(other)
    assert tally.total().limits == {"l": LimitSnapshot("l", 12, 2, 2, 1, 3, {"a": AccountSnapshot(3, 2.0)}, False)}


def test_arms_of_all_workers_are_one() -> None:
    """Arms' counts of all workers are summed, including those of dead workers."""
    tally, one, other = WorkerCounters(), worker(), worker()
    for each, number in ((one, 3), (other, 4)):
        metrics = Metrics()
        for _ in range(number):
            metrics.arms.meter("x", "a").of_bucket(2).answered(b"r", 200, 5, 0.5)
        tally.take(each, CountersSnapshot(arms=metrics.arms.counted()))
    tally.retire(one)
    arms = tally.arms()
    assert list(arms) == [ArmKey("x", "a")]
    counts = arms[ArmKey("x", "a")]
    assert (counts.requests[2], counts.request_bytes[2], counts.latency.seconds[2]) == (7, 35, 3.5)
    tally.retire(other)
    assert tally.arms() == arms
