"""What a picker counts beside the requests of each endpoint, which it counts as the gateway does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gateway.protocol.prometheus_text import Histogram, PrometheusFamily

_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_PREFIX = "pointsman_epp_"


class PickMetrics:
    """`seconds` run from a request's head to its endpoint, the transfer of a body that the rules need included."""

    def __init__(self) -> None:
        self.num_open = 0  # requests under way
        self.held_bytes = 0  # of their bodies, until they go on
        self.picks: Counter[str] = Counter()  # by engine
        self.refusals: Counter[str] = Counter()  # by reason
        self.served_elsewhere = 0
        self.seconds = Histogram(_BOUNDS)

    def picked(self, engine: str, seconds: float) -> None:
        self.picks[engine] += 1
        self.seconds.observe(seconds)

    def families(self) -> Iterator[PrometheusFamily]:
        yield _one("open_requests", "gauge", "Requests under way, each a stream of a proxy", self.num_open)
        yield _one("held_bytes", "gauge", "Bytes of bodies that are held until they are read", self.held_bytes)
        yield _each("picks_total", "Requests that have got an endpoint", "engine", self.picks)
        yield _each("refusals_total", "Requests that the picker has answered itself", "reason", self.refusals)
        text = "Replies of another endpoint than the first choice, as proxies report them"
        yield _one("served_elsewhere_total", "counter", text, self.served_elsewhere)
        text = "Seconds from a request's head to its endpoint"
        seconds = PrometheusFamily(f"{_PREFIX}pick_seconds", text, "histogram", ())
        seconds.add_histogram((), _BOUNDS, self.seconds.counts, self.seconds.sum)
        yield seconds


def _one(name: str, kind: str, text: str, value: float) -> PrometheusFamily:
    family = PrometheusFamily(_PREFIX + name, text, kind, ())
    family.add((), value)
    return family


def _each(name: str, text: str, label: str, counts: Counter[str]) -> PrometheusFamily:
    family = PrometheusFamily(_PREFIX + name, text, "counter", (label,))
    for key, count in counts.items():
        family.add((key,), count)
    return family
