"""The decision feed: its subscribers, and the sampling that workers get from it."""

from typing import Any

from gateway.control.messages import Watch
from gateway.supervision.decision_feed import OFF, DecisionFeed, FeedSubscription


class Stage:
    def __init__(self, workers: int = 1) -> None:
        self.reports: list[Watch] = []
        self.feed = DecisionFeed(self.reports.append, workers=workers, redacted=("token",))

    def wish(
        self, rate: float, share: float = 1.0, with_body_facts: bool = False
    ) -> tuple[FeedSubscription, list[Any]]:
        received: list[Any] = []
        wish = FeedSubscription(
            lambda decisions, skipped: received.append((len(decisions), skipped)), rate, share, with_body_facts
        )
        self.feed.add(wish)
        return wish, received


def test_workers_tell_what_the_most_curious_wants() -> None:
    """Workers send nothing without a subscriber; otherwise they use the largest share and rate, and send body facts
    where any subscriber wants them."""
    stage = Stage()
    tail, _ = stage.wish(10)
    recording, _ = stage.wish(500, 0.5, True)
    stage.feed.remove(recording)
    stage.feed.remove(tail)
    stage.feed.remove(tail)
    assert stage.reports == [
        Watch(10, False, 1.0, ("token",)),
        Watch(500, True, 1.0, ("token",)),
        Watch(10, False, 1.0, ("token",)),
        OFF,
    ]


def test_whoever_wants_less_gets_less() -> None:
    """A tail beside a recording keeps its own rate, shared by all workers; the skipped decisions are reported as a
    number."""
    stage = Stage(workers=2)
    _, tailed = stage.wish(10)
    _, recorded = stage.wish(500, 1.0, True)
    stage.feed.receive([{}] * 100, 3)
    assert tailed == [(20, 83)]
    assert recorded == [(100, 3)]


def test_a_share_of_a_share_is_taken() -> None:
    """A recording with a share of 10 % gets 10 % even while another subscriber gets all decisions."""
    stage = Stage()
    stage.wish(10_000)
    _, recorded = stage.wish(10_000, 0.1)
    for _ in range(100):
        stage.feed.receive([{}] * 100, 0)
    taken = sum(number for number, _ in recorded)
    assert 800 < taken < 1200
