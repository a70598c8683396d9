"""Evaluation of the evidence: arms compared with the control, guardrails, and the sample ratio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan

from gateway.config.experiment_specs import ExperimentSpec
from gateway.statistics.comparison import compare, watch
from gateway.statistics.metrics import num_values
from gateway.statistics.sample_ratio import sample_ratio
from gateway.statistics.values import Breach, Comparison, SampleRatio, Stratum

# Reported for each experiment, in addition to its own metric and its guardrails'.
_ALWAYS = ("error_rate", "latency", "latency_p95")
_WHERE_COUNTED = ("first_token", "per_token", "output_tokens")

# A false alarm costs an operator's time; a missed mismatch invalidates the result.
_ALPHA_OF_RATIO = 0.001


def unmeasured(spec: ExperimentSpec, strata: Sequence[Stratum], arm: str) -> list[str]:
    """The guardrail metrics for which an arm has no value."""
    counts = [stratum.arms[arm] for stratum in strata if arm in stratum.arms]
    metrics = dict.fromkeys(each.metric for each in spec.guardrails)
    return [metric for metric in metrics if not any(num_values(metric, each) for each in counts)]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The results by arm, without the control."""

    comparisons: Mapping[str, Sequence[Comparison]]
    guardrails: Mapping[str, Sequence[Breach]]
    sample_ratio: SampleRatio | None

    def breaches(self, arm: str | None = None) -> list[str]:
        """A sentence for each guardrail that an arm breaches; None: of all arms."""
        return [
            _sentence(name, each)
            for name, breaches in self.guardrails.items()
            if arm is None or name == arm
            for each in breaches
            if each.is_breached
        ]

    def unknown(self, arm: str) -> list[str]:
        """A sentence for each guardrail of an arm that is neither breached nor cleared yet."""
        return [_sentence(arm, each) for each in self.guardrails.get(arm, ()) if not each.is_breached | each.is_cleared]

    @property
    def mismatch(self) -> str:
        """The sample-ratio mismatch as a sentence; empty if there is none."""
        ratio = self.sample_ratio
        if ratio is None or not ratio.is_mismatched:
            return ""
        total = sum(ratio.seen.values()) or 1.0
        parts = [
            f"'{arm}' has {ratio.seen.get(arm, 0.0) / total:.2%} of {ratio.counted}, {expected / total:.2%} expected"
            for arm, expected in ratio.expected.items()
        ]
        return f"{', '.join(parts)} (p = {ratio.p_value:.2g})"


def judge(spec: ExperimentSpec, strata: Sequence[Stratum]) -> Evaluation:
    """Evaluate all evidence. Several arms share the guardrails' alpha, which bounds false alarms for all of them."""
    control = spec.control_arm.name
    arms = [arm.name for arm in spec.arms if arm.name != control]
    alpha = spec.alpha / max(1, len(arms))
    return Evaluation(
        {arm: [compare(each, strata, control, arm, spec.alpha) for each in _metrics(spec, strata)] for arm in arms},
        {arm: watch(spec.guardrails, strata, control, arm, alpha) for arm in arms},
        sample_ratio(strata, _ALPHA_OF_RATIO, spec.unit) if arms else None,
    )


def _metrics(spec: ExperimentSpec, strata: Sequence[Stratum]) -> list[str]:
    """The metrics to compare, each once, the experiment's own first."""
    names = dict.fromkeys((spec.metric, *_ALWAYS, *(each.metric for each in spec.guardrails)))
    counts = [counts for stratum in strata for counts in stratum.arms.values()]
    for name in _WHERE_COUNTED:
        if any(sum(each.generations if name == "output_tokens" else getattr(each, name).count) for each in counts):
            names[name] = None
    names |= {f"feedback:{name}": None for each in counts for name in sorted(each.feedback)}
    return list(names)


_RELATION = {"max": "", "max_increase": " more than the control's", "max_decrease": " more than the control's"}


def _sentence(arm: str, breach: Breach) -> str:
    value = breach.value
    seen = "unknown" if isnan(value.estimate) else f"{value.estimate:.4g} [{value.low:.4g}, {value.high:.4g}]"
    relation = _RELATION.get(breach.bound_name, " times the control's")
    return f"{breach.guardrail.metric} of '{arm}' is {seen}{relation}: {breach.bound_name} is {abs(breach.bound):g}"
