"""How values are spread, in a bounded place: exact ends and mean, quantiles by bins."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import floor, inf, isfinite, log10
from typing import Any

# A tenth of a decade: quantiles are right to a quarter.
_BINS_PER_DECADE = 10
_ZERO = -1000  # the bin of what is 0
_LEAST, _MOST = -300, 300
_SHARES = 20  # bins from 0 to 1


@dataclass(slots=True)
class Distribution:
    """Of values from 0 up; `is_share`: from 0 to 1, in bins of the same width."""

    is_share: bool = False
    count: int = 0
    sum: float = 0.0
    least: float = inf
    most: float = -inf
    bins: dict[int, int] = field(default_factory=dict)

    def add(self, value: float) -> None:
        """Count a value; what is not finite says nothing here."""
        if not isfinite(value):
            return
        self.count += 1
        self.sum += value
        self.least = min(self.least, value)
        self.most = max(self.most, value)
        place = self._bin(value)
        self.bins[place] = self.bins.get(place, 0) + 1

    def quantile(self, share: float) -> float | None:
        """The value that this share of all does not exceed, to the width of a bin; None where there are none."""
        left = share * self.count
        for place in sorted(self.bins):
            left -= self.bins[place]
            if left <= 0:
                return min(self.most, max(self.least, self._edges(place)[1]))
        return None if not self.count else self.most

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        if not self.count:
            return {"count": 0, "bins": []}
        quantiles = {f"p{round(100 * share)}": self.quantile(share) for share in (0.5, 0.9, 0.99)}
        bins = [
            dict(zip(("from", "to", "count"), (*self._edges(place), self.bins[place]), strict=True))
            for place in sorted(self.bins)
        ]
        ends = {"least": self.least, "mean": self.sum / self.count, "most": self.most}
        return {"count": self.count, **ends, **quantiles, "bins": bins}

    def _bin(self, value: float) -> int:
        if self.is_share:
            return min(_SHARES - 1, max(0, floor(value * _SHARES)))
        if value <= 0:
            return _ZERO
        return min(_MOST, max(_LEAST, floor(_BINS_PER_DECADE * log10(value))))

    def _edges(self, place: int) -> tuple[float, float]:
        if self.is_share:
            return place / _SHARES, (place + 1) / _SHARES
        if place == _ZERO:
            return 0.0, 0.0
        return 10 ** (place / _BINS_PER_DECADE), 10 ** ((place + 1) / _BINS_PER_DECADE)
