"""Pins of sessions: what their clients show is worth something for one session, one experiment, one arm and a time."""

from __future__ import annotations

import pytest

from gateway.sessions.client_pin import MAX_PINS, ClientPin, Pinned, PinSeal, pin_key, pins_in

SEAL = PinSeal(pin_key(b"the installation's secret, of 32 bytes or more"))
NOW = 1_700_000_000.0
LIFE = 3600.0
TOKENS = ("old", "new#3")


def sent(pin: ClientPin) -> bytes:
    return pin.field[1]


def test_a_pin_proves_what_a_session_keeps() -> None:
    """What a gateway writes another with the same secret reads, as a cookie and as a field, until it is too old."""
    pin = SEAL.write("x", "acme\1alice", "new#3", NOW, LIFE)
    other = PinSeal(pin_key(b"the installation's secret, of 32 bytes or more"))
    name, value = pin.cookie
    cookie = value.partition(b";")[0]
    for field in (pin.field, (b"cookie", b"theme=dark; " + cookie)):
        assert other.read(pins_in([field]), "x", "acme\1alice", TOKENS, NOW + LIFE, LIFE) == Pinned("new#3", int(NOW))
        assert other.read(pins_in([field]), "x", "acme\1alice", TOKENS, NOW + LIFE + 1, LIFE) is None
    assert name == b"set-cookie"
    assert value.endswith(b"; Max-Age=3600; Path=/; HttpOnly; SameSite=Lax")
    secure = PinSeal(pin_key(b"secret"), is_secure=True).write("x", "s", "old", NOW, LIFE)
    assert secure.cookie[1].endswith(b"; SameSite=Lax; Secure")
    assert b"alice" not in value and b"new" not in value and b"acme" not in value


@pytest.mark.parametrize(
    "experiment, session, tokens, seal",
    [
        ("y", "acme\1alice", TOKENS, SEAL),
        ("x", "acme\1bob", TOKENS, SEAL),
        ("x", "globex\1alice", TOKENS, SEAL),
        ("x", "alice", TOKENS, SEAL),
        ("x", "acme\1alice", ("old", "new#4"), SEAL),  # of another run
        ("x", "acme\1alice", TOKENS, PinSeal(pin_key(b"another installation's secret of 32 bytes"))),
    ],
    ids=["experiment", "session", "tenant", "no tenant", "run", "secret"],
)
def test_a_pin_is_worth_nothing_elsewhere(
    experiment: str, session: str, tokens: tuple[str, ...], seal: PinSeal
) -> None:
    """A pin is bound to experiment, session, tenant, run and installation."""
    pin = SEAL.write("x", "acme\1alice", "new#3", NOW, LIFE)
    relabelled = seal.label(experiment).encode() + sent(pin)[12:]
    for shown in (sent(pin), relabelled):
        assert seal.read([shown], experiment, session, tokens, NOW, LIFE) is None


def test_forged_pins_are_worth_nothing() -> None:
    """Whatever is changed in a pin, and whatever else a client sends, is not read; nothing raises."""
    good = sent(SEAL.write("x", "s", "old", NOW, LIFE))
    label, issued, mac = good.split(b".")
    later = b"%x" % int(NOW + 10)
    forged = [
        *(good[:at] + (b"0" if good[at : at + 1] != b"0" else b"1") + good[at + 1 :] for at in range(len(good))),
        b".".join((label, later, mac)),
        b".".join((label, b"0" + issued, mac)),
        b".".join((label, b"+" + issued, mac)),
        b".".join((label, issued, mac[:-1])),
        b".".join((label, issued, mac + b"0")),
        b".".join((label, issued, mac.upper())) if mac.upper() != mac else b"",
        b".".join((label, issued, b"\xff" * 32)),
        b".".join((label, b"\xff", mac)),
        label,
        label + b".",
        label + b"..",
        b"",
        good * 2,
    ]
    for pin in forged:
        assert SEAL.read([pin], "x", "s", TOKENS, NOW, LIFE) is None, pin
    ahead = sent(SEAL.write("x", "s", "old", NOW + 3600, LIFE))
    assert SEAL.read([ahead], "x", "s", TOKENS, NOW, LIFE) is None
    assert SEAL.read([forged[-4], good], "x", "s", TOKENS, NOW, LIFE) == Pinned("old", int(NOW))


def test_few_pins_of_a_request_are_read() -> None:
    """A client cannot have the gateway check thousands of pins."""
    pin = sent(SEAL.write("x", "s", "old", NOW, LIFE))
    many = b"; ".join(b"pointsman-pin-%d=1.2" % number for number in range(5000))
    assert len(pins_in([(b"cookie", many)])) == MAX_PINS
    assert len(pins_in([(b"x-pointsman-pin", b",".join([pin] * 5000))])) == MAX_PINS
    assert pins_in([(b"accept", b"*/*"), (b"cookie", b"a=b")]) == []
