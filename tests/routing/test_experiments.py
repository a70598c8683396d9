"""The assignment of units to arms."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.config.experiment_specs import ArmSpec, ExperimentSpec
from gateway.routing.experiments import Split

UNITS = [f"user-{number}" for number in range(20_000)]
FEW_UNITS = UNITS[:300]

# Rule files write up to 18 digits behind the point; weights smaller than floats tell apart cannot be written.
weight = st.just(0.0) | st.floats(1e-6, 100)
weights = st.dictionaries(st.sampled_from("abcde"), weight, min_size=1).filter(lambda arms: sum(arms.values()) > 0)


def split(arms: dict[str, float], salt: str = "s") -> Split:
    return Split(ExperimentSpec("x", tuple(ArmSpec(name, "e", weight) for name, weight in arms.items()), salt=salt))


def arm(one: Split, unit: str) -> str:
    return one.spec.arms[one.assign(unit)].name


@pytest.mark.parametrize(
    "arms",
    [
        {"control": 90, "candidate": 10},
        {"control": 50, "candidate": 50},
        {"control": 99.9, "candidate": 0.1},
        {"a": 1, "b": 2, "c": 3, "d": 4},
    ],
)
def test_arms_get_their_share(arms: dict[str, float]) -> None:
    """Over 20,000 units each arm has its weight's share, within four standard deviations of the binomial."""
    one = split(arms)
    counts = Counter(arm(one, unit) for unit in UNITS)
    for name, weight in arms.items():
        share = weight / sum(arms.values())
        deviation = (share * (1 - share) / len(UNITS)) ** 0.5
        assert counts[name] / len(UNITS) == pytest.approx(share, abs=4 * deviation)


POSITIONS = [0.6543605858270963, 0.6307222544301959]
FIRST_ARMS = "aoooooooaoooooooaoooooooooaoooooooaooooo"  # a: candidate, o: control


def test_an_assignment_is_the_same_on_every_machine() -> None:
    """Literal positions: a change of the hash, of its input or of a library would move every user, and fails here."""
    one = split({"control": 90, "candidate": 10}, salt="2024-launch")
    draws = one.draws("user-1")
    assert [(draw.arm, draw.share) for draw in draws] == [("control", 0.9), ("candidate", 0.1)]
    assert [draw.position for draw in draws] == pytest.approx(POSITIONS, abs=1e-12)
    assert "".join(arm(one, unit)[1] for unit in UNITS[:40]) == FIRST_ARMS


@given(weights, st.sampled_from("abcde"), weight)
def test_a_weight_moves_only_the_units_it_must(before: dict[str, float], name: str, to: float) -> None:
    """One arm grows, shrinks, comes or goes: units move to it if it grows and away from it if it shrinks, no others."""
    after = before | {name: to}
    assume(sum(after.values()) > 0)
    old, new = split(before), split(after)
    has_grown = to > before.get(name, 0)
    for unit in FEW_UNITS:
        was, now = arm(old, unit), arm(new, unit)
        assert was == now or (now == name if has_grown else was == name)


@given(weights)
def test_the_order_of_arms_makes_no_difference(arms: dict[str, float]) -> None:
    """An arm is known by its name: to move it in the file moves nobody."""
    one, reordered = split(arms), split(dict(reversed(arms.items())))
    assert [arm(one, unit) for unit in FEW_UNITS] == [arm(reordered, unit) for unit in FEW_UNITS]


@given(weights, st.floats(0.1, 10))
def test_weights_are_relative(arms: dict[str, float], factor: float) -> None:
    """90 and 10 are the same as 9 and 1, but for a unit that stands on the line."""
    one, scaled = split(arms), split({name: weight * factor for name, weight in arms.items()})
    assert sum(arm(one, unit) != arm(scaled, unit) for unit in FEW_UNITS) <= 1


@given(weights, st.text())
def test_an_arm_of_weight_zero_gets_nobody(arms: dict[str, float], unit: str) -> None:
    """Neither a unit nor chance leads to it."""
    one = split(arms)
    assert arms[arm(one, unit)] > 0
    assert all(arms[one.spec.arms[one.assign_by_chance(chance)].name] > 0 for chance in (0.0, 0.5, 1 - 2**-53))


@given(weights, st.text())
def test_the_highest_draw_has_the_unit(arms: dict[str, float], unit: str) -> None:
    """What an explanation shows is what the assignment decides by."""
    one = split(arms)
    draws = one.draws(unit)
    assert draws[one.assign(unit)].score == max(draw.score for draw in draws)
    assert all(0 < draw.position < 1 for draw in draws if draw.weight)


def test_another_salt_is_another_assignment() -> None:
    """Two experiments over the same users are independent: half of one half is a quarter."""
    one, other = split({"a": 50, "b": 50}, "one"), split({"a": 50, "b": 50}, "other")
    both = Counter((arm(one, unit), arm(other, unit)) for unit in UNITS)
    assert all(count / len(UNITS) == pytest.approx(0.25, abs=0.015) for count in both.values())


@pytest.mark.parametrize(
    "chance, expected", [(0.0, "a"), (0.099, "a"), (0.1, "b"), (0.599, "b"), (0.6, "c"), (0.999, "c")]
)
def test_chance_falls_by_weight(chance: float, expected: str) -> None:
    """Without a unit the arms lie side by side on [0, 1) in their order."""
    one = split({"a": 1, "b": 5, "zero": 0, "c": 4})
    assert one.spec.arms[one.assign_by_chance(chance)].name == expected


def test_units_that_look_alike_are_apart() -> None:
    """A hundred numbered users under an even split do not alternate, nor all fall to one side."""
    one = split({"a": 50, "b": 50})
    arms = [arm(one, f"{number}") for number in range(100)]
    assert 30 < sum(was != now for was, now in pairwise(arms)) < 70
