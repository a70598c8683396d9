"""Whether a ramp's `min_requests` can make its guardrails known: the smallest samples that decide them, by the same
statistics, in the best case.

The best case is an arm that is just as good as the control, and alike in each bucket of units: no request fails,
latencies and values are all about the same. Real traffic needs more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from gateway.config.experiment_specs import ExperimentSpec, GuardrailSpec, RampSpec
from gateway.config.rules import LoadedRules
from gateway.observability.arm_stats import NUM_BUCKETS, ArmCounts, ArmKey, Feedback, bin_of
from gateway.statistics.comparison import breaches
from gateway.statistics.metrics import FEEDBACK, LATENCIES, quantile_of
from gateway.statistics.values import Stratum
from gateway.yaml.problems import Location, Problem, Severity

# More than any step waits for.
_MOST_REQUESTS = 10_000_000
_SECONDS = 0.1
_TOKENS = 100.0
# Buckets of units differ by so little in the best case: something has to vary.
_VARIATION = 0.01
# A ratio of error rates is known once requests have failed: so many of both arms.
_FAILURES = 0.01


def with_samples(loaded: LoadedRules) -> LoadedRules:
    """The rules with a warning for each guardrail that `min_requests` cannot make known."""
    if loaded.rules is None:
        return loaded
    found: list[Problem] = []
    for experiment in loaded.rules.experiments.values():
        ramp = experiment.ramp
        if ramp is not None and ramp.require == "known":
            at = ramp.location or experiment.location or Location("rules", 1, 1)
            found += [Problem(at, what, Severity.WARNING) for what in _shortages(experiment, ramp)]
    return replace(loaded, problems=(*loaded.problems, *found))


def _shortages(experiment: ExperimentSpec, ramp: RampSpec) -> Iterator[str]:
    share = ramp.steps[0]
    alpha = experiment.alpha / max(1, len(experiment.arms) - 1) / max(1, len(experiment.guardrails))
    for guardrail in experiment.guardrails:
        bound = next(name for name in _BOUNDS if getattr(guardrail, name) is not None)
        named = f"guardrail {guardrail.metric} {bound} {getattr(guardrail, bound):g} of experiment {experiment.name!r}"
        need = smallest_sample(replace(guardrail, location=None), share, alpha)
        where = "" if guardrail.location is None else f" (line {guardrail.location.line})"
        if need is None:
            yield (
                f"no number of requests at {share:.4g} of the units makes {named}{where} known, even in the best case: "
                "the ramp never passes its first step; begin with a smaller share, another bound, or 'require: "
                "unbreached'"
            )
        elif need > ramp.min_requests:
            yield (
                f"min_requests {ramp.min_requests} cannot make {named}{where} known: at {share:.4g} of the units it "
                f"takes {need} of arm {ramp.arm!r} in the best case, for which the ramp waits"
            )


_BOUNDS = ("max", "max_increase", "max_decrease", "max_ratio", "min_ratio")


@cache
def smallest_sample(guardrail: GuardrailSpec, share: float, alpha: float) -> int | None:
    """The fewest requests of an arm with this share of the units in which a guardrail can be cleared, to two digits;
    None where none can."""
    low, high = 1, 1
    while not _is_cleared(guardrail, share, alpha, high):
        low, high = high, 2 * high
        if high > _MOST_REQUESTS:
            return None
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        if _is_cleared(guardrail, share, alpha, middle):
            high = middle
        else:
            low = middle
    return high


def _is_cleared(guardrail: GuardrailSpec, share: float, alpha: float, requests: int) -> bool:
    of_control = int(requests * (1 - share) / share)
    arms = {"control": _counts(guardrail, of_control), "arm": _counts(guardrail, requests)}
    stratum = Stratum(arms, {"control": 1 - share, "arm": share})
    return breaches(guardrail, [stratum], "control", "arm", alpha).is_cleared


def _counts(guardrail: GuardrailSpec, requests: int) -> ArmCounts:
    """The counts of an arm in the best case, spread evenly over the buckets."""
    counts = ArmCounts(ArmKey("x", "x"))
    metric = guardrail.metric
    quantile = quantile_of(metric)
    is_of_failures = metric == "error_rate" and (guardrail.max_ratio or guardrail.min_ratio)
    failures = _spread(int(_FAILURES * requests) if is_of_failures else 0)
    for bucket, number in enumerate(_spread(requests)):
        value = 1 + _VARIATION * (1 if bucket % 2 else -1)
        counts.requests[bucket] = number
        counts.errors[bucket] = failures[bucket]
        name = quantile[0] if quantile is not None else metric
        if name in LATENCIES:
            timing = getattr(counts, name)
            timing.count[bucket] = number
            timing.seconds[bucket] = number * value * _size(guardrail)
        elif name == "output_tokens":
            counts.generations[bucket] = number
            counts.output_tokens[bucket] = round(number * value * _size(guardrail))
        elif name.startswith(FEEDBACK):
            feedback = counts.feedback.setdefault(name.removeprefix(FEEDBACK), Feedback())
            feedback.count[bucket] = number
            feedback.total[bucket] = number * value * _size(guardrail)
            feedback.squares += number * (value * _size(guardrail)) ** 2
    if quantile is not None:
        getattr(counts, quantile[0]).bins[bin_of(_size(guardrail))] = requests
    return counts


def _size(guardrail: GuardrailSpec) -> float:
    """A typical value: where the bound is on the value itself, half of that."""
    if guardrail.max:
        return guardrail.max / 2
    return _TOKENS if guardrail.metric == "output_tokens" else _SECONDS


def _spread(number: int) -> list[int]:
    return [number // NUM_BUCKETS + (bucket < number % NUM_BUCKETS) for bucket in range(NUM_BUCKETS)]
