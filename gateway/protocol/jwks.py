"""JSON Web Key Sets: the public keys of an issuer (RFC 7517). PyJWT is loaded where rules need it."""

from __future__ import annotations

import json
from collections.abc import Collection
from importlib import import_module
from typing import Any


def pyjwt() -> Any:
    """PyJWT, which is an extra. Raises: ImportError."""
    return import_module("jwt")


def read_key_set(text: str, algorithms: Collection[str]) -> dict[str | None, Any]:
    """The keys of a set for these algorithms, by their ids.

    Raises: ValueError where there is none.
    """
    jwt = pyjwt()
    try:
        listed = jwt.PyJWKSet.from_dict(json.loads(text)).keys
    except (ValueError, AttributeError, TypeError, RecursionError, jwt.PyJWTError) as error:
        raise ValueError(f"it is no JSON Web Key Set: {error}") from error
    usable = [key for key in listed if key.algorithm_name in algorithms and key.public_key_use in (None, "sig")]
    if not usable:
        raise ValueError(f"it has no key for {', '.join(algorithms)}")
    return {key.key_id: key for key in usable}
