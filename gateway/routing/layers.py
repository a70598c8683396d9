"""The units of an experiment: all, a share of them, or its part of a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from gateway.config.experiment_specs import ExperimentSpec, LayerSpec
from gateway.routing.layout import NUM_POSITIONS, IntervalLayout, Span


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
class LayerPart:
    """One part of the units, for explanations."""

    name: str
    share: float
    spans: tuple[Span, ...]


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

    def parts(self) -> tuple[LayerPart, ...]:
        """All parts with their spans."""
        return tuple(
            LayerPart(name, share, tuple(spans))
            for (name, share), spans in zip(self._parts, self._layout.spans, strict=True)
        )


HOLDOUT = "holdout"


def memberships(experiments: Sequence[ExperimentSpec], layers: Sequence[LayerSpec]) -> dict[str, Membership]:
    """The memberships of experiments that do not have all units, by name."""
    memberships_by_name: dict[str, Membership] = {}
    for experiment in experiments:
        if experiment.layer is None and experiment.share < 1:
            # Its own salt, so that membership is independent of the arm.
            salt = f"{experiment.salt or experiment.name}\0share"
            memberships_by_name[experiment.name] = Membership(salt, [(experiment.name, experiment.share)], 0)
    for layer in layers:
        members = [experiment for experiment in experiments if experiment.layer == layer.name]
        shares = [(HOLDOUT, layer.holdout), *((member.name, member.share) for member in members)]
        for index, member in enumerate(members, 1):
            memberships_by_name[member.name] = Membership(
                f"{layer.salt or layer.name}\0layer", shares, index, layer.name
            )
    return memberships_by_name
