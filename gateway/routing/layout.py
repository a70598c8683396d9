"""The intervals of owners in [0, 1): they depend only on the owners' shares, and a change of shares moves few units.

Owners have anchors, two at each: one grows to the right, one to the left. The first two share anchor 0 (and 1: the
circle closes), the next two 1/2, then 1/4, 3/4, 1/8, ...: the van der Corput sequence, so that later owners do not move
earlier ones. Between two anchors the left and the right owner have half each, and of the other half what its owner does
not need. An owner's remainder fills free gaps from the left. The rest has no owner: an experiment's control, or the
free part of a layer.

Therefore only the rest loses units when an owner grows, and only the rest gains units when one shrinks: always with two
owners, with more as long as each is within its half. No stateless layout can guarantee it without bounds: of three
owners that may have half each, two must meet.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from gateway.config.experiment_specs import ExperimentSpec, LayerSpec

# Positions are 64 bits of a hash.
NUM_POSITIONS = 1 << 64
REST = -1

# Weights are floats: a smaller difference from 1 is rounding.
_ROUNDING = 1e-9

Span = tuple[int, int]  # from, to: positions, the latter excluded


class IntervalLayout:
    """The intervals of owners, for lookups; owners are identified by their index."""

    __slots__ = ("owners", "spans", "starts")

    def __init__(self, shares: Sequence[float]) -> None:
        """`shares`: the owners' fractions, with a sum of at most 1."""
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
        if at < NUM_POSITIONS:
            self._add(at, REST)

    def owner(self, position: int) -> int:
        """The owner of this position; REST if it has none."""
        return self.owners[bisect_right(self.starts, position) - 1]

    def rest(self) -> tuple[Span, ...]:
        """The intervals without an owner."""
        ends = (*self.starts[1:], NUM_POSITIONS)
        return tuple(
            (start, end) for start, end, owner in zip(self.starts, ends, self.owners, strict=True) if owner == REST
        )

    def _add(self, start: int, owner: int) -> None:
        self.starts.append(start)
        self.owners.append(owner)


def _sizes(shares: Sequence[float]) -> list[int]:
    """Shares as numbers of positions; if they sum to 1, no position remains."""
    total = sum(shares)
    assert total <= 1 + _ROUNDING, shares
    sizes = [int(share * NUM_POSITIONS) for share in shares]
    beyond = sum(sizes) - NUM_POSITIONS
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
        wanted = sizes[leftward] if leftward is not None else 0
        right = min(sizes[rightward], max(length // 2, length - wanted)) if rightward is not None else 0
        left = min(wanted, length - right)
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
    """The segments between anchors: from, to, the owner that grows from the left, the one from the right."""
    anchors = sorted((_anchor(pair), pair) for pair in range(max(1, (num_owners + 1) // 2)))
    ends = [*anchors[1:], (NUM_POSITIONS, 0)]
    segments = []
    for (start, left_pair), (end, right_pair) in zip(anchors, ends, strict=True):
        rightward, leftward = 2 * left_pair, 2 * right_pair + 1
        grows_right = rightward if rightward < num_owners else None
        segments.append((start, end, grows_right, leftward if leftward < num_owners else None))
    return segments


def _anchor(pair: int) -> int:
    """0, 1/2, 1/4, 3/4, 1/8, 5/8, ... of all positions: the bits of `pair` behind the binary point, lowest first."""
    position, place = 0, NUM_POSITIONS >> 1
    while pair:
        position += place * (pair & 1)
        pair >>= 1
        place >>= 1
    return position


def _joined(spans: list[Span]) -> list[Span]:
    """Sorted spans, with neighbours merged."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and joined[-1][1] == start:
            start = joined.pop()[0]
        joined.append((start, end))
    return joined


class Positions:
    """A salted hash of units: the same position on every machine."""

    __slots__ = ("hasher",)

    def __init__(self, salt: str) -> None:
        # Already contains the salt; a copy hashes a unit.
        self.hasher = blake2b(f"{salt}\0".encode(), digest_size=8)

    def of(self, unit: bytes) -> int:
        copy = self.hasher.copy()
        copy.update(unit)
        return int.from_bytes(copy.digest(), "big")


@dataclass(frozen=True, slots=True)
class UnitSpans:
    """The positions of one part of the units: an arm, or an experiment of a layer."""

    name: str
    share: float
    spans: tuple[Span, ...]

    @property
    def intervals(self) -> tuple[tuple[float, float], ...]:
        """The same as numbers from 0 to 1."""
        return tuple((start / NUM_POSITIONS, end / NUM_POSITIONS) for start, end in self.spans)


class Membership:
    """The part of the units that belongs to one experiment."""

    __slots__ = ("_index", "_layout", "_parts", "_positions", "layer")

    def __init__(self, salt: str, shares: Sequence[tuple[str, float]], index: int, layer: str | None = None) -> None:
        """`shares`: the names and shares of all parts of the layout; `index` is this experiment's."""
        self.layer = layer
        self._positions = Positions(salt)
        self._layout = IntervalLayout([share for _, share in shares])
        self._parts = tuple(shares)
        self._index = index

    def has(self, unit: bytes) -> bool:
        return self._layout.owner(self._positions.of(unit)) == self._index

    def has_by_chance(self, chance: Callable[[], float]) -> bool:
        """Whether a request without a unit is in it."""
        return self._layout.owner(int(chance() * NUM_POSITIONS)) == self._index

    def position(self, unit: bytes) -> float:
        return self._positions.of(unit) / NUM_POSITIONS

    def parts(self) -> tuple[UnitSpans, ...]:
        """All parts with their spans."""
        return tuple(
            UnitSpans(name, share, tuple(spans))
            for (name, share), spans in zip(self._parts, self._layout.spans, strict=True)
        )


HOLDOUT = "holdout"


def memberships(experiments: Sequence[ExperimentSpec], layers: Sequence[LayerSpec]) -> dict[str, Membership]:
    """The memberships of experiments that do not have all units, by name."""
    found: dict[str, Membership] = {}
    for experiment in experiments:
        if experiment.layer is None and experiment.share < 1:
            # Its own salt, so that membership is independent of the arm.
            salt = f"{experiment.salt or experiment.name}\0share"
            found[experiment.name] = Membership(salt, [(experiment.name, experiment.share)], 0)
    for layer in layers:
        members = [experiment for experiment in experiments if experiment.layer == layer.name]
        shares = [(HOLDOUT, layer.holdout), *((member.name, member.share) for member in members)]
        for index, member in enumerate(members, 1):
            found[member.name] = Membership(f"{layer.salt or layer.name}\0layer", shares, index, layer.name)
    return found
