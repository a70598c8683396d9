"""Arms that a client forces."""

from __future__ import annotations

import re
from hashlib import sha256

import pytest

from gateway.config.experiment_specs import ForcingSpec
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.routing.assignment import Forced, Forcing
from gateway.routing.decision import Decision, Facts
from tests.routing.tables import by, split, table, to

KEYS = tuple(sha256(key.encode()).hexdigest() for key in ("swordfish", "clef à molette"))
FORCING = Forcing(ForcingSpec(keys=KEYS), {"x": split("x", cpu=90, gpu=10)})


@pytest.mark.parametrize("key", ["swordfish", "clef à molette"])
def test_a_key_opens_every_arm(key: str) -> None:
    """Each of the keys is accepted."""
    assert FORCING.read("x=gpu", key) == Forced("x", "gpu")


REFUSED = [
    ("x=gpu", "swordfisch", ErrorKind.FORBIDDEN, "is not one that may choose arms"),
    ("x=gpu", "", ErrorKind.FORBIDDEN, "an arm is asked for, and the key (x-pointsman-force-key) is missing"),
    ("x=gpu", KEYS[0], ErrorKind.FORBIDDEN, "is not one that may choose arms"),
    ("x", "swordfish", ErrorKind.BAD_REQUEST, "x-pointsman-force 'x' is not EXPERIMENT=ARM"),
    ("y=gpu", "swordfish", ErrorKind.BAD_REQUEST, "unknown experiment 'y'"),
    ("x=gpux", "swordfish", ErrorKind.BAD_REQUEST, "experiment 'x' has no arm 'gpux': did you mean 'gpu'?"),
]


@pytest.mark.parametrize("text, key, kind, message", REFUSED)
def test_what_is_wrong_is_told_without_the_key(text: str, key: str, kind: ErrorKind, message: str) -> None:
    """The key is checked first, so a client without one cannot probe names; the error does not show the key."""
    with pytest.raises(GatewayError, match=re.escape(message)) as caught:
        FORCING.read(text, key)
    assert caught.value.kind is kind
    assert not key or key not in caught.value.message


def test_a_forced_arm_is_taken_whatever_its_weight_is() -> None:
    """A forced arm has its own target, which is not measured and keeps no session; other routes ignore the header."""
    one = table(by("x"), experiments=(split("x", cpu=100, gpu=0),), forcing=ForcingSpec(keys=KEYS))
    decision = one.decide(Facts("m", headers={"x-session-id": "s"}, forced=Forced("x", "gpu")), lambda: 0.0)
    assert isinstance(decision, Decision)
    target = decision.target
    assert (target.engine, target.arm, target.is_forced, target.is_measured, target.sticky_arm) == (
        *("gpu", "gpu", True),
        *(False, False),
    )
    elsewhere = table(to("cpu"), forcing=ForcingSpec(keys=KEYS))
    assert isinstance(elsewhere.decide(Facts("m", forced=Forced("x", "gpu")), lambda: 0.0), Decision)


def test_without_keys_there_are_no_such_targets() -> None:
    """Without keys there are no forced targets."""
    one = table(by("x"), experiments=(split("x", cpu=100, gpu=0),))
    assert not one.forcing.is_open
    assert [target.is_forced for target in one.targets] == [False, False]
