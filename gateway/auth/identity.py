"""What authentication says of a request."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.principal import Principal

_CHALLENGE = b"www-authenticate"
_REALM = b'Bearer realm="pointsman"'


class UnverifiedError(GatewayError):
    """A credential that takes time to verify: `verify` calls its argument once it is known what the credential is. The
    caller is refused until then."""

    def __init__(self, verify: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(ErrorKind.UNAUTHENTICATED, "the token is not verified", _challenge("invalid_token"))
        self.verify = verify


class Identity:
    """A principal, or none of an anonymous request, or the error of one that is refused. It holds until `expires_at`,
    in seconds since 1970; `mark` is that of the principal."""

    __slots__ = ("error", "expires_at", "mark", "principal")

    def __init__(
        self, principal: Principal | None = None, *, error: GatewayError | None = None, expires_at: float = inf
    ) -> None:
        self.principal = principal
        self.error = error
        self.expires_at = expires_at
        self.mark = principal.mark if principal is not None else b""


def _challenge(code: str) -> tuple[tuple[bytes, bytes], ...]:
    return ((_CHALLENGE, _REALM + (b', error="%b"' % code.encode() if code else b"")),)


def unauthenticated(message: str, code: str = "") -> GatewayError:
    """The error of a request whose caller is not known; `code` is a word of RFC 6750, section 3.1."""
    return GatewayError(ErrorKind.UNAUTHENTICATED, message, _challenge(code))


def invalid(message: str) -> Identity:
    """That of a credential that is refused."""
    return Identity(error=unauthenticated(message, "invalid_token"))


EXPIRED = unauthenticated("the credential has expired", "invalid_token")
