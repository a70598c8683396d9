"""Experiments as JSON for operators, charts, the decision record, and gateways that do not lead."""

from __future__ import annotations

from dataclasses import asdict
from math import isfinite
from typing import Any

from gateway.experiments.evaluation import Evaluation
from gateway.experiments.experiment_state import ExperimentState
from gateway.observability.arm_stats import ArmCounts
from gateway.statistics.values import Breach, Comparison, Interval, SampleRatio

Json = dict[str, Any]

_INTERVALS = ("control", "arm", "difference", "ratio")


def experiment_json(experiment: ExperimentState) -> Json:
    """An experiment with its evaluation; null for unknown values and missing bounds."""
    spec, state = experiment.spec, experiment.state
    evaluation = experiment.evaluation or Evaluation({}, {}, None)
    counts = experiment.evidence.totals()
    in_force = (experiment.active or experiment.declared.fresh()).in_force
    return {
        **{name: getattr(spec, name) for name in ("name", "unit", "layer", "share")},
        "control": spec.control_arm.name,
        **{name: getattr(spec, name) for name in ("metric", "goal", "alpha")},
        "status": state.status.value if state is not None else "unknown",
        "since": state.since if state is not None else None,
        "by": state.by if state is not None else "",
        "reason": state.reason if state is not None else "",
        "next": experiment.action.reason,
        "ramp": _ramp(experiment),
        "bandit": asdict(spec.bandit) if spec.bandit is not None else None,
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
        "comparisons": {arm: [_comparison(each) for each in found] for arm, found in evaluation.comparisons.items()},
        "guardrails": {arm: [_guardrail(each) for each in found] for arm, found in evaluation.guardrails.items()},
        "sample_ratio": _sample_ratio(evaluation.sample_ratio),
    }


def chart_point_json(experiment: ExperimentState, now: float) -> Json:
    """A chart's point: [estimate, low, high] of each metric's difference and ratio, by arm."""
    assert experiment.state is not None
    evaluation = experiment.evaluation or Evaluation({}, {}, None)
    return {
        "time": round(now, 3),
        "status": experiment.state.status.value,
        "step": experiment.state.step,
        "shares": dict(experiment.state.in_force),
        "comparisons": {
            arm: {each.metric: {name: _interval(getattr(each, name)) for name in _INTERVALS} for each in comparisons}
            for arm, comparisons in evaluation.comparisons.items()
        },
    }


def evidence_json(experiment: ExperimentState) -> Json:
    """The numbers behind a decision."""
    data: Json = {
        "requests": {arm: sum(counts.requests) for arm, counts in experiment.evidence.totals().items()},
        "errors": {arm: sum(counts.errors) for arm, counts in experiment.evidence.totals().items()},
    }
    if experiment.evaluation is not None:
        data["comparisons"] = {
            arm: {
                each.metric: {"difference": _interval(each.difference), "ratio": _interval(each.ratio)}
                for each in found
            }
            for arm, found in experiment.evaluation.comparisons.items()
        }
        data["guardrails"] = {
            arm: [_guardrail(each) for each in found] for arm, found in experiment.evaluation.guardrails.items()
        }
    return data


def _ramp(experiment: ExperimentState) -> Json | None:
    ramp, state = experiment.spec.ramp, experiment.state
    if ramp is None:
        return None
    return {
        "arm": ramp.arm,
        "steps": list(ramp.steps),
        "step": state.step if state is not None and state.step else None,
        "requests": experiment.evidence.requests(ramp.arm),
        "min_requests": ramp.min_requests,
        "min_time": ramp.min_time,
        "require": ramp.require,
        "fuse": asdict(ramp.fuse),
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
        "guessed": counts.guessed,
        "guessed_sessions": counts.guessed_units,
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
        **{name: _interval(getattr(found, name)) for name in _INTERVALS},
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
        "expected": {name: _number(value) for name, value in found.expected.items()},
        "seen": {name: _number(value) for name, value in found.seen.items()},
        "counted": found.counted,
    }


def _interval(found: Interval | None) -> list[float | None] | None:
    """Estimate, low, high."""
    return [_number(found.estimate), _number(found.low), _number(found.high)] if found is not None else None


def _number(value: float) -> float | None:
    """JSON has no infinity."""
    return float(f"{value:.6g}") if isfinite(value) else None
