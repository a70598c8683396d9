"""What the evidence says: arms compared with the control, guardrails, and whether units fall where they should."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.config.experiment_specs import ExperimentSpec
from gateway.statistics.comparison import compare, watch
from gateway.statistics.metrics import num_values
from gateway.statistics.sample_ratio import sample_ratio
from gateway.statistics.values import Breach, Comparison, SampleRatio, Stratum

# Shown of each experiment, beside its own metric and those of its guardrails.
_ALWAYS = ("error_rate", "latency", "latency_p95")
_WHERE_COUNTED = ("first_token", "per_token", "output_tokens")

# A ramp that is held for nothing costs an operator's time, one that goes on while units fall wrongly its verdict.
_ALPHA_OF_RATIO = 0.001


def unmeasured(spec: ExperimentSpec, strata: Sequence[Stratum], arm: str) -> list[str]:
    """The metrics of guardrails of which an arm has had no value."""
    counts = [stratum.arms[arm] for stratum in strata if arm in stratum.arms]
    metrics = dict.fromkeys(each.metric for each in spec.guardrails)
    return [metric for metric in metrics if not any(num_values(metric, each) for each in counts)]


@dataclass(frozen=True, slots=True)
class Judgement:
    """By arm, the control left out."""

    comparisons: Mapping[str, Sequence[Comparison]]
    guardrails: Mapping[str, Sequence[Breach]]
    sample_ratio: SampleRatio | None

    def breaches(self, arm: str | None = None) -> list[str]:
        """A sentence for each guardrail that an arm breaches; None: that any does."""
        return [
            _sentence(name, each)
            for name, found in self.guardrails.items()
            if arm is None or name == arm
            for each in found
            if each.is_breached
        ]

    @property
    def mismatch(self) -> str:
        """What is wrong with how units fall to the arms; empty: nothing that is known."""
        ratio = self.sample_ratio
        if ratio is None or not ratio.is_mismatched:
            return ""
        total = sum(ratio.seen.values()) or 1.0
        parts = [
            f"'{arm}' has {ratio.seen.get(arm, 0.0) / total:.2%} of {ratio.counted}, {expected / total:.2%} expected"
            for arm, expected in ratio.expected.items()
        ]
        return f"{', '.join(parts)} (p = {ratio.p_value:.2g})"


def judge(spec: ExperimentSpec, strata: Sequence[Stratum]) -> Judgement:
    """All that is known by now. Of several arms each has its part of the guardrails' alpha: together they are so seldom
    called harmful wrongly."""
    control = spec.control_arm.name
    arms = [arm.name for arm in spec.arms if arm.name != control]
    alpha = spec.alpha / max(1, len(arms))
    return Judgement(
        {arm: [compare(each, strata, control, arm, spec.alpha) for each in _metrics(spec, strata)] for arm in arms},
        {arm: watch(spec.guardrails, strata, control, arm, alpha) for arm in arms},
        sample_ratio(strata, _ALPHA_OF_RATIO, spec.unit) if arms else None,
    )


def _metrics(spec: ExperimentSpec, strata: Sequence[Stratum]) -> list[str]:
    """Which are compared, each once, the experiment's own first."""
    names = dict.fromkeys((spec.metric, *_ALWAYS, *(each.metric for each in spec.guardrails)))
    counts = [counts for stratum in strata for counts in stratum.arms.values()]
    for name in _WHERE_COUNTED:
        if any(sum(each.generations if name == "output_tokens" else getattr(each, name).count) for each in counts):
            names[name] = None
    names |= {f"feedback:{name}": None for each in counts for name in sorted(each.feedback)}
    return list(names)


_SAID = {"max": "", "max_increase": " more than the control's", "max_decrease": " more than the control's"}


def _sentence(arm: str, breach: Breach) -> str:
    value = breach.value
    seen = f"{value.estimate:.4g} [{value.low:.4g}, {value.high:.4g}]"
    said = _SAID.get(breach.bound_name, " times the control's")
    return f"{breach.guardrail.metric} of '{arm}' is {seen}{said}: {breach.bound_name} is {abs(breach.bound):g}"
