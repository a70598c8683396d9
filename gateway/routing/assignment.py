"""Assign a unit to an arm of an experiment: the same unit has the same arm on each machine, and weights move few units.

A salted hash is the unit's position in [0, 1). Arms other than the control own intervals there (see `layout`), and the
control has the rest: an arm that grows takes from the control alone, and what one gives up is the control's.
Source for intervals instead of buckets: Kohavi, Tang and Xu, "Trustworthy Online Controlled Experiments", chapter 4.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from typing import NamedTuple

from gateway.config.experiment_specs import ExperimentSpec, ForcingSpec
from gateway.protocol.body_facts import BodyFacts
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.routing.layers import Membership, Positions
from gateway.routing.layout import REST, WHOLE, IntervalLayout, Span
from gateway.yaml.problems import suggest


class Forced(NamedTuple):
    """An arm of an experiment."""

    experiment: str
    arm: str


@dataclass(frozen=True, slots=True)
class Forcing:
    """Who may choose arms, and which ones there are."""

    spec: ForcingSpec
    experiments: Mapping[str, ExperimentSpec]

    @property
    def is_open(self) -> bool:
        """Whether anybody may."""
        return bool(self.spec.keys)

    @property
    def asks_bodies(self) -> bool:
        """Whether a body may choose."""
        return self.is_open and self.spec.parameter is not None

    def of_body(self, body: BodyFacts) -> Forced | None:
        """The arm that a body's parameters ask for; None where they ask for none.

        Raises: GatewayError (FORBIDDEN, BAD_REQUEST), whose message does not have the key.
        """
        at, key_at = self.spec.parameter, self.spec.key_parameter
        said = body.parameters.get(at) if at is not None else None
        if at is None or said is None:
            return None
        return self._read(str(said), str(body.parameters.get(key_at, "")), at, key_at)

    def read(self, said: str, key: str) -> Forced:
        """The arm that a request's head asks for: EXPERIMENT=ARM.

        Raises: GatewayError (FORBIDDEN, BAD_REQUEST), whose message does not have the key.
        """
        return self._read(said, key, self.spec.header, self.spec.key_header)

    def _read(self, said: str, key: str, at: str, key_at: str) -> Forced:
        """What stands there, if its key is right.

        Raises: GatewayError (FORBIDDEN, BAD_REQUEST), whose message does not have the key.
        """
        hashed = sha256(key.encode(errors="surrogatepass")).hexdigest()
        # All are compared, so that the time tells nothing
        if not sum(compare_digest(hashed, known) for known in self.spec.keys):
            what = "is not one that may choose arms" if key else "is missing"
            raise GatewayError(ErrorKind.FORBIDDEN, f"an arm is asked for, and the key ({key_at}) {what}")
        name, separator, arm = said.partition("=")
        if not separator:
            raise GatewayError(ErrorKind.BAD_REQUEST, f"{at} {said!r} is not EXPERIMENT=ARM")
        experiment = self.experiments.get(name)
        if experiment is None:
            told = f"{at}: unknown experiment {name!r}{suggest(name, self.experiments)}"
            raise GatewayError(ErrorKind.BAD_REQUEST, told)
        arms = [each.name for each in experiment.arms]
        if arm not in arms:
            told = f"{at}: experiment {name!r} has no arm {arm!r}{suggest(arm, arms)}"
            raise GatewayError(ErrorKind.BAD_REQUEST, told)
        return Forced(name, arm)


@dataclass(frozen=True, slots=True)
class Stretch:
    """What one arm has of the positions."""

    arm: str
    share: float  # of the experiment's units
    spans: tuple[Span, ...]

    @property
    def intervals(self) -> tuple[tuple[float, float], ...]:
        """The same as numbers from 0 to 1."""
        return tuple((start / WHOLE, end / WHOLE) for start, end in self.spans)


class Split:
    """An experiment, ready to assign units; arms are known by their index in the spec.

    Its weights may change while it is in use; all else is as the rules have it.
    """

    __slots__ = ("_arms", "_control", "_layout", "_only", "_positions", "keepsakes", "membership", "shares", "spec")

    def __init__(self, spec: ExperimentSpec, membership: Membership | None = None) -> None:
        """`membership` tells which units it has; None: all."""
        self.spec = spec
        self.membership = membership
        self._positions = Positions(spec.salt or spec.name)
        names = [arm.name for arm in spec.arms]
        self._control = names.index(spec.control_arm.name)
        # By the layout's index; its rest comes last, where -1 finds it
        self._arms = [index for index in range(len(names)) if index != self._control] + [self._control]
        self.shares: dict[str, float] = {}
        self.keepsakes: dict[str, str] = {}  # by arm: what is written down of a session that gets it
        self.weigh(None)

    def weigh(self, weights: Mapping[str, float] | None, run: int = 0) -> None:
        """Share the units out by these weights of the arms, relative to each other; None: those of the rules.

        Weights of other arms than the experiment has, or that sum to zero, are not its own: the rules' hold then.
        What sessions keep of `run` counts in that alone, but for the control: a ramp that begins anew at 1 % must not
        find again whom the one before had led to its arm.
        """
        declared = {arm.name: arm.weight for arm in self.spec.arms}
        if weights is None or weights.keys() != declared.keys() or not sum(weights.values()) > 0:
            weights = declared
        total = sum(weights.values())
        self.shares = {name: weights[name] / total for name in declared}
        self.keepsakes = {name: keepsake(name, run) for name in declared}
        self.keepsakes[self.spec.control_arm.name] = self.spec.control_arm.name
        others = [self.spec.arms[index].name for index in self._arms[:-1]]
        self._layout = IntervalLayout([self.shares[name] for name in others])
        served = [index for index, share in enumerate(self.shares.values()) if share > 0]
        self._only = served[0] if len(served) == 1 else None

    def assign(self, unit: str) -> int | None:
        """The arm that has the unit; None where the experiment has not got it."""
        return self.assign_encoded(encoded(unit))

    def assign_encoded(self, text: bytes) -> int | None:
        """The same, of a unit as it is hashed."""
        if self.membership is not None and not self.membership.has(text):
            return None
        if self._only is not None:
            return self._only
        # What `Positions.of` and `IntervalLayout.owner` do, on the hot path
        copy = self._positions.hasher.copy()
        copy.update(text)
        layout = self._layout
        return self._arms[layout.owners[bisect_right(layout.starts, int.from_bytes(copy.digest(), "big")) - 1]]

    def assign_by_chance(self, chance: Callable[[], float]) -> int | None:
        """The arm for a request without a unit; `chance` gives numbers uniform in [0, 1)."""
        if self.membership is not None and not self.membership.has_by_chance(chance):
            return None
        return self._arms[self._layout.owner(int(chance() * WHOLE))]

    def kept(self, told: str | None) -> str | None:
        """The arm that a session keeps, by what was written down of it; None where that counts no more."""
        if told is None:
            return None
        arm = arm_kept(told)
        return arm if self.keepsakes.get(arm) == told and self.shares[arm] else None

    @property
    def control(self) -> int:
        """The index of the control arm."""
        return self._control

    def position(self, unit: str) -> float:
        """Where the unit stands, from 0 to 1."""
        return self._positions.of(encoded(unit)) / WHOLE

    def stretches(self) -> tuple[Stretch, ...]:
        """All arms' intervals, in the order of the arms: what `assign` decides by."""
        spans = {index: tuple(spans) for index, spans in zip(self._arms, self._layout.spans, strict=False)}
        spans[self._control] = self._layout.rest()
        return tuple(Stretch(arm.name, self.shares[arm.name], spans[index]) for index, arm in enumerate(self.spec.arms))

    def __repr__(self) -> str:
        arms = ", ".join(f"{name} {share:.1%}" for name, share in self.shares.items())
        return f"<Split {self.spec.name}: {arms}>"


def keepsake(arm: str, run: int) -> str:
    """What is written down of a session that has this arm; run 0: of the rules' weights. No name has a `#`."""
    return f"{arm}#{run}" if run else arm


def arm_kept(told: str) -> str:
    """The arm in that."""
    return told.partition("#")[0]


def encoded(unit: str) -> bytes:
    """A unit as it is hashed."""
    return unit.encode(errors="surrogatepass")


assert REST == -1  # what `_arms` ends with
