"""Assign a unit to an arm of an experiment: the same unit has the same arm on each machine, and weights move few units.

Weighted rendezvous: each arm draws a position u in (0, 1) for the unit, a salted hash, and scores weight / -ln(u); the
highest score has the unit. So an arm wins with a probability of its weight / the sum of weights (an exponential race),
and a change of one arm changes that arm's score alone: a unit moves only to an arm that grew or came, or from one that
shrank or went.
Source: Schindelhauer and Schomaker, "Weighted Distributed Hash Tables", 2005, the logarithmic method.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from math import log

from gateway.config.experiment_specs import ExperimentSpec

# 52 bits and a half: exact as a float, and never 0 or 1, whose logarithms would not do.
_POSITIONS = 1 << 52


@dataclass(frozen=True, slots=True)
class Draw:
    """One arm's part in the race for a unit."""

    arm: str
    weight: float
    share: float  # of the sum of weights
    position: float  # the unit's hash for this arm, in (0, 1)
    score: float  # weight / -ln(position)


class Split:
    """An experiment, ready to assign units; arms are known by their index in the spec."""

    __slots__ = ("_racers", "_total", "spec")

    def __init__(self, spec: ExperimentSpec) -> None:
        salt = spec.salt or spec.name
        self.spec = spec
        # Arms of weight zero do not race. Each hasher has salt and arm in it already: a unit is added to a copy.
        self._racers = tuple(
            (index, arm.weight, blake2b(f"{salt}\0{arm.name}\0".encode(), digest_size=8))
            for index, arm in enumerate(spec.arms)
            if arm.weight > 0
        )
        self._total = sum(arm.weight for arm in spec.arms)

    def assign(self, unit: str) -> int:
        """The arm that has the unit."""
        if len(self._racers) == 1:
            return self._racers[0][0]
        best, best_score = 0, -1.0
        text = _encode(unit)
        for index, weight, hasher in self._racers:
            copy = hasher.copy()
            copy.update(text)
            score = -weight / log(_position(copy.digest()))
            if score > best_score:
                best, best_score = index, score
        return best

    def assign_by_chance(self, chance: float) -> int:
        """The arm for a request without a unit; `chance` is uniform in [0, 1)."""
        mark = chance * self._total
        for index, weight, _ in self._racers:
            mark -= weight
            if mark < 0:
                return index
        return self._racers[-1][0]  # rounding may leave a crumb above the last weight

    def draws(self, unit: str) -> tuple[Draw, ...]:
        """The whole race for a unit, in the order of the arms: what `assign` decides by."""
        positions = {index: _position(_digest(hasher, unit)) for index, _, hasher in self._racers}
        draws = []
        for index, arm in enumerate(self.spec.arms):
            position = positions.get(index, 0.0)
            score = -arm.weight / log(position) if position else 0.0
            draws.append(Draw(arm.name, arm.weight, arm.weight / self._total, position, score))
        return tuple(draws)

    def __repr__(self) -> str:
        arms = ", ".join(f"{arm.name} {arm.weight / self._total:.1%}" for arm in self.spec.arms)
        return f"<Split {self.spec.name}: {arms}>"


def _digest(hasher: blake2b, unit: str) -> bytes:
    copy = hasher.copy()
    copy.update(_encode(unit))
    return copy.digest()


def _encode(unit: str) -> bytes:
    return unit.encode(errors="surrogatepass")


def _position(digest: bytes) -> float:
    return ((int.from_bytes(digest, "big") >> 12) + 0.5) / _POSITIONS
