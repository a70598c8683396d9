"""Assigns units to the arms of an experiment: the same on every machine, and a change of weights moves few units.

A salted hash is the unit's position in [0, 1). Arms other than the control own intervals there (see `layout`), the
control has the rest: a growing arm takes units only from the control, and returns them to it.
Source for intervals instead of buckets: Kohavi, Tang and Xu, "Trustworthy Online Controlled Experiments", chapter 4.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from typing import NamedTuple
from zlib import crc32

from gateway.config.experiment_specs import ExperimentSpec, ForcingSpec
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.v2_facts import BodyFacts
from gateway.routing.layout import NUM_POSITIONS, REST, IntervalLayout, Membership, Positions, UnitSpans
from gateway.yaml.problems import suggest

# Stands between the token of an arm that an application was told, and the digest of the shares at that time.
_RESERVED = "?"


class Forced(NamedTuple):
    """An arm of an experiment."""

    experiment: str
    arm: str


@dataclass(frozen=True, slots=True)
class Forcing:
    """Requests that force an arm, authorised by a key."""

    spec: ForcingSpec
    experiments: Mapping[str, ExperimentSpec]

    @property
    def is_open(self) -> bool:
        """Whether any key is declared."""
        return bool(self.spec.keys)

    @property
    def reads_bodies(self) -> bool:
        """Whether a body's parameters may force an arm."""
        return self.is_open and self.spec.parameter is not None

    def of_body(self, body: BodyFacts) -> Forced | None:
        """The arm that a body's parameters force; None if they force none.

        Raises: GatewayError (FORBIDDEN, BAD_REQUEST), whose message does not have the key.
        """
        at, key_at = self.spec.parameter, self.spec.key_parameter
        text = body.parameters.get(at) if at is not None else None
        if at is None or text is None:
            return None
        return self._read(str(text), str(body.parameters.get(key_at, "")), at, key_at)

    def read(self, text: str, key: str) -> Forced:
        """The arm that a request's head forces: EXPERIMENT=ARM.

        Raises: GatewayError (FORBIDDEN, BAD_REQUEST), whose message does not have the key.
        """
        return self._read(text, key, self.spec.header, self.spec.key_header)

    def _read(self, text: str, key: str, at: str, key_at: str) -> Forced:
        """Parse the arm and check the key.

        Raises: GatewayError (FORBIDDEN, BAD_REQUEST), whose message does not have the key.
        """
        hashed = sha256(key.encode(errors="surrogatepass")).hexdigest()
        # All keys are compared, so that the time reveals nothing
        if not sum(compare_digest(hashed, hashed_key) for hashed_key in self.spec.keys):
            what = "is not one that may choose arms" if key else "is missing"
            raise GatewayError(ErrorKind.FORBIDDEN, f"an arm is asked for, and the key ({key_at}) {what}")
        name, separator, arm = text.partition("=")
        if not separator:
            raise GatewayError(ErrorKind.BAD_REQUEST, f"{at} {text!r} is not EXPERIMENT=ARM")
        experiment = self.experiments.get(name)
        if experiment is None:
            message = f"{at}: unknown experiment {name!r}{suggest(name, self.experiments)}"
            raise GatewayError(ErrorKind.BAD_REQUEST, message)
        arms = [each.name for each in experiment.arms]
        if arm not in arms:
            message = f"{at}: experiment {name!r} has no arm {arm!r}{suggest(arm, arms)}"
            raise GatewayError(ErrorKind.BAD_REQUEST, message)
        return Forced(name, arm)


