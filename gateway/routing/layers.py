"""Which units an experiment has: all, a share of them, or its part of a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from gateway.config.experiment_specs import ExperimentSpec, LayerSpec
from gateway.routing.layout import WHOLE, IntervalLayout, Span


class Positions:
    """A salted hash of units: the same position on each machine."""

    __slots__ = ("hasher",)

    def __init__(self, salt: str) -> None:
        # The salt is in it already: a unit is added to a copy.
        self.hasher = blake2b(f"{salt}\0".encode(), digest_size=8)

    def of(self, unit: bytes) -> int:
        copy = self.hasher.copy()
        copy.update(unit)
        return int.from_bytes(copy.digest(), "big")


@dataclass(frozen=True, slots=True)
class LayerPart:
    """One part of what units are split into, for who wants to know why."""

    name: str
    share: float
    spans: tuple[Span, ...]


class Membership:
    """The part of units that one experiment has."""

    __slots__ = ("_index", "_layout", "_parts", "_positions", "layer")

    def __init__(self, salt: str, shares: Sequence[tuple[str, float]], index: int, layer: str | None = None) -> None:
        """`shares` are those of all that stand in the same layout, with their names; the experiment is one of them."""
        self.layer = layer
        self._positions = Positions(salt)
        self._layout = IntervalLayout([share for _, share in shares])
        self._parts = tuple(shares)
        self._index = index

    def __repr__(self) -> str:
        return f"<Membership {self._parts[self._index][0]} of {self.layer or 'all units'}>"

    def has(self, unit: bytes) -> bool:
        return self._layout.owner(self._positions.of(unit)) == self._index

    def has_by_chance(self, chance: Callable[[], float]) -> bool:
        """Whether a request without a unit is in it."""
        return self._layout.owner(int(chance() * WHOLE)) == self._index

    def position(self, unit: bytes) -> float:
        return self._positions.of(unit) / WHOLE

    def parts(self) -> tuple[LayerPart, ...]:
        """Who has which units."""
        return tuple(
            LayerPart(name, share, tuple(spans))
            for (name, share), spans in zip(self._parts, self._layout.spans, strict=True)
        )


HOLDOUT = "holdout"


def memberships(experiments: Sequence[ExperimentSpec], layers: Sequence[LayerSpec]) -> dict[str, Membership]:
    """Of each experiment that has not all units, which ones it has."""
    found: dict[str, Membership] = {}
    for experiment in experiments:
        if experiment.layer is None and experiment.share < 1:
            # A position of its own: who is in it says nothing of which arm he gets.
            salt = f"{experiment.salt or experiment.name}\0share"
            found[experiment.name] = Membership(salt, [(experiment.name, experiment.share)], 0)
    for layer in layers:
        members = [experiment for experiment in experiments if experiment.layer == layer.name]
        shares = [(HOLDOUT, layer.holdout), *((member.name, member.share) for member in members)]
        for index, member in enumerate(members, 1):
            found[member.name] = Membership(f"{layer.salt or layer.name}\0layer", shares, index, layer.name)
    return found
