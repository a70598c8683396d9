"""The keys of an experiment's evaluation and traffic over time: `metric`, `goal`, `alpha`, `guardrails`, `ramp`,
`bandit`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gateway.config import value_parsers
from gateway.config.experiment_specs import BanditSpec, ExperimentSpec, FuseSpec, GuardrailSpec, RampSpec
from gateway.yaml import values
from gateway.yaml.nodes import Items, Map, Node
from gateway.yaml.problems import Location, suggest
from gateway.yaml.readers import Reader, Reading, Record, one_or_many, scalar

_TIMES = ("latency", "first_token", "per_token")
_QUANTILES = ("_p50", "_p90", "_p95", "_p99")
_FEEDBACK = "feedback:"
METRICS = ("error_rate", *(time + end for time in _TIMES for end in ("", *_QUANTILES)), "output_tokens")
_KNOWN = ("error_rate", "latency", "latency_p95", "first_token", "per_token", "output_tokens", "feedback:NAME")
_BOUNDS = ("max", "max_increase", "max_decrease", "max_ratio", "min_ratio")
_RATIOS = ("max_ratio", "min_ratio")


def _metric(text: str) -> str:
    """What can be measured of an arm."""
    if text.startswith(_FEEDBACK):
        values.name(text.removeprefix(_FEEDBACK))
        return text
    if text not in METRICS:
        likely = suggest(text, METRICS)
        raise ValueError(f"unknown metric {text!r}{likely if 'did you' in likely else '; known: ' + ', '.join(_KNOWN)}")
    return text


def _metric_of_bandits(text: str) -> str:
    """Whether a metric is binary per request."""
    if _metric(text) != "error_rate" and not text.startswith(_FEEDBACK):
        raise ValueError(f"a bandit goes by error_rate, or by feedback:NAME of 0 and 1, not by {text}")
    return text


def _part(text: str) -> float:
    """A share of the whole that is more than nothing."""
    found = value_parsers.share(text)
    if not found > 0:
        raise ValueError(f"{text} is too small: more than 0")
    if found > 1:
        raise ValueError(
            f"{text} is more than the whole: {'at most 100%' if '%' in text else f'did you mean {text}%?'}"
        )
    return found


def _alpha(text: str) -> float:
    found = value_parsers.share(text)
    if not 0 < found <= 0.5:
        raise ValueError(f"{text} is out of range: more than 0, up to 0.5")
    return found


def _bound_of(metric: str, bound: str) -> Callable[[str], float]:
    """The parser of a guardrail's bound: in the metric's unit, except for ratios."""
    if bound in _RATIOS:
        return values.above_zero(values.number)
    if metric == "error_rate":
        return value_parsers.share
    if metric.startswith(_TIMES):
        return values.duration
    return values.number


_span = scalar(values.above_zero(values.duration))
_count = scalar(values.at_least(1, values.integer))
_part_reader = scalar(_part)

_GUARDRAIL: Record[dict[str, str]] = Record(
    "a guardrail", dict, {"metric": scalar(_metric), **dict.fromkeys(_BOUNDS, scalar(str))}, required=("metric",)
)


def _guardrail(node: Node, reading: Reading) -> GuardrailSpec | None:
    guardrail = _GUARDRAIL(node, reading)
    if guardrail is None:
        return None
    assert isinstance(node, Map)
    metric = guardrail.pop("metric")
    if len(guardrail) != 1:
        needs = f"needs one of {', '.join(_BOUNDS)}"
        has = f"has {' and '.join(guardrail)}: it can have one of them" if guardrail else needs
        reading.error(node.location, f"the guardrail on {metric} {has}")
        return None
    ((bound, _),) = guardrail.items()
    value = scalar(_bound_of(metric, bound))(node.entries[bound].node, reading)
    if value is None:
        return None
    if value < 0 and bound != "max":
        reading.error(node.entries[bound].node.location, f"{guardrail[bound]} is negative: {bound} is 0 at the least")
        return None
    return GuardrailSpec(metric, **{bound: value}, location=node.location)


def _steps(node: Node, reading: Reading) -> tuple[float, ...] | None:
    """Shares that grow."""
    found = one_or_many(_part_reader)(node, reading)
    if found is None or not isinstance(node, Items) or len(found) < len(node.nodes):
        return found
    for before, after, item in zip(found, found[1:], node.nodes[1:], strict=False):
        if after <= before:
            reading.error(item.location, f"steps grow: {after:.6g} is not more than {before:.6g} before it")
            return None
    return found


def _ramp_spec(steps: tuple[float, ...], arm: str = "", **rest: Any) -> RampSpec:
    return RampSpec(steps, arm, **rest)


_FUSE = Record("a fuse", FuseSpec, {"error_rate": _part_reader, "min_requests": _count, "window": _span})
_RAMP = Record(
    "a ramp",
    _ramp_spec,
    {
        "steps": _steps,
        "arm": scalar(values.name),
        "min_requests": _count,
        "min_time": scalar(values.duration),
        "auto_start": scalar(values.boolean),
        "fuse": _FUSE,
    },
    required=("steps",),
)
_BANDIT = Record(
    "a bandit",
    BanditSpec,
    {
        "metric": scalar(_metric_of_bandits),
        "min_share": scalar(value_parsers.share),
        "max_share": _part_reader,
        "every": _span,
        "half_life": _span,
    },
)

# The keys of an experiment that are read here.
FIELDS: Mapping[str, Reader[Any]] = {
    "metric": scalar(_metric),
    "goal": scalar(values.one_of(("lower", "higher"))),
    "alpha": scalar(_alpha),
    "guardrails": one_or_many(_guardrail),
    "ramp": _RAMP,
    "bandit": _BANDIT,
}


def check_ramp(experiment: ExperimentSpec, node: Map, reading: Reading) -> ExperimentSpec:
    """Find what does not go together, and name the arm that a ramp leaves open: with two, the one that is no control.

    `node` is the experiment's map.
    """
    where = f"experiment {experiment.name!r}"
    if experiment.ramp is not None and experiment.bandit is not None:
        reading.error(
            node.entries["bandit"].location, f"{where} has a ramp and a bandit: one of them moves its weights"
        )
    if experiment.metric.startswith(_FEEDBACK) and "goal" not in node.entries:
        what = f"{where} goes by {experiment.metric}: say 'goal: higher' or 'goal: lower'"
        reading.error(node.entries["metric"].location, what)
    for key in ("ramp", "bandit"):
        if key in node.entries and len(experiment.arms) < 2:
            reading.error(node.entries[key].location, f"{where} has one arm: a {key} needs two at the least")
            return experiment
    if experiment.bandit is not None:
        _check_bandit(experiment.bandit, len(experiment.arms), node.entries["bandit"].location, reading)
    if experiment.ramp is None:
        return experiment
    if not experiment.guardrails:
        reading.warn(node.entries["ramp"].location, f"{where} has a ramp and no guardrails: only its fuse can end it")
    return replace(experiment, ramp=_with_arm(experiment, experiment.ramp, node, reading))


def _check_bandit(bandit: BanditSpec, num_arms: int, location: Location, reading: Reading) -> None:
    if bandit.min_share < 0 or bandit.min_share * num_arms > 1:
        what = f"min_share {bandit.min_share:g} of {num_arms} arms: 0 to {1 / num_arms:.3g} can be had by each"
        reading.error(location, what)
    elif bandit.max_share < max(1 / num_arms, bandit.min_share):
        what = (
            f"max_share {bandit.max_share:g} of {num_arms} arms: less than {1 / num_arms:.3g} leaves units without one"
        )
        reading.error(location, what)


def _with_arm(experiment: ExperimentSpec, ramp: RampSpec, node: Map, reading: Reading) -> RampSpec:
    control, names = experiment.control_arm.name, [arm.name for arm in experiment.arms]
    others = [name for name in names if name != control]
    if not ramp.arm:
        if len(others) > 1:
            what = f"the ramp of experiment {experiment.name!r} needs 'arm': which of {', '.join(others)} is to grow"
            reading.error(node.entries["ramp"].node.location, what)
        return replace(ramp, arm=others[0])
    inner = node.entries["ramp"].node
    place = inner.entries["arm"].node.location if isinstance(inner, Map) else inner.location
    if ramp.arm not in names:
        reading.error(place, f"experiment {experiment.name!r} has no arm {ramp.arm!r}{suggest(ramp.arm, others)}")
    elif ramp.arm == control:
        what = f"{ramp.arm!r} is the control arm, with which others are compared: a ramp grows one of the others"
        reading.error(place, f"{what}{suggest('', others)}")
    return ramp
