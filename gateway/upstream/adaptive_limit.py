"""How many requests one endpoint gets at a time: a limit that follows the latency of its replies. Pure.

The gradient is the latency that is allowed (`tolerance` times that of an unloaded endpoint) over the median of a window
of replies: below 1 requests wait in the engine, and the limit falls; above 1 it rises, by some headroom more. It falls
on its own where the endpoint becomes slower, and rises only as far as it is used.

The unloaded latency is that of windows in which the endpoint had few requests. Where there was none for `remeasure`
seconds and the limit is reached, it falls until enough replies have come, as long as that costs little time: not for
replies that take seconds. It falls to `min` the first time, later to half of itself: since the limit is little above
what the endpoint does at a time, nothing waits there, and the highest class hardly notices.

Sources: Envoy's adaptive concurrency filter (minRTT windows); Netflix's concurrency-limits (Gradient2).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from math import sqrt

from gateway.config.overload_specs import ConcurrencySpec
from gateway.protocol.engine_load import Load
from gateway.upstream.throughput_trial import ThroughputTrial

# A window has at least this length, so that the limit does not follow single bursts.
_WINDOW_SECONDS = 0.1
# A measurement at the least concurrency may take this share of the time: else it is left out.
_MAX_COST = 0.05
# A measurement that lasts longer ends with this number of replies.
_MAX_MEASURE_SECONDS = 1.0
_FEWEST_SAMPLES = 5
# How much of a better latency the unloaded one takes over: windows are noisy.
_SHARE_OF_BETTER = 0.05
# Measurements of several endpoints and workers are not to happen at the same time.
_JITTER = 0.2
_LARGEST_STEP = 2.0
# The share of its limit from which an endpoint counts as saturated.
_SATURATED = 0.9
# The first byte after this share of the time that a request takes is the reply itself.
_WHOLE_REPLIES = 0.8
# How much of what an engine has reported to hold without a queue is believed at the next report without load.
_FADING = 0.9


class AdaptiveLimit:
    """The limit of one endpoint in one worker. Times are in seconds of any clock."""

    __slots__ = (
        "_by_chance",
        "_is_drained",
        "_is_measured",
        "_known_good",
        "_latencies",
        "_load",
        "_measure_at",
        "_measures_with",
        "_most_in_flight",
        "_spec",
        "_started_at",
        "_trial",
        "_value",
        "_whole_latency",
        "is_measuring",
        "unloaded_latency",
    )

    def __init__(self, spec: ConcurrencySpec, now: float, by_chance: Callable[[], float] = random.random) -> None:
        self._spec = spec
        self._by_chance = by_chance
        self._value = float(min(max(spec.initial, spec.min), spec.max))
        self.unloaded_latency = 0.0  # 0 until it is known
        self.is_measuring = False
        self._is_drained = False  # of the requests before the measurement
        self._is_measured = False  # whether the unloaded latency is one of few requests
        self._measure_at = now
        self._measures_with = spec.min  # requests at a time
        self._latencies: list[float] = []  # of the window
        self._started_at = now  # the window
        self._most_in_flight = 0  # in the window
        self._load: Load | None = None  # the last report that was seen
        self._whole_latency = 0.0  # of replies before the measurement under way; 0 where they are streamed
        self._known_good = 0.0  # requests that the engine held without a queue
        self._trial = ThroughputTrial()

    def __repr__(self) -> str:
        state = "measures" if self.is_measuring else f"unloaded {self.unloaded_latency:.4g} s"
        return f"<AdaptiveLimit {self.value}, {state}>"

    @property
    def value(self) -> int:
        if self.is_measuring:
            return self._measures_with
        return int(min(max(self._value * self._trial.factor, self._spec.min), self._spec.max))

    def observe(self, latency: float, in_flight: int, now: float, seconds_each: float) -> None:
        """Count a good reply. `in_flight` are the endpoint's requests with this one; `seconds_each` is what a request
        takes from its start to its end, roughly."""
        if self.is_measuring and not self._is_drained:
            if self._whole_latency and not self._is_measured:
                self._latencies.append(latency)
            if in_flight <= self._measures_with:  # replies to what is sent from now on are of an unloaded endpoint
                self._is_drained = True
                if latest := sorted(self._latencies[len(self._latencies) // 2 :]):  # sent while the limit was reached
                    self._whole_latency = max(self._whole_latency, latest[len(latest) // 2])
                self._begin_window(now + 1e-9)
            elif now - self._started_at > self._spec.remeasure * _MAX_COST:  # others keep it busy
                self._end_measurement(now)
            return
        if now - latency < self._started_at and self.is_measuring:
            return  # it was sent before
        self._latencies.append(latency)
        if in_flight > self._most_in_flight:
            self._most_in_flight = in_flight
        count = len(self._latencies)
        elapsed = now - self._started_at
        is_full = count >= self._spec.samples and (elapsed >= _WINDOW_SECONDS or self.is_measuring)
        if is_full or (self.is_measuring and elapsed > _MAX_MEASURE_SECONDS and count >= _FEWEST_SAMPLES):
            self._end_window(now, seconds_each)

    def report(self, load: Load | None, in_flight: int) -> None:
        """Take the endpoint's own report into account, once; `in_flight` are this worker's requests there."""
        if load is self._load or load is None:
            return
        self._load = load
        outstanding = max(load.outstanding, in_flight)
        mine = load.waiting * in_flight / outstanding if outstanding else 0.0  # of those that wait in the engine
        excess = mine - max(1.0, in_flight / 2)  # the next batch may wait there
        if excess > 0:
            self._known_good = self._trial.floor = 0.0
            self._set(in_flight - excess)
        else:
            self._known_good = max(float(in_flight), self._known_good * _FADING)

    def _begin_window(self, now: float) -> None:
        self._latencies.clear()
        self._most_in_flight = 0
        self._started_at = now

    def _end_window(self, now: float, seconds_each: float) -> None:
        latencies, most = self._latencies, self._most_in_flight
        latencies.sort()
        median = latencies[len(latencies) // 2]
        is_saturated = not self.is_measuring and most >= self.value * _SATURATED
        count, seconds = len(latencies), now - self._started_at
        self._begin_window(now)
        if self.is_measuring:
            if not self._is_measured:
                self._set(self._value_at_first(median))
            self.unloaded_latency, self._is_measured = median, True
            self._end_measurement(now)
            return
        if most <= self._spec.min:  # nothing had to be held back for it
            self.unloaded_latency, self._is_measured = median, True
            self._measure_later(now)
        elif not self.unloaded_latency or median < self.unloaded_latency:
            share = _SHARE_OF_BETTER if self.unloaded_latency else 1.0
            self.unloaded_latency += (median - self.unloaded_latency) * share
        if now >= self._measure_at and is_saturated:
            self._measures_with = max(self._spec.min, int(self._value / 2) if self._is_measured else 0)
            cost = seconds_each * (1 + self._spec.samples / self._measures_with)
            if min(cost, 2 * seconds_each + _MAX_MEASURE_SECONDS) <= self._spec.remeasure * _MAX_COST:
                self.is_measuring, self._is_drained = True, False
                self._whole_latency = median if median >= seconds_each * _WHOLE_REPLIES else 0.0
                self._trial.stop()
                return
            self._measure_later(now)
            self.unloaded_latency += (median - self.unloaded_latency) * _SHARE_OF_BETTER  # the best there is to know
        if self._trial.factor == 1.0:
            self._follow(median, most)
        whole = median if median >= seconds_each * _WHOLE_REPLIES else 0.0  # else they are streamed
        self._trial.window(count, seconds, self._value, now, is_saturated=is_saturated, latency=whole)
        self._set(self._value)

    def _follow(self, median: float, most: int) -> None:
        """Set the limit by the median of a window with at most so many requests."""
        limit = self._value
        gradient = self._spec.tolerance * self.unloaded_latency / median if median else _LARGEST_STEP
        gradient = min(_LARGEST_STEP, max(1 / _LARGEST_STEP, gradient))
        wanted = limit * gradient + (max(1.0, sqrt(limit) / 2) if gradient >= 1 else 0.0)
        if wanted > limit and most < limit / 2:
            return  # it is not used
        self._set((limit + wanted) / 2)

    def _value_at_first(self, unloaded: float) -> float:
        """The limit after the first measurement: as many requests as the endpoint has done at a time so far, by
        Little's law, where the latency is that of whole replies. It need not fall there by steps, each of a window."""
        limit = self._value
        if not self._whole_latency or not unloaded:
            return limit
        wanted = limit * self._spec.tolerance * unloaded / self._whole_latency
        return min(limit, wanted + max(1.0, sqrt(wanted) / 2))

    def _set(self, limit: float) -> None:
        spec = self._spec
        self._value = min(max(limit, self._known_good, self._trial.floor, spec.min), spec.max)

    def _end_measurement(self, now: float) -> None:
        self.is_measuring = False
        self._begin_window(now)
        self._measure_later(now)

    def _measure_later(self, now: float) -> None:
        self._measure_at = now + self._spec.remeasure * (1 + _JITTER * self._by_chance())
