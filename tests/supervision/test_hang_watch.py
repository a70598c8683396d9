"""Hanging workers, found by times."""

import pytest

from gateway.supervision.hang_watch import HangWatch


def noticed_after(limit: float, *, phase: float) -> float:
    """How long a hang lasts until it is noticed, which begins `phase` of an interval after an answered query."""
    watch = HangWatch[str](limit)
    hangs_at, now = 5 * watch.interval + phase * watch.interval, 0.0
    while not (hung := watch.hung(now)):
        watch.queried(["worker", "healthy"], now)
        watch.answered("healthy")
        if now < hangs_at:
            watch.answered("worker")
        now += watch.interval
    assert [worker for worker, _ in hung] == ["worker"]
    return now - hangs_at


@pytest.mark.parametrize("phase", [0.01, 0.5, 0.99])
def test_a_hang_is_noticed_soon_after_the_limit(phase: float) -> None:
    """With --hang-timeout 3 a worker that stops is found after more than 3 s, and within 4 s."""
    assert 3.0 < noticed_after(3.0, phase=phase) < 4.0


def test_a_control_process_that_stood_accuses_nobody() -> None:
    """After a look that is late the answers may wait to be read: the time of each worker begins anew."""
    watch = HangWatch[str](3.0)
    watch.hung(0.0)
    watch.queried(["worker"], 0.0)
    assert watch.hung(100.0) == []
    watch.queried(["worker"], 100.0)
    times = [100.0 + watch.interval * step for step in range(1, 15)]
    assert [watch.hung(now) for now in times][-1] != []
