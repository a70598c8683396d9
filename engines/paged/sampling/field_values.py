"""Readers of a request's field values: each takes a field's name and its value, and returns the parsed value.

A number or a flag may be a text, as in parameters of V2 requests, which have no fractions.
Raises: EngineError that names the field, the value, and what is right.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from engines.core.errors import EngineError, invalid

Reader = Callable[[str, Any], Any]

_MAX_SHOWN = 60  # characters of a wrong value in its error
# Each is looked for at every token: a thousand of a thousand characters would cost more than the model.
MAX_TEXTS, MAX_TEXT_CHARS = 64, 1024
MAX_IDS = 100_000  # of a list or a map


def wrong(name: str, value: Any, right: str) -> EngineError:
    """`right` completes "it must be ...", as "a number of at least 0"."""
    try:
        shown = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        shown = repr(value)
    shown = shown if len(shown) <= _MAX_SHOWN else shown[:_MAX_SHOWN] + "..."
    return invalid(f"{name}: {shown} will not do; it must be {right}")


def number(low: float = -math.inf, high: float = math.inf, *, above: bool = False) -> Reader:
    """A finite number between bounds, both included; `above`: the lower one is not."""
    right = "a number" + _bounds(low, high, above)

    def read(name: str, value: Any) -> float:
        parsed = _numeric(value, float)
        if parsed is None or not math.isfinite(parsed) or not low <= parsed <= high or (above and parsed == low):
            raise wrong(name, value, right)
        return float(parsed)

    return read


def whole(low: int, high: int | None = None) -> Reader:
    """A whole number, also as a float without a fraction."""
    right = "a whole number" + _bounds(low, math.inf if high is None else high, False)

    def read(name: str, value: Any) -> int:
        parsed = _numeric(value, int)
        if parsed is None or parsed != math.floor(parsed) or parsed < low or (high is not None and parsed > high):
            raise wrong(name, value, right)
        return int(parsed)

    return read


def flag(name: str, value: Any) -> bool:
    if isinstance(value, str):
        value = {"true": True, "false": False, "1": True, "0": False}.get(value.strip().lower(), value)
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    raise wrong(name, value, "true or false")


def texts(name: str, value: Any) -> tuple[str, ...]:
    """One text or several, none of them empty."""
    parsed = [value] if isinstance(value, str) else value
    if not isinstance(parsed, list | tuple) or not all(isinstance(each, str) and each for each in parsed):
        raise wrong(name, value, "a text or a list of texts, none of them empty")
    if len(parsed) > MAX_TEXTS or any(len(each) > MAX_TEXT_CHARS for each in parsed):
        raise wrong(name, value, f"at most {MAX_TEXTS} texts of at most {MAX_TEXT_CHARS} characters each")
    return tuple(dict.fromkeys(parsed))


def ids(name: str, value: Any) -> tuple[int, ...]:
    """One token id or several."""
    parsed = value if isinstance(value, list | tuple) else [value]
    read = [_numeric(each, int) for each in parsed]
    if len(read) > MAX_IDS or any(each is None or each < 0 or each != math.floor(each) for each in read):
        raise wrong(name, value, "a token id or a list of them, whole numbers of at least 0")
    return tuple(dict.fromkeys(int(each) for each in read if each is not None))


def biases(name: str, value: Any) -> dict[int, float]:
    """Numbers by token id; JSON has the ids as texts."""
    right = "an object of token ids, each with a number between -100 and 100"
    if not isinstance(value, Mapping) or len(value) > MAX_IDS:
        raise wrong(name, value, right)
    parsed: dict[int, float] = {}
    for key, bias in value.items():
        token_id, amount = _numeric(key, int), _numeric(bias, float)
        if token_id is None or token_id < 0 or amount is None or not -100 <= amount <= 100:
            raise wrong(f"{name}[{key}]", bias, right)
        parsed[int(token_id)] = float(amount)
    return parsed


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise wrong(name, value, "a text")
    return value


def anything(name: str, value: Any) -> Any:
    return value


def one_of(*values: Any) -> Reader:
    """For another engine's field, accepted only where it has no effect."""
    choices = " or ".join(json.dumps(value) for value in values)

    def read(name: str, value: Any) -> Any:
        if value not in values:
            raise wrong(name, value, f"{choices}, as this engine does nothing else")
        return value

    return read


def _numeric(value: Any, kind: type) -> float | int | None:
    """The number of a value or of its text, None where it is none. A text is read as an integer first, so that long
    integers stay exact."""
    if isinstance(value, str):
        for each in (int, kind):
            try:
                parsed: float | int = each(value)
            except ValueError:
                continue
            return parsed if math.isfinite(parsed) else None
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if isinstance(value, int) or math.isfinite(value) else None


def _bounds(low: float, high: float, above: bool) -> str:
    if high < math.inf:
        return f" above {low:g} and at most {high:g}" if above else f" between {low:g} and {high:g}"
    if low > -math.inf:
        return f" above {low:g}" if above else f" of at least {low:g}"
    return ""
