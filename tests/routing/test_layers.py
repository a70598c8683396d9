"""Which units belong to an experiment."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.config.experiment_specs import ArmSpec, ExperimentSpec, LayerSpec
from gateway.routing.assignment import Split
from gateway.routing.layout import memberships

UNITS = [f"user-{number}" for number in range(20_000)]
ARMS = (ArmSpec("a", "e", 50), ArmSpec("b", "e", 50))


def splits(*experiments: ExperimentSpec, layer: LayerSpec | None = None) -> dict[str, Split]:
    found = memberships(experiments, (layer,) if layer else ())
    return {experiment.name: Split(experiment, found.get(experiment.name)) for experiment in experiments}


def in_layer(name: str, share: float) -> ExperimentSpec:
    return ExperimentSpec(name, ARMS, "header:x-user", layer="l", share=share)


def test_experiments_of_a_layer_share_no_unit() -> None:
    """Each experiment has its share, the holdout and the rest are in none, and no unit is in two."""
    some = splits(in_layer("x", 0.3), in_layer("y", 0.5), layer=LayerSpec("l", "header:x-user", holdout=0.1))
    counts: Counter[tuple[str, ...]] = Counter()
    for unit in UNITS:
        counts[tuple(name for name, split in some.items() if split.assign(unit) is not None)] += 1
    assert set(counts) == {("x",), ("y",), ()}
    shares = {members: count / len(UNITS) for members, count in counts.items()}
    assert shares == pytest.approx({("x",): 0.3, ("y",): 0.5, (): 0.2}, abs=0.015)


def test_a_holdout_stays_out_whatever_experiments_do() -> None:
    """The holdout keeps its units while experiments are added, grow and are removed."""
    layer = LayerSpec("l", "header:x-user", holdout=0.1)
    held: list[set[str]] = []
    for experiments in ((in_layer("x", 0.1),), (in_layer("x", 0.4),), (in_layer("x", 0.4), in_layer("y", 0.5))):
        some = splits(*experiments, layer=layer)
        held.append({unit for unit in UNITS if all(split.assign(unit) is None for split in some.values())})
    assert held[2] <= held[1] <= held[0]
    assert len(held[2]) / len(UNITS) == pytest.approx(0.1, abs=0.01)


def test_an_experiment_that_grows_in_its_layer_takes_from_the_rest() -> None:
    """A growing experiment keeps the arms of its units and of its neighbour's."""
    layer = LayerSpec("l", "header:x-user")
    before = splits(in_layer("x", 0.1), in_layer("y", 0.25), layer=layer)
    after = splits(in_layer("x", 0.25), in_layer("y", 0.25), layer=layer)
    for unit in UNITS[:2000]:
        assert before["x"].assign(unit) in (None, after["x"].assign(unit))
        assert before["y"].assign(unit) == after["y"].assign(unit)


def test_a_share_without_a_layer_is_independent_of_the_arms() -> None:
    """A share of a tenth splits evenly between the arms; a larger share keeps the units of a smaller one."""
    small = splits(ExperimentSpec("x", ARMS, share=0.1))["x"]
    large = splits(ExperimentSpec("x", ARMS, share=0.5))["x"]
    found = Counter(small.assign(unit) for unit in UNITS)
    assert found[None] / len(UNITS) == pytest.approx(0.9, abs=0.01)
    assert found[0] / (found[0] + found[1]) == pytest.approx(0.5, abs=0.05)
    assert all(small.assign(unit) in (None, large.assign(unit)) for unit in UNITS[:2000])


def test_layers_are_independent_of_each_other() -> None:
    """Two layers of half shares assign independently: a quarter of the units is in both experiments."""
    one = splits(in_layer("x", 0.5), layer=LayerSpec("l", "header:x-user"))["x"]
    other = splits(in_layer("x", 0.5), layer=LayerSpec("l", "header:x-user", salt="other"))["x"]
    both = Counter((one.assign(unit) is None, other.assign(unit) is None) for unit in UNITS)
    assert all(count / len(UNITS) == pytest.approx(0.25, abs=0.015) for count in both.values())


def test_without_a_unit_chance_says_whether_and_which() -> None:
    """Without a unit there are two random draws: one for the share, one for the arm."""
    one = splits(ExperimentSpec("x", ARMS, "request", share=0.25))["x"]
    throws = iter([0.2, 0.7, 0.3])
    assert one.assign_by_chance(lambda: next(throws)) == 0
    assert one.assign_by_chance(lambda: next(throws)) is None


def test_a_part_is_told_by_name() -> None:
    """A membership lists the parts of its layer by name."""
    some = splits(in_layer("x", 0.25), layer=LayerSpec("l", "header:x-user", holdout=0.125))
    member = some["x"].membership
    assert member is not None
    assert [(part.name, part.share) for part in member.parts()] == [("holdout", 0.125), ("x", 0.25)]
    assert member.layer == "l"
