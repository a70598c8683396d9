"""JSON web tokens: verified in threads, remembered until they expire.

Source: RFC 7519; RFC 8725, "JSON Web Token Best Current Practices", sections 3.1 (algorithms), 3.8 (issuer) and 3.9
(audience).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from time import time

from gateway.auth.identity import EXPIRED, Identity, UnverifiedError, invalid
from gateway.auth.key_sets import KeySet, KeySetError
from gateway.config.auth_specs import JwtSpec
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.jwks import pyjwt
from gateway.protocol.principal import Principal

_log = logging.getLogger(__name__)

# Bounds: of a token, of tokens that are remembered and their bytes, and of those that are being verified.
_MAX_TOKEN_BYTES = 8192
_MAX_RESULTS = 10_000
_MAX_RESULT_BYTES = 16 << 20
_MAX_WAITING = 1000
_MAX_TEXT = 256
# How long a refusal is remembered: a token may be valid once its issuer has published a key.
_REFUSED_SECONDS = 5.0

_TOO_LONG = invalid(f"the token is longer than {_MAX_TOKEN_BYTES} bytes")
_BUSY = GatewayError(ErrorKind.OVERLOADED, "too many tokens wait to be verified")

Done = Callable[[], None]


class TokenVerifier:
    """Verifies tokens of some issuers; `claims` are the names of claims that rules read."""

    def __init__(self, specs: Iterable[JwtSpec], claims: Collection[str]) -> None:
        self.specs = tuple(specs)
        self.claims = frozenset(claims)
        self._key_sets = {spec.issuer: KeySet(spec) for spec in self.specs}
        self._results: dict[bytes, Identity] = {}
        self._num_result_bytes = 0
        self._waiting: dict[bytes, list[Done]] = {}
        self._threads = ThreadPoolExecutor(4, "tokens")

    def identify(self, token: bytes) -> Identity:
        """Whose token it is. One that was not seen before is not verified yet: its error is an `UnverifiedError`."""
        if len(token) > _MAX_TOKEN_BYTES:
            return _TOO_LONG
        found = self._results.get(token)
        if found is not None and found.expires_at > time():
            return found
        return Identity(error=UnverifiedError(lambda done: self._verify_soon(token, done)), expires_at=0.0)

    def _verify_soon(self, token: bytes, done: Done) -> None:
        """Call `done` once `identify` knows the token."""
        waiting = self._waiting.get(token)
        if waiting is not None and len(waiting) < _MAX_WAITING:
            waiting.append(done)
            return
        loop = asyncio.get_running_loop()
        if waiting is not None or len(self._waiting) >= _MAX_WAITING:
            self._store(token, Identity(error=_BUSY, expires_at=time() + 1.0))
            loop.call_soon(done)
            return
        self._waiting[token] = [done]
        verified = loop.run_in_executor(self._threads, self._verify, token)
        verified.add_done_callback(lambda future: self._verified(token, future))

    def _verified(self, token: bytes, future: asyncio.Future[Identity]) -> None:
        if not future.cancelled():
            self._store(token, future.result())
        for done in self._waiting.pop(token):
            done()

    def _store(self, token: bytes, identity: Identity) -> None:
        if len(self._results) >= _MAX_RESULTS or self._num_result_bytes + len(token) > _MAX_RESULT_BYTES:
            self._results.clear()
            self._num_result_bytes = 0
        self._results[token] = identity
        self._num_result_bytes += len(token)

    # In a thread

    def _verify(self, token: bytes) -> Identity:
        try:
            return self._verified_now(token.decode("ascii"))
        except KeySetError as error:
            _log.warning("%s", error)
            failure = GatewayError(ErrorKind.NO_HEALTHY_ENDPOINT, "the keys of the token's issuer cannot be read")
            return Identity(error=failure, expires_at=time() + _REFUSED_SECONDS)
        except Exception as error:  # of a library that reads what anybody sends
            if not isinstance(error, ValueError | pyjwt().PyJWTError):
                _log.exception("a token cannot be verified")
            return _refused("the token is not valid", error)

    def _verified_now(self, token: str) -> Identity:
        """Raises: jwt.PyJWTError, ValueError, KeySetError."""
        jwt = pyjwt()
        header = jwt.get_unverified_header(token)
        claimed = jwt.decode(token, options={"verify_signature": False})
        issuer = claimed.get("iss")
        key_set = self._key_sets.get(issuer) if isinstance(issuer, str) else None
        if key_set is None:
            return _refused("the token is of an issuer that the rules do not name")
        spec = key_set.spec
        if header.get("alg") not in spec.algorithms:
            return _refused("the token is signed by an algorithm that the rules do not name")
        key = key_set.find(header.get("kid"))
        if key is None:
            return _refused("the token is signed by a key that its issuer does not publish")
        claims = jwt.decode(
            token,
            key,
            algorithms=list(spec.algorithms),
            audience=list(spec.audience),
            issuer=spec.issuer,
            leeway=spec.leeway,
            options={"require": ["exp", "iss", "aud"]},
        )
        tenant = _text(claims.get(spec.tenant))
        if not tenant:
            return _refused(f"the token has no claim {spec.tenant!r}")
        read = {name: _texts(claims[name]) for name in self.claims if name in claims}
        subject = _text(claims.get("sub"))
        principal = Principal(tenant, f"sub:{subject}" if subject else "", read)
        return Identity(principal, expires_at=float(claims["exp"]) + spec.leeway)


def _refused(message: str, error: Exception | None = None) -> Identity:
    if error is not None and type(error).__name__ == "ExpiredSignatureError":
        return Identity(error=EXPIRED, expires_at=time() + _REFUSED_SECONDS)
    identity = invalid(message)
    identity.expires_at = time() + _REFUSED_SECONDS
    return identity


def _text(value: object) -> str:
    """A claim as rules compare it; empty where it is none that could stand in a header."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value) if isinstance(value, str | int | float) else ""
    is_plain = text.isprintable() and text == text.strip()  # readers of header fields take no blanks around them
    return text if is_plain and len(text) <= _MAX_TEXT else ""


def _texts(value: object) -> tuple[str, ...]:
    found = [_text(each) for each in (value if isinstance(value, list) else [value])]
    return tuple(text for text in found if text)
