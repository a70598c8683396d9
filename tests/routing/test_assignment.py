"""The assignment of units to arms."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, repeat

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.config.experiment_specs import ArmSpec, ExperimentSpec
from gateway.routing.assignment import Split

UNITS = [f"user-{number}" for number in range(20_000)]
FEW_UNITS = UNITS[:300]
CHANCES = (0.0, 0.5, 1 - 2**-53)
POSITION = 0.7145692102940598  # of user-1

# Rule files write up to 18 decimal places; weights too small for floats to distinguish cannot be written.
weight = st.just(0.0) | st.floats(1e-6, 100)
weights = st.dictionaries(st.sampled_from("abcde"), weight, min_size=1).filter(lambda arms: sum(arms.values()) > 0)


def split(arms: dict[str, float], salt: str = "s") -> Split:
    return Split(ExperimentSpec("x", tuple(ArmSpec(name, "e", weight) for name, weight in arms.items()), salt=salt))


def arm(one: Split, unit: str) -> str:
    found = one.assign(unit)
    assert found is not None
    return one.spec.arms[found].name


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


# The arms of user-0 to user-39. a: candidate, o: control
FIRST_ARMS = "ooooooaoooooooooaooooooaoaoooooooooooooo"


def test_an_assignment_is_the_same_on_every_machine() -> None:
    """Positions are literal: a change of the hash, its input or a library would move every user and fails this test."""
    one = split({"control": 90, "candidate": 10}, salt="2024-launch")
    assert one.position("user-1") == pytest.approx(POSITION, abs=1e-12)
    assert [(stretch.name, stretch.share, stretch.intervals) for stretch in one.arm_spans()] == [
        ("control", 0.9, ((0.1, 1.0),)),
        ("candidate", 0.1, ((0.0, 0.1),)),
    ]
    assert "".join(arm(one, unit)[1] for unit in UNITS[:40]) == FIRST_ARMS


@given(st.dictionaries(st.sampled_from("abc"), weight, min_size=2), st.data())
def test_a_ramp_flips_no_unit_of_another_arm(before: dict[str, float], data: st.DataObject) -> None:
    """With a control and one or two other arms, an arm only gains units from the control and only loses them to it."""
    assume(0 < sum(before.values()) <= 100)
    control, *others = before
    name = data.draw(st.sampled_from(others))
    to = data.draw(st.floats(0, before[name] + before[control]))
    after = before | {name: to, control: before[control] + before[name] - to}
    assume(sum(after.values()) > 0)
    old, new = split(before), split(after)
    has_grown = to > before[name]
    for unit in FEW_UNITS:
        was, now = arm(old, unit), arm(new, unit)
        assert was == now or ((was, now) == (control, name) if has_grown else (was, now) == (name, control))


def test_from_five_to_twenty_percent_nobody_flips_back() -> None:
    """A unit on the growing arm stays there through all steps of the ramp, and through those of a second arm."""
    exposed: set[str] = set()
    for candidate, other in ((1, 0), (5, 0), (5, 30), (20, 30), (20, 60), (40, 60)):
        one = split({"control": 100 - candidate - other, "candidate": candidate, "other": other})
        now = {unit for unit in UNITS if arm(one, unit) == "candidate"}
        assert exposed <= now
        assert len(now) / len(UNITS) == pytest.approx(candidate / 100, abs=0.015)
        exposed = now


def test_weights_of_the_moment() -> None:
    """`weigh` replaces the rules' weights at once; None, weights of other arms and zero weights restore the rules'."""
    one = split({"control": 90, "candidate": 10})
    before = [arm(one, unit) for unit in FEW_UNITS]
    one.weigh({"control": 0.0, "candidate": 1.0})
    assert {arm(one, unit) for unit in FEW_UNITS} == {"candidate"}
    assert one.shares == {"control": 0.0, "candidate": 1.0}
    for others in (None, {"control": 0.5, "gone": 0.5}, {"control": 0.0, "candidate": 0.0}):
        one.weigh(others)
        assert [arm(one, unit) for unit in FEW_UNITS] == before


def test_the_control_has_the_rest_wherever_it_stands() -> None:
    """With `control:` the control may be declared anywhere; the assignment is the same as with the control first."""
    arms = (ArmSpec("new", "e", 20), ArmSpec("old", "e", 80))
    named = Split(ExperimentSpec("x", arms, control="old", salt="s"))
    first = split({"old": 80, "new": 20})
    assert [arm(named, unit) for unit in FEW_UNITS] == [arm(first, unit) for unit in FEW_UNITS]
    assert [stretch.name for stretch in named.arm_spans()] == ["new", "old"]


@given(weights, st.floats(0.1, 10))
def test_weights_are_relative(arms: dict[str, float], factor: float) -> None:
    """Scaling all weights keeps the assignment, except for at most one unit on a boundary."""
    one, scaled = split(arms), split({name: weight * factor for name, weight in arms.items()})
    assert sum(arm(one, unit) != arm(scaled, unit) for unit in FEW_UNITS) <= 1


@given(weights, st.text())
def test_an_arm_of_weight_zero_gets_nobody(arms: dict[str, float], unit: str) -> None:
    """Neither a unit nor a random draw is assigned to an arm of weight zero."""
    one = split(arms)
    assert arms[arm(one, unit)] > 0
    for number in CHANCES:
        found = one.assign_by_chance(repeat(number).__next__)
        assert found is not None
        assert arms[one.spec.arms[found].name] > 0


@given(weights, st.text())
def test_what_is_told_is_what_the_assignment_decides_by(arms: dict[str, float], unit: str) -> None:
    """The unit's position lies in an interval of its arm."""
    one = split(arms)
    position = one.position(unit)
    stretch = one.arm_spans()[one.assign(unit) or 0]
    assert any(start <= position <= end for start, end in stretch.intervals)


def test_another_salt_is_another_assignment() -> None:
    """Two experiments with different salts assign the same users independently."""
    one, other = split({"a": 50, "b": 50}, "one"), split({"a": 50, "b": 50}, "other")
    both = Counter((arm(one, unit), arm(other, unit)) for unit in UNITS)
    assert all(count / len(UNITS) == pytest.approx(0.25, abs=0.015) for count in both.values())


@pytest.mark.parametrize(
    "chance, expected", [(0.0, "b"), (0.499, "b"), (0.5, "a"), (0.599, "a"), (0.601, "c"), (0.999, "c")]
)
def test_chance_falls_by_weight(chance: float, expected: str) -> None:
    """Random draws use the same intervals as units: the control has what the others leave."""
    one = split({"a": 1, "b": 5, "c": 4, "zero": 0})
    found = one.assign_by_chance(lambda: chance)
    assert found is not None
    assert one.spec.arms[found].name == expected


def test_units_that_look_alike_are_apart() -> None:
    """A hundred numbered users under an even split neither alternate nor cluster."""
    one = split({"a": 50, "b": 50})
    arms = [arm(one, f"{number}") for number in range(100)]
    assert 30 < sum(was != now for was, now in pairwise(arms)) < 70
