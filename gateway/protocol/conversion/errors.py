"""How a conversion says no: what is below says what is wrong (ValueError), the border says whose fault it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import orjson

from gateway.protocol.errors import ErrorKind, GatewayError

_EVENT = b"data:"


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


def error_json(text: str) -> bytes:
    """The JSON object of an error, as all of Triton's REST replies have it."""
    return orjson.dumps({"error": _printable(text)})


def read_error(body: bytes) -> tuple[str, str]:
    """The message and the code of an engine's error body, whatever its API: OpenAI's and Anthropic's objects, V2's
    and TF Serving's text, FastAPI's `detail`; also as the one event of a stream that failed at once."""
    body = body.strip()
    if body.startswith(_EVENT):
        body = body.removeprefix(_EVENT).strip()
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode("utf-8", "replace").strip()[:2000], ""
    found = parsed["error"] if isinstance(parsed, dict) and parsed.get("error") is not None else parsed
    if isinstance(found, dict):
        message = found.get("message") or found.get("detail") or found.get("error")
        if message is not None:
            code = found.get("code") or found.get("type") or ""
            return message if isinstance(message, str) else orjson.dumps(message).decode(), str(code)
    return found if isinstance(found, str) else orjson.dumps(found).decode()[:2000], ""
