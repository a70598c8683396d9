"""The declaration of `hedging:` of engines: created by `config.engines`, immutable."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from gateway.config import value_parsers
from gateway.config.value_parsers import PositiveCount, PositiveDuration
from gateway.yaml import values

_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d{1,2})?)")
_LEAST_PERCENTILE = 50.0


class HedgingDelay(NamedTuple):
    """One of both: a share of the latencies, as 0.95, or seconds."""

    percentile: float = 0.0
    seconds: float = 0.0

    @property
    def text(self) -> str:
        return f"p{100 * self.percentile:g}" if self.percentile else f"{self.seconds:g} s"


def hedging_delay(text: str) -> HedgingDelay:
    """`p95`, a percentile of latencies from p50 up, or a duration."""
    match = _PERCENTILE.fullmatch(text)
    if match is None:
        try:
            return HedgingDelay(seconds=values.above_zero(values.duration)(text))
        except ValueError:
            what = f"{text!r} is neither a percentile from p50 to p99.99 nor a duration above 0: write p95 or 50ms"
            raise ValueError(what) from None
    percentile = float(match[1])
    if percentile < _LEAST_PERCENTILE:
        raise ValueError(f"{text} is out of range: p50 to p99.99; below, more requests would be sent twice than once")
    return HedgingDelay(percentile=round(percentile / 100, 6))


_P95 = HedgingDelay(percentile=0.95)


@dataclass(frozen=True, slots=True)
class HedgingSpec:
    """`hedging:` of an engine: a second endpoint gets an inference that the first one has not begun to answer."""

    # From the attempt to the hedge, up to 10 ms later: a percentile of the model's latencies, or a fixed time
    delay: Annotated[HedgingDelay, hedging_delay] = _P95
    min_delay: PositiveDuration = 0.01  # a percentile that is shorter counts as this
    budget: Annotated[float, values.between(0.0, 1.0, value_parsers.share)] = 0.05  # hedges per request
    burst: PositiveCount = 10  # hedges of the budget that may be saved up, per worker

    @property
    def text(self) -> str:
        return f"a second endpoint gets a slow inference after {self.delay.text}, at most {self.budget:.3g} of requests"
