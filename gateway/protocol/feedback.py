"""Feedback: what a client says of an answer that it has got, `POST /feedback`."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from math import isfinite
from typing import Any

import orjson

from gateway.protocol.errors import ErrorKind, GatewayError, bad_request
from gateway.protocol.sequence import bounded

# What is larger is no feedback.
MAX_BYTES = 16 * 1024

_KEYS = ("request_id", "session", "experiment", "name", "value", "label")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_LABEL_LENGTH = 100
_MAX_ID_LENGTH = 128
# Squares of values are summed: a sum of larger ones would lose the others.
_MAX_VALUE = 1e9


@dataclass(frozen=True, slots=True)
class Rating:
    """How good an answer was: a value, a label or both, under a name. `request_id` or `session` says whose;
    `experiment` is needed where a session is in several. `tenant` is that of the rater, None where the rules have no
    `auth:`."""

    request_id: str | None = None
    session: str | None = None
    experiment: str | None = None
    name: str = "rating"
    value: float | None = None
    label: str | None = None
    tenant: str | None = None


def rater_of(tenant: str | None) -> bytes:
    """What stands before the ids of a tenant's requests, so that no other one rates them."""
    return b"" if tenant is None else hashlib.blake2b(tenant.encode(errors="surrogatepass"), digest_size=16).digest()


def read_rating(body: bytes, tenant: str | None = None) -> Rating:
    """Raises: GatewayError(BAD_REQUEST, BODY_TOO_LARGE) that says what is wrong."""
    if len(body) > MAX_BYTES:
        raise GatewayError(ErrorKind.BODY_TOO_LARGE, f"feedback is longer than {MAX_BYTES} bytes")
    try:
        fields: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"feedback is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise bad_request(f"feedback is a JSON object with {', '.join(_KEYS)}")
    unknown = next((key for key in fields if key not in _KEYS), None)
    if unknown is not None:
        raise bad_request(f"feedback has no {unknown!r}; it has {', '.join(_KEYS)}")
    texts = {key: _text(fields, key) for key in _KEYS if key != "value"}
    request_id, session, label = texts["request_id"], texts["session"], texts["label"]
    if (request_id is None) == (session is None):
        raise bad_request("feedback has a request_id (of the reply's x-request-id) or a session: one of the two")
    if request_id is not None and len(request_id) > _MAX_ID_LENGTH:
        raise bad_request(f"the request_id is longer than {_MAX_ID_LENGTH} characters")
    name = texts["name"] if texts["name"] is not None else "rating"
    if not _NAME.fullmatch(name):
        raise bad_request(
            f"name {name[:100]!r} is no name: letters, digits, '.', '_', '-', up to 64, a letter or digit first"
        )
    if label is not None and not (0 < len(label) <= _MAX_LABEL_LENGTH and label.isprintable()):
        raise bad_request(f"a label has 1 to {_MAX_LABEL_LENGTH} characters that can be printed")
    value = _value(fields.get("value"))
    if value is None and label is None:
        raise bad_request("feedback has neither a value nor a label")
    if session is not None:
        session = bounded(session)
    return Rating(request_id, session, texts["experiment"], name, value, label, tenant)


def _text(fields: dict[str, Any], key: str) -> str | None:
    text = fields.get(key)
    if text is None:
        return None
    if not isinstance(text, str):
        raise bad_request(f"{key} is no text")
    if not text:
        raise bad_request(f"{key} is empty")
    return text


def _value(fields: object) -> float | None:
    if fields is None:
        return None
    if isinstance(fields, bool):  # a thumb
        return float(fields)
    if not isinstance(fields, int | float) or not isfinite(fields) or abs(fields) > _MAX_VALUE:
        raise bad_request(f"value is a number from {-_MAX_VALUE:g} to {_MAX_VALUE:g}, or true or false")
    return float(fields)
