"""The `experiments:`, `layers:` and `forcing:` sections: weighted arms and their traffic over time, exclusive
experiments, and keys that may force an arm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from gateway.config import value_parsers
from gateway.config.experiment_specs import (
    ArmSpec,
    BanditSpec,
    ExperimentSpec,
    ForcingSpec,
    FuseSpec,
    GuardrailSpec,
    LayerSpec,
    RampSpec,
)
from gateway.config.fallbacks import read_fallbacks
from gateway.yaml.nodes import Items, Map, Node
from gateway.yaml.problems import Location, suggest
from gateway.yaml.readers import Reading, Record, one_or_many, record_of, scalar

_BOUNDS = ("max", "max_increase", "max_decrease", "max_ratio", "min_ratio")
# Shares are written in decimal: three thirds of 33.4 % are meant to be one.
_ROUNDING = 1e-9

_FORCING = record_of("forcing", ForcingSpec, required=("keys",))


def read_forcing(node: Node, reading: Reading) -> ForcingSpec | None:
    """Read the section."""
    forcing = _FORCING(node, reading)
    if forcing is None:
        return None
    if forcing.header == forcing.key_header:
        reading.error(node.location, f"header {forcing.header!r} cannot have both the arm and the key")
    if forcing.parameter == forcing.key_parameter:
        reading.error(node.location, f"parameter {forcing.parameter!r} cannot have both the arm and the key")
    return forcing


_GUARDRAIL: Record[dict[str, str]] = Record(
    "a guardrail",
    dict,
    {"metric": scalar(value_parsers.metric), **dict.fromkeys(_BOUNDS, scalar(str))},
    required=("metric",),
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
    value = scalar(value_parsers.guardrail_bound(metric, bound))(node.entries[bound].node, reading)
    if value is None:
        return None
    if value < 0 and bound != "max":
        reading.error(node.entries[bound].node.location, f"{guardrail[bound]} is negative: {bound} is 0 at the least")
        return None
    return GuardrailSpec(metric, **{bound: value}, location=node.location)


def _steps(node: Node, reading: Reading) -> tuple[float, ...] | None:
    """Shares that grow."""
    found = one_or_many(scalar(value_parsers.part))(node, reading)
    if found is None or not isinstance(node, Items) or len(found) < len(node.nodes):
        return found
    for before, after, item in zip(found, found[1:], node.nodes[1:], strict=False):
        if after <= before:
            reading.error(item.location, f"steps grow: {after:.6g} is not more than {before:.6g} before it")
            return None
    return found


_EXPERIMENT = record_of(
    "an experiment",
    ExperimentSpec,
    preset=("name",),
    arms=one_or_many(record_of("an arm", ArmSpec, fallback=read_fallbacks)),
    guardrails=one_or_many(_guardrail),
    ramp=record_of("a ramp", RampSpec, steps=_steps, fuse=record_of("a fuse", FuseSpec)),
    bandit=record_of("a bandit", BanditSpec, fuse=record_of("a fuse", FuseSpec)),
)
_LAYER = record_of("a layer", LayerSpec, preset=("name",))


def read_experiment(name: str, location: Location, node: Node, reading: Reading) -> ExperimentSpec | None:
    """Read one experiment; `location` is that of its name."""
    experiment = _EXPERIMENT(node, reading, name=name, location=location)
    if experiment is None:
        return None
    for arm, times in Counter(arm.name for arm in experiment.arms).items():
        if times > 1:
            reading.error(location, f"experiment {name!r} has {times} arms named {arm!r}")
    if not any(arm.weight for arm in experiment.arms):
        reading.error(location, f"the weights of experiment {name!r} sum to zero: no arm can be chosen")
    arms = [arm.name for arm in experiment.arms]
    if experiment.control and experiment.control not in arms:
        message = f"experiment {name!r} has no arm {experiment.control!r} to be its control"
        reading.error(location, message + suggest(experiment.control, arms))
    assert isinstance(node, Map)
    if not experiment.is_by_session:
        for key in ("pin", "lookup_timeout"):
            if key in node.entries:
                what = f"{key} is for units that are sessions, and those of experiment {name!r} are {experiment.unit}"
                reading.error(node.entries[key].location, what)
    return _check_ramp(experiment, node, reading)


def _check_ramp(experiment: ExperimentSpec, node: Map, reading: Reading) -> ExperimentSpec:
    """Find what does not go together, and name the arm that a ramp leaves open: with two, the one that is no control.

    `node` is the experiment's map.
    """
    where = f"experiment {experiment.name!r}"
    if experiment.ramp is not None and experiment.bandit is not None:
        reading.error(
            node.entries["bandit"].location, f"{where} has a ramp and a bandit: one of them moves its weights"
        )
    if experiment.metric.startswith(value_parsers.FEEDBACK) and "goal" not in node.entries:
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
    inner = node.entries["ramp"].node
    assert isinstance(inner, Map)
    at = inner.entries["min_requests"].node if "min_requests" in inner.entries else inner
    return replace(
        experiment, ramp=replace(_with_arm(experiment, experiment.ramp, node, reading), location=at.location)
    )


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


def read_layer(name: str, location: Location, node: Node, reading: Reading) -> LayerSpec | None:
    """Read one layer; `location` is that of its name."""
    return _LAYER(node, reading, name=name, location=location)


def check_layers(experiments: Mapping[str, ExperimentSpec], layers: Mapping[str, LayerSpec], reading: Reading) -> None:
    """Check that each layer's experiments have its unit, and find room in it."""
    for layer in layers.values():
        assert layer.location is not None
        members = [experiment for experiment in experiments.values() if experiment.layer == layer.name]
        for experiment in members:
            if experiment.unit != layer.unit:
                assert experiment.location is not None
                message = (
                    f"experiment {experiment.name!r} has unit '{experiment.unit}', and its layer {layer.name!r} has"
                )
                reading.error(experiment.location, f"{message} '{layer.unit}': one unit chooses in a layer")
        taken = layer.holdout + sum(experiment.share for experiment in members)
        if taken > 1 + _ROUNDING:
            names = ", ".join(f"{experiment.name} {experiment.share:.4g}" for experiment in members)
            message = f"layer {layer.name!r} has no room for all: holdout {layer.holdout:.4g}, {names} are {taken:.4g}"
            reading.error(layer.location, f"{message} of 1 together; set their 'share'")
