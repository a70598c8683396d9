"""The `experiments:` section: splits of traffic into weighted arms."""

from __future__ import annotations

from collections import Counter

from gateway.config import rule_values
from gateway.config.experiment_specs import ArmSpec, ExperimentSpec
from gateway.yaml import values
from gateway.yaml.location import Location
from gateway.yaml.nodes import Node
from gateway.yaml.problems import suggest
from gateway.yaml.readers import Reading, Record, one_or_many, reference, scalar

_UNITS = ("session", "request", "header:NAME", "parameter:NAME")


def _unit(text: str) -> str:
    """What keeps its arm; a header's name is put in lower case."""
    kind, separator, name = text.partition(":")
    if text in ("session", "request"):
        return text
    if separator and kind == "header":
        return f"header:{rule_values.header_name(name)}"
    if separator and kind == "parameter" and name:
        return text
    raise ValueError(f"unknown unit {text!r}{suggest(text, _UNITS)}")


_ARM = Record(
    "an arm",
    ArmSpec,
    {
        "name": scalar(values.name),
        "engine": reference("engine"),
        "weight": scalar(rule_values.weight),
        "model": scalar(rule_values.text),
    },
    required=("name", "engine", "weight"),
)
_EXPERIMENT = Record(
    "an experiment",
    ExperimentSpec,
    {"unit": scalar(_unit), "salt": scalar(rule_values.text), "arms": one_or_many(_ARM)},
    required=("arms",),
)


def read_experiment(name: str, location: Location, node: Node, reading: Reading) -> ExperimentSpec | None:
    """Read one experiment; `location` is where its name stands."""
    experiment = _EXPERIMENT.read(node, reading, name=name, location=location)
    if experiment is None:
        return None
    for arm, times in Counter(arm.name for arm in experiment.arms).items():
        if times > 1:
            reading.error(location, f"experiment {name!r} has {times} arms named {arm!r}")
    if not any(arm.weight for arm in experiment.arms):
        reading.error(location, f"the weights of experiment {name!r} sum to zero: no arm can be chosen")
    return experiment
