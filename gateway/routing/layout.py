"""Where owners of units stand in [0, 1): intervals that depend on the owners' shares alone, and move few units.

Owners stand at anchors, two at each: one grows to the right, one to the left. The first two share anchor 0 (and 1: the
circle closes), the next two 1/2, then 1/4, 3/4, 1/8, ...: the van der Corput sequence, so that owners who come later
leave those before at their places. Between two anchors the one from the left and the one from the right have half
each, and of the other half what the other leaves. What an owner has beyond fills what is free, from the left. The rest
is nobody's: an experiment's control, or what no experiment of a layer gets.

So nobody but the rest loses a unit when an owner grows, and nobody but the rest gains one when it shrinks: with two
owners always, with more as long as each is within its half. No layout without memory could promise it without bounds:
of three owners that may have half each, two must meet.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

# Positions are 64 bits of a hash.
WHOLE = 1 << 64
REST = -1

# Weights are floats: what is missing to the whole by so little is rounding.
_ROUNDING = 1e-9

Span = tuple[int, int]  # from, to: positions, the latter excluded


class IntervalLayout:
    """Owners' intervals, ready to be looked up; owners are known by their index."""

    __slots__ = ("owners", "spans", "starts")

    def __init__(self, shares: Sequence[float]) -> None:
        """`shares` are the owners', of 1; together at most 1."""
        self.spans = _lay_out(_sizes(shares))
        marks = sorted((start, end, owner) for owner, spans in enumerate(self.spans) for start, end in spans)
        self.starts: list[int] = []
        self.owners: list[int] = []
        at = 0
        for start, end, owner in marks:
            if start > at:
                self._add(at, REST)
            self._add(start, owner)
            at = end
        if at < WHOLE:
            self._add(at, REST)

    def __repr__(self) -> str:
        return f"<IntervalLayout of {len(self.spans)} owners in {len(self.starts)} intervals>"

    def owner(self, position: int) -> int:
        """Who has the unit at this position; REST where nobody has it."""
        return self.owners[bisect_right(self.starts, position) - 1]

    def rest(self) -> tuple[Span, ...]:
        """What is nobody's."""
        ends = (*self.starts[1:], WHOLE)
        return tuple(
            (start, end) for start, end, owner in zip(self.starts, ends, self.owners, strict=True) if owner == REST
        )

    def _add(self, start: int, owner: int) -> None:
        self.starts.append(start)
        self.owners.append(owner)


def _sizes(shares: Sequence[float]) -> list[int]:
    """Shares as numbers of positions; where they are all there is, to the last position."""
    total = sum(shares)
    assert total <= 1 + _ROUNDING, shares
    sizes = [int(share * WHOLE) for share in shares]
    beyond = sum(sizes) - WHOLE
    if beyond > 0 or total > 1 - _ROUNDING:
        largest = sizes.index(max(sizes))
        sizes[largest] -= beyond
    return sizes


def _lay_out(sizes: list[int]) -> list[list[Span]]:
    """Each owner's intervals."""
    placed: list[list[Span]] = [[] for _ in sizes]
    missing = list(sizes)
    gaps: list[Span] = []

    def place(owner: int, start: int, end: int) -> None:
        if start < end:
            placed[owner].append((start, end))
            missing[owner] -= end - start

    for start, end, rightward, leftward in _segments(len(sizes)):
        length = end - start
        wish = sizes[leftward] if leftward is not None else 0
        right = min(sizes[rightward], max(length // 2, length - wish)) if rightward is not None else 0
        left = min(wish, length - right)
        if rightward is not None:
            place(rightward, start, start + right)
        if leftward is not None:
            place(leftward, end - left, end)
        gaps.append((start + right, end - left))
    for owner in range(len(sizes)):
        for at, (start, end) in enumerate(gaps):
            until = start + min(missing[owner], end - start)
            place(owner, start, until)
            gaps[at] = until, end
    return [_joined(spans) for spans in placed]


def _segments(num_owners: int) -> list[tuple[int, int, int | None, int | None]]:
    """What lies between anchors: from, to, who grows into it from the left and who from the right."""
    anchors = sorted((_anchor(pair), pair) for pair in range(max(1, (num_owners + 1) // 2)))
    ends = [*anchors[1:], (WHOLE, 0)]
    segments = []
    for (start, left_pair), (end, right_pair) in zip(anchors, ends, strict=True):
        rightward, leftward = 2 * left_pair, 2 * right_pair + 1
        segments.append(
            (
                start,
                end,
                rightward if rightward < num_owners else None,
                leftward if leftward < num_owners else None,
            )
        )
    return segments


def _anchor(pair: int) -> int:
    """0, 1/2, 1/4, 3/4, 1/8, 5/8, ... of the whole: the bits of the number behind the point, the lowest first."""
    position, place = 0, WHOLE >> 1
    while pair:
        position += place * (pair & 1)
        pair >>= 1
        place >>= 1
    return position


def _joined(spans: list[Span]) -> list[Span]:
    """Neighbours as one, in order."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and joined[-1][1] == start:
            start = joined.pop()[0]
        joined.append((start, end))
    return joined
