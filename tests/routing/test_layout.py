"""The layout of owners' intervals."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.routing.layout import NUM_POSITIONS, REST, IntervalLayout, Span

share = st.just(0.0) | st.floats(1e-9, 1.0)


def shares(min_size: int, max_size: int) -> st.SearchStrategy[list[float]]:
    return st.lists(share, min_size=min_size, max_size=max_size).filter(lambda some: sum(some) <= 1)


def intervals(spans: list[Span] | tuple[Span, ...]) -> list[tuple[float, float]]:
    return [(start / NUM_POSITIONS, end / NUM_POSITIONS) for start, end in spans]


def width(spans: list[Span]) -> int:
    return sum(end - start for start, end in spans)


def common(some: list[Span], others: list[Span]) -> int:
    """The number of positions in both."""
    return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in some for b in others)


LAYOUTS = [
    ([0.25], [[(0.0, 0.25)]]),
    ([0.25, 0.5], [[(0.0, 0.25)], [(0.5, 1.0)]]),
    ([0.25, 0.125, 0.125], [[(0.0, 0.25)], [(0.875, 1.0)], [(0.5, 0.625)]]),
    ([0.125] * 4, [[(0.0, 0.125)], [(0.875, 1.0)], [(0.5, 0.625)], [(0.375, 0.5)]]),
    ([0.0625] * 5, [[(0, 0.0625)], [(0.9375, 1)], [(0.5, 0.5625)], [(0.4375, 0.5)], [(0.25, 0.3125)]]),
    # The first owner fills its half of the circle, and beyond it takes what the others leave
    ([0.75, 0.0625, 0.125], [[(0.0, 0.5), (0.625, 0.875)], [(0.9375, 1.0)], [(0.5, 0.625)]]),
    ([1.0], [[(0.0, 1.0)]]),
    ([0.0, 0.0], [[], []]),
    ([], []),
]


@pytest.mark.parametrize("some, expected", LAYOUTS)
def test_owners_stand_at_their_anchors(some: list[float], expected: list[list[tuple[float, float]]]) -> None:
    """Intervals are literal: they must not change between versions."""
    assert [intervals(spans) for spans in IntervalLayout(some).spans] == expected


@given(shares(0, 9))
def test_everybody_has_his_share_and_no_position_has_two_owners(some: list[float]) -> None:
    """For any shares, each owner has its share, and no position has two owners."""
    layout = IntervalLayout(some)
    assert [width(spans) / NUM_POSITIONS for spans in layout.spans] == pytest.approx(some, abs=1e-8)
    marks = sorted(span for spans in (*layout.spans, layout.rest()) for span in spans)
    assert [start for start, _ in marks] == [0, *[end for _, end in marks[:-1]]]
    assert marks[-1][1] == NUM_POSITIONS


@given(shares(1, 9), st.integers(0, NUM_POSITIONS - 1))
def test_a_position_is_found_where_it_lies(some: list[float], position: int) -> None:
    """The fast lookup agrees with the intervals."""
    layout = IntervalLayout(some)
    owner = layout.owner(position)
    spans = layout.rest() if owner == REST else layout.spans[owner]
    assert any(start <= position < end for start, end in spans)


@given(shares(1, 2), st.data())
def test_of_two_owners_only_the_one_that_changes_moves(before: list[float], data: st.DataObject) -> None:
    """An owner that changes takes positions from the rest and returns them to the rest."""
    who = data.draw(st.integers(0, len(before) - 1))
    after = list(before)
    after[who] = data.draw(share)
    assume(sum(after) <= 1)
    assume(max(sum(before), sum(after)) < 1 - 1e-6)  # rounding to the last position moves one in a billion
    old, new = IntervalLayout(before).spans, IntervalLayout(after).spans
    for owner in range(len(before)):
        assert common(old[owner], new[owner]) == min(width(old[owner]), width(new[owner]))
        assert owner == who or old[owner] == new[owner]


def half_of(owner: int, num_owners: int) -> float:
    """The range reserved for an owner: half of its way to the next anchor, or all of it."""
    alone = IntervalLayout([1.0 if at == owner else 0.0 for at in range(num_owners)])
    for start, end in intervals(alone.spans[owner]):
        assert (start, end) == (0.0, 1.0)
    anchors = sorted({start for at in range(num_owners) for start in [anchor(at)]} | {1.0})
    at = anchor(owner) if owner % 2 == 0 else (anchor(owner) or 1.0)
    place = anchors.index(at)
    start, end = (at, anchors[place + 1]) if owner % 2 == 0 else (anchors[place - 1], at)
    other_side = end if owner % 2 == 0 else start
    others = [each for each in range(num_owners) if each % 2 != owner % 2 and anchor(each) % 1.0 == other_side % 1.0]
    return (end - start) / (2 if others else 1)


def anchor(owner: int) -> float:
    return [0.0, 0.5, 0.25, 0.75, 0.125][owner // 2]


@given(st.integers(3, 9), st.data())
def test_within_its_half_an_owner_keeps_all_whatever_others_do(num_owners: int, data: st.DataObject) -> None:
    """Others may grow, shrink and overflow: an unchanged owner within its half keeps exactly its positions."""
    who = data.draw(st.integers(0, num_owners - 1))
    mine = data.draw(st.floats(0, half_of(who, num_owners)))
    rest = 1 - mine - 1e-6

    def others() -> list[float]:
        some = data.draw(st.lists(st.floats(0, 1), min_size=num_owners - 1, max_size=num_owners - 1))
        scale = data.draw(st.floats(0, 1)) * rest / max(1.0, sum(some))
        return [each * scale for each in some]

    layouts = []
    for _ in range(2):
        some = others()
        some.insert(who, mine)
        layouts.append(IntervalLayout(some).spans[who])
    assert layouts[0] == layouts[1]


@given(st.integers(3, 9), st.data())
def test_a_lone_owner_beyond_its_half_is_nested(num_owners: int, data: st.DataObject) -> None:
    """One arm that grows from nothing to nearly everything, beside others that stay, only adds positions."""
    who = data.draw(st.integers(0, num_owners - 1))
    small = [data.draw(st.floats(0, half_of(each, num_owners) / num_owners)) for each in range(num_owners)]
    room = 1 - sum(small) + small[who] - 1e-6
    steps = sorted(data.draw(st.lists(st.floats(0, 1), min_size=2, max_size=4)))
    before = None
    for step in steps:
        some = list(small)
        some[who] = step * room
        spans = IntervalLayout(some).spans
        if before is not None:
            for owner in range(num_owners):
                assert common(before[owner], spans[owner]) == width(before[owner])
        before = spans


@given(st.integers(3, 8), st.data())
def test_what_comes_later_leaves_those_before(num_owners: int, data: st.DataObject) -> None:
    """A new owner takes positions from the rest only, where all are within their halves of the new layout."""
    small = [data.draw(st.floats(0, half_of(each, num_owners + 1))) for each in range(num_owners)]
    # No owner reaches beyond the new anchor
    old, new = IntervalLayout(small).spans, IntervalLayout([*small, 0.01]).spans
    assert old == new[:-1]