class Split:
    """An experiment, compiled for assignment; arms are identified by their index in the spec.

    Its weights may change while it is in use; everything else is fixed by the rules.
    """

    __slots__ = (
        "_arms",
        "_layout",
        "_only",
        "_positions",
        "_reservation",
        "arm_tokens",
        "control",
        "membership",
        "shares",
        "spec",
    )

    def __init__(self, spec: ExperimentSpec, membership: Membership | None = None) -> None:
        """`membership`: the units of the experiment; None: all."""
        self.spec = spec
        self.membership = membership
        self._positions = Positions(spec.salt or spec.name)
        names = [arm.name for arm in spec.arms]
        self.control = names.index(spec.control_arm.name)
        # By the layout's index; the rest is last, at index -1
        self._arms = [index for index in range(len(names)) if index != self.control] + [self.control]
        self.shares: dict[str, float] = {}
        self.arm_tokens: dict[str, str] = {}  # by arm: the value stored for a session of that arm
        self.weigh(None)

    def weigh(self, weights: Mapping[str, float] | None, run: int = 0) -> None:
        """Set the weights of the arms, relative to each other; None: those of the rules.

        Weights of other arms, or with a sum of zero, are ignored in favour of the rules'. Sticky arms count only within
        their `run`, except the control: a ramp that restarts at 1 % must not get the sessions of the run before.
        """
        declared = {arm.name: arm.weight for arm in self.spec.arms}
        if weights is None or weights.keys() != declared.keys() or not sum(weights.values()) > 0:
            weights = declared
        total = sum(weights.values())
        self.shares = {name: weights[name] / total for name in declared}
        self.arm_tokens = {name: arm_token(name, run) for name in declared}
        self.arm_tokens[self.spec.control_arm.name] = self.spec.control_arm.name
        others = [self.spec.arms[index].name for index in self._arms[:-1]]
        self._layout = IntervalLayout([self.shares[name] for name in others])
        served = [index for index, share in enumerate(self.shares.values()) if share > 0]
        self._only = served[0] if len(served) == 1 else None
        self._reservation = f"{_RESERVED}{crc32(repr(sorted(self.shares.items())).encode()):08x}"

    @property
    def is_split(self) -> bool:
        """Whether more than one arm gets units."""
        return self._only is None

    def assign(self, unit: str) -> int | None:
        """The arm of the unit; None if the unit is not in the experiment."""
        return self.assign_encoded(encoded(unit))

    def assign_encoded(self, text: bytes) -> int | None:
        """The same for an encoded unit."""
        if self.membership is not None and not self.membership.has(text):
            return None
        if self._only is not None:
            return self._only
        # `Positions.of` and `IntervalLayout.owner`, inlined for the hot path
        copy = self._positions.hasher.copy()
        copy.update(text)
        layout = self._layout
        return self._arms[layout.owners[bisect_right(layout.starts, int.from_bytes(copy.digest(), "big")) - 1]]

    def assign_by_chance(self, chance: Callable[[], float]) -> int | None:
        """The arm for a request without a unit; `chance` returns uniform numbers in [0, 1)."""
        if self.membership is not None and not self.membership.has_by_chance(chance):
            return None
        return self._arms[self._layout.owner(int(chance() * NUM_POSITIONS))]

    def sticky_arm(self, token: str | None) -> str | None:
        """The arm that a session keeps, from its stored token; None if the token is no longer valid."""
        if token is None:
            return None
        arm = arm_of_token(token)
        return arm if self.arm_tokens.get(arm) == settled_token(token) and self.shares[arm] else None

    def reserved_token(self, arm: str) -> str:
        """The value stored for a session whose arm an application was told before its first request."""
        return self.arm_tokens[arm] + self._reservation

    def is_reserved_now(self, token: str) -> bool:
        """Whether an application was told this while the shares were as they are: only then the session's first request
        is an exposure under these shares."""
        return token.endswith(self._reservation)

    def position(self, unit: str) -> float:
        """The unit's position in [0, 1)."""
        return self._positions.of(encoded(unit)) / NUM_POSITIONS

    def arm_spans(self) -> tuple[UnitSpans, ...]:
        """All arms' intervals, in the order of the arms."""
        spans = {index: tuple(spans) for index, spans in zip(self._arms, self._layout.spans, strict=False)}
        spans[self.control] = self._layout.rest()
        return tuple(
            UnitSpans(arm.name, self.shares[arm.name], spans[index]) for index, arm in enumerate(self.spec.arms)
        )


def arm_token(arm: str, run: int) -> str:
    """The value stored for a session of this arm; run 0: the rules' weights. Names contain neither `#` nor `?`."""
    return f"{arm}#{run}" if run else arm


def settled_token(token: str) -> str:
    """The value stored from a session's first request on; `token` may be an application's."""
    return token.partition(_RESERVED)[0]


def arm_of_token(token: str) -> str:
    """The arm of a stored value."""
    return settled_token(token).partition("#")[0]


def encoded(unit: str) -> bytes:
    """The bytes of a unit that are hashed."""
    return unit.encode(errors="surrogatepass")


assert REST == -1  # what `_arms` ends with
