"""The `experiments:`, `layers:` and `forcing:` sections: weighted arms, exclusive experiments, who may force an arm."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from gateway.config import ramps, value_parsers
from gateway.config.experiment_specs import ArmSpec, ExperimentSpec, ForcingSpec, LayerSpec
from gateway.yaml import values
from gateway.yaml.nodes import Map, Node
from gateway.yaml.problems import Location, suggest
from gateway.yaml.readers import Reading, Record, one_or_many, reference, scalar

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


def _hashed(text: str) -> str:
    """A key's SHA-256. The key itself is a secret and appears neither in rule files nor in messages."""
    if not _SHA256.fullmatch(text):
        what = "a key stands here by its SHA-256, 64 hexadecimal digits"
        raise ValueError(f"{what}: `printf %s 'the key' | sha256sum` tells it")
    return text.lower()


_FORCING = Record(
    "forcing",
    ForcingSpec,
    {
        "header": scalar(value_parsers.header_name),
        "key_header": scalar(value_parsers.header_name),
        "keys": one_or_many(scalar(_hashed)),
        "parameter": scalar(value_parsers.text),
        "key_parameter": scalar(value_parsers.text),
    },
    required=("keys",),
)


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


# Shares are written in decimal: three thirds of 33.4 % are meant to be one.
_ROUNDING = 1e-9

_UNITS = ("session", "request", "header:NAME", "parameter:NAME")


def _unit(text: str) -> str:
    """The unit of an experiment; a header name is lower-cased."""
    kind, separator, name = text.partition(":")
    if text in ("session", "request"):
        return text
    if separator and kind == "header":
        return f"header:{value_parsers.header_name(name)}"
    if separator and kind == "parameter" and name:
        return text
    raise ValueError(f"unknown unit {text!r}{suggest(text, _UNITS)}")


def _share(text: str) -> float:
    """A share of units, 0 to 1."""
    value = value_parsers.share(text)
    if not 0 <= value <= 1:
        raise ValueError(f"{text} is out of range: a share is from 0 to 1, or from 0% to 100%")
    return value


_ARM = Record(
    "an arm",
    ArmSpec,
    {
        "name": scalar(values.name),
        "engine": reference("engine"),
        "weight": scalar(value_parsers.weight),
        "model": scalar(value_parsers.text),
    },
    required=("name", "engine", "weight"),
)
_EXPERIMENT = Record(
    "an experiment",
    ExperimentSpec,
    {
        "unit": scalar(_unit),
        "salt": scalar(value_parsers.text),
        "arms": one_or_many(_ARM),
        "control": scalar(values.name),
        "layer": reference("layer"),
        "share": scalar(_share),
        **ramps.FIELDS,
    },
    required=("arms",),
)
_LAYER = Record(
    "a layer",
    LayerSpec,
    {"unit": scalar(_unit), "holdout": scalar(_share), "salt": scalar(value_parsers.text)},
)


def read_experiment(name: str, location: Location, node: Node, reading: Reading) -> ExperimentSpec | None:
    """Read one experiment; `location` is that of its name."""
    experiment = _EXPERIMENT.read(node, reading, name=name, location=location)
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
    return ramps.check_ramp(experiment, node, reading)


def read_layer(name: str, location: Location, node: Node, reading: Reading) -> LayerSpec | None:
    """Read one layer; `location` is that of its name."""
    return _LAYER.read(node, reading, name=name, location=location)


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
