"""The pin that a client keeps: proof of the arm that its session has, so that the session keeps it where Redis is slow.

It names neither the arm nor the session: it is an HMAC over the experiment, the session with its tenant, the arm and
the time, and whoever checks it tries the few arms that there are. A client can neither write one nor use that of
another session; one that it hides or sends late is worth nothing, because Redis decides where it answers.

    set-cookie: pointsman-pin-LABEL=TIME.MAC; ...      over HTTP
    x-pointsman-pin: LABEL.TIME.MAC                    over HTTP, and in gRPC's metadata

Source of the form: Envoy's stateful session filters (cookie and header), which name the host in plain.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

PIN_FIELD = b"x-pointsman-pin"
PIN_COOKIE = b"pointsman-pin-"
# A client takes part in a few experiments; further pins of a request are not read. Of one experiment it has one, in
# a cookie or a header, or both: each that is checked costs microseconds.
MAX_PINS = 16
_MAX_CHECKED = 2
_LABEL_DIGITS = 12
_MAC_DIGITS = 32  # 128 bits
_MAX_TIME_DIGITS = 10  # hexadecimal, of seconds
_LENGTH = _LABEL_DIGITS + 1 + _MAX_TIME_DIGITS + 1 + _MAC_DIGITS
# Clocks of gateways may differ by this.
_SKEW_SECONDS = 60.0


def pin_key(secret: bytes) -> bytes:
    """The key of an installation's pins, by its secret."""
    return hmac.new(secret, b"pins of sessions", sha256).digest()


class Pinned(NamedTuple):
    """What a valid pin proves: what the session keeps of its arm, and when that was said (seconds since 1970)."""

    token: str
    issued: int


@dataclass(frozen=True, slots=True)
class ClientPin:
    """One pin, as it is sent: `label` stands for the experiment, `value` is the rest; `max_age` in seconds.
    `is_secure`: clients send it over TLS alone."""

    label: str
    value: str
    max_age: int
    is_secure: bool = False

    @property
    def field(self) -> tuple[bytes, bytes]:
        """The field that carries it over any protocol."""
        return PIN_FIELD, f"{self.label}.{self.value}".encode("ascii")

    @property
    def cookie(self) -> tuple[bytes, bytes]:
        """The field that sets it as a cookie (RFC 6265)."""
        name = PIN_COOKIE.decode("ascii") + self.label
        text = f"{name}={self.value}; Max-Age={self.max_age}; Path=/; HttpOnly; SameSite=Lax"
        if self.is_secure:
            text += "; Secure"
        return b"set-cookie", text.encode("ascii")


class PinSeal:
    """Writes and checks pins by a key that the gateways of an installation share (`pin_key`)."""

    def __init__(self, key: bytes, *, is_secure: bool = False) -> None:
        """`is_secure`: clients are told over TLS alone."""
        self._key = key
        self._is_secure = is_secure
        self._labels: dict[str, str] = {}  # by experiment

    def write(self, experiment: str, session: str, token: str, now: float, max_age: float) -> ClientPin:
        """The pin of a session that has an arm; `session` is its name, which has its tenant, `token` what it keeps."""
        issued = f"{int(now):x}"
        mac = self._mac(experiment, session, token, issued)
        return ClientPin(self.label(experiment), f"{issued}.{mac}", max(1, int(max_age)), self._is_secure)

    def read(
        self, pins: Sequence[bytes], experiment: str, session: str, tokens: Iterable[str], now: float, max_age: float
    ) -> Pinned | None:
        """What the first valid one of these pins says of this session: one of `tokens`; None where none is valid."""
        label = self.label(experiment).encode("ascii")
        of_experiment = [pin for pin in pins if len(pin) <= _LENGTH and pin.startswith(label + b".")]
        for pin in of_experiment[:_MAX_CHECKED]:
            issued, _, mac = pin[len(label) + 1 :].decode("latin-1").partition(".")
            try:
                seconds = int(issued, 16)
            except ValueError:
                continue
            if issued != f"{seconds:x}" or not -_SKEW_SECONDS <= now - seconds <= max_age:
                continue
            for token in tokens:
                if hmac.compare_digest(self._mac(experiment, session, token, issued).encode(), mac.encode("latin-1")):
                    return Pinned(token, seconds)
        return None

    def label(self, experiment: str) -> str:
        """What stands for an experiment's name, which not every client may see."""
        label = self._labels.get(experiment)
        if label is None:
            label = hmac.new(self._key, experiment.encode(), sha256).hexdigest()[:_LABEL_DIGITS]
            self._labels[experiment] = label
        return label

    def _mac(self, experiment: str, session: str, token: str, issued: str) -> str:
        # No part has a NUL: names of rules do not, and see `bounded` for sessions
        content = "\0".join((experiment, session, token, issued)).encode(errors="surrogatepass")
        return hmac.new(self._key, content, sha256).hexdigest()[:_MAC_DIGITS]


def is_pin_cookie(field: tuple[bytes, bytes]) -> bool:
    """Whether a reply's field sets a pin."""
    return field[0] == b"set-cookie" and field[1].startswith(PIN_COOKIE)


def pins_in(fields: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """The pins in these fields (names in lower case), of the header and of cookies: LABEL.TIME.MAC."""
    found: list[bytes] = []
    for name, value in fields:
        if name == PIN_FIELD:
            found += [pin.strip() for pin in value.split(b",", MAX_PINS)]
        elif name == b"cookie" and PIN_COOKIE in value:
            for pair in value.split(b";"):
                key, _, content = pair.strip().partition(b"=")
                if key.startswith(PIN_COOKIE):
                    found.append(key[len(PIN_COOKIE) :] + b"." + content.strip(b'"'))
        if len(found) >= MAX_PINS:
            break
    return found[:MAX_PINS]
