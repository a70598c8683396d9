"""Options that are durations, sizes, ports and shares, as typer takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from gateway.yaml import values


def quantity(parse: Callable[[str], float | int]) -> Callable[[Any], Any]:
    """A typer parser of a duration or a size; a default is returned unchanged."""

    def parsed(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return parsed


def _port(text: str) -> int:
    """Raises: ValueError."""
    port = values.integer(text)
    if not 0 <= port <= 65535:
        raise ValueError(f"{text} is not a port: 0 to 65535")
    return port


def _share(text: str) -> float:
    """Raises: ValueError."""
    number = text.removesuffix("%")
    try:
        share = float(number) / 100 if number != text else float(number)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ValueError(f"{text} is not a share: 0% to 100%, or 0 to 1")
    return share


# Further arguments of typer's Option.
DURATION: dict[str, Any] = {"parser": quantity(values.duration), "metavar": "DURATION"}
SIZE: dict[str, Any] = {"parser": quantity(values.size), "metavar": "SIZE"}
PORT: dict[str, Any] = {"parser": quantity(_port), "metavar": "PORT"}
SHARE: dict[str, Any] = {"parser": quantity(_share), "metavar": "SHARE"}


def as_text(default: Any, more: dict[str, Any]) -> Any:
    """A duration or a size as the help shows it, which the option reads."""
    text = {"DURATION": values.duration_text, "SIZE": values.size_text}.get(more.get("metavar", ""))
    return text(default) if text is not None else default
