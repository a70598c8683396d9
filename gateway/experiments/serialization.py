"""Experiments as JSON for operators, charts, the decision record, and gateways that do not lead."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from gateway.experiments.experiment_state import ExperimentState
from gateway.observability.arm_stats import ArmCounts
from gateway.statistics.values import Breach, Comparison, Interval, SampleRatio

Json = dict[str, Any]


def experiment_json(trial: ExperimentState) -> Json:
    """An experiment with its evaluation; null for unknown values and missing bounds."""
    spec, state = trial.spec, trial.state
    evaluation = trial.evaluation
    counts = trial.evidence.totals()
    in_force = state.in_force if state is not None and trial.is_in_force else trial.declared.fresh().weights
    return {
        "name": spec.name,
        "unit": spec.unit,
        "layer": spec.layer,
        "share": spec.share,
        "control": spec.control_arm.name,
        "metric": spec.metric,
        "goal": spec.goal,
        "alpha": spec.alpha,
        "status": state.status.value if state is not None else "unknown",
        "since": state.since if state is not None else None,
        "by": state.by if state is not None else "",
        "reason": state.reason if state is not None else "",
        "next": trial.action.reason,
        "ramp": _ramp(trial),
        "bandit": _bandit(trial),
        "arms": [
            {
                "name": arm.name,
                "engine": arm.engine,
                "model": arm.model,
                "weight": arm.weight,
                "share": in_force.get(arm.name, 0.0),
                "counts": _counts(counts.get(arm.name)),
            }
            for arm in spec.arms
        ],
        "comparisons": {arm: [_comparison(each) for each in found] for arm, found in evaluation.comparisons.items()}
        if evaluation is not None
        else {},
        "guardrails": {arm: [_guardrail(each) for each in found] for arm, found in evaluation.guardrails.items()}
        if evaluation is not None
        else {},
        "sample_ratio": _sample_ratio(evaluation.sample_ratio) if evaluation is not None else None,
    }


def chart_point_json(trial: ExperimentState, now: float) -> Json:
    """A chart's point: [estimate, low, high] of each metric's difference and ratio, by arm."""
    assert trial.state is not None
    found = trial.evaluation.comparisons if trial.evaluation is not None else {}
    return {
        "time": round(now, 3),
        "status": trial.state.status.value,
        "step": trial.state.step,
        "shares": dict(trial.state.in_force),
        "comparisons": {
            arm: {
                each.metric: {
                    "control": _interval(each.control),
                    "arm": _interval(each.arm),
                    "difference": _interval(each.difference),
                    "ratio": _interval(each.ratio),
                }
                for each in comparisons
            }
            for arm, comparisons in found.items()
        },
    }


def evidence_json(trial: ExperimentState) -> Json:
    """The numbers behind a decision."""
    data: Json = {
        "requests": {arm: sum(counts.requests) for arm, counts in trial.evidence.totals().items()},
        "errors": {arm: sum(counts.errors) for arm, counts in trial.evidence.totals().items()},
    }
    if trial.evaluation is not None:
        data["comparisons"] = {
            arm: {
                each.metric: {"difference": _interval(each.difference), "ratio": _interval(each.ratio)}
                for each in found
            }
            for arm, found in trial.evaluation.comparisons.items()
        }
        data["guardrails"] = {
            arm: [_guardrail(each) for each in found] for arm, found in trial.evaluation.guardrails.items()
        }
    return data


def _ramp(trial: ExperimentState) -> Json | None:
    ramp, state = trial.spec.ramp, trial.state
    if ramp is None:
        return None
    return {
        "arm": ramp.arm,
        "steps": list(ramp.steps),
        "step": state.step if state is not None and state.step else None,
        "requests": trial.evidence.requests(ramp.arm),
        "min_requests": ramp.min_requests,
        "min_time": ramp.min_time,
        "fuse": {
            "error_rate": ramp.fuse.error_rate,
            "min_requests": ramp.fuse.min_requests,
            "window": ramp.fuse.window,
        },
    }


def _bandit(trial: ExperimentState) -> Json | None:
    bandit = trial.spec.bandit
    if bandit is None:
        return None
    return {
        "metric": bandit.metric,
        "min_share": bandit.min_share,
        "max_share": bandit.max_share,
        "every": bandit.every,
        "half_life": bandit.half_life,
    }


def _counts(counts: ArmCounts | None) -> Json:
    """An arm's counts in this run."""
    if counts is None:
        return {"requests": 0, "errors": 0}
    data: Json = {
        "requests": sum(counts.requests),
        "errors": sum(counts.errors),
        "kinds": dict(counts.kinds),
        "units": sum(counts.units),
        "crossed": counts.crossed,
        "forced": counts.forced,
    }
    if any(counts.generations):
        data["prompt_tokens"] = sum(counts.prompt_tokens)
        data["output_tokens"] = sum(counts.output_tokens)
    if counts.joules_requests:
        data["joules"] = _number(counts.joules)
        data["joules_per_request"] = _number(counts.joules / counts.joules_requests)
    if counts.feedback:
        data["feedback"] = {
            name: {"values": sum(feedback.count), "labels": dict(feedback.labels)}
            for name, feedback in counts.feedback.items()
        }
    return data


def _comparison(found: Comparison) -> Json:
    return {
        "metric": found.metric,
        "control": _interval(found.control),
        "arm": _interval(found.arm),
        "difference": _interval(found.difference),
        "ratio": _interval(found.ratio),
        "n_control": found.n_control,
        "n_arm": found.n_arm,
        "p_value": _number(found.p_value),
        "is_different": found.is_different,
        "adjusted": found.adjusted,
    }


def _guardrail(found: Breach) -> Json:
    return {
        "metric": found.guardrail.metric,
        "bound": found.bound_name,
        "limit": _number(abs(found.bound)),
        "value": _interval(found.value),
        "breached": found.is_breached,
        "cleared": found.is_cleared,
    }


def _sample_ratio(found: SampleRatio | None) -> Json | None:
    if found is None:
        return None
    return {
        "p_value": _number(found.p_value),
        "mismatched": found.is_mismatched,
        "expected": _numbers(found.expected),
        "seen": _numbers(found.seen),
        "counted": found.counted,
    }


def _interval(found: Interval | None) -> list[float | None] | None:
    """Estimate, low, high."""
    return [_number(found.estimate), _number(found.low), _number(found.high)] if found is not None else None


def _numbers(found: Mapping[str, float]) -> dict[str, float | None]:
    return {name: _number(value) for name, value in found.items()}


def _number(value: float) -> float | None:
    """JSON has no infinity."""
    return float(f"{value:.6g}") if isfinite(value) else None
