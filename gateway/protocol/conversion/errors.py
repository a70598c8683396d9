"""How a conversion says no: what is below says what is wrong (ValueError), the border says whose fault it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.protocol.errors import ErrorKind, GatewayError


@contextmanager
def refusing(kind: ErrorKind) -> Iterator[None]:
    """What is malformed in here is an error of this kind: BAD_REQUEST of a client, UPSTREAM_PROTOCOL of an engine."""
    try:
        yield
    except UnicodeError:
        raise GatewayError(kind, "a name, an id or a parameter is not UTF-8, as gRPC has it") from None
    except ValueError as error:
        raise GatewayError(kind, _printable(str(error))) from error


@contextmanager
def about(subject: str) -> Iterator[None]:
    """What is malformed in here is said of `subject`: "input 'x'", say."""
    try:
        yield
    except UnicodeError:
        raise
    except ValueError as error:
        raise ValueError(f"{subject}: {error}") from error


def unsupported(message: str) -> GatewayError:
    return GatewayError(ErrorKind.UNSUPPORTED, _printable(message))


def _printable(message: str) -> str:
    """A message that quotes what is not UTF-8 must still be sent as UTF-8."""
    return message.encode("utf-8", "replace").decode()
