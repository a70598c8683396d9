"""Typed reads of a JSON object's fields; errors name the file and the field."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from engines.core.errors import EngineError, invalid


@dataclass(frozen=True, slots=True)
class Fields:
    """`values` of one object; `where` is its place in errors: `/models/x/config.json: rope_scaling`. A null field
    counts as missing."""

    where: str
    values: Mapping[str, Any]
    separator: str = ": "

    @classmethod
    def of_file(cls, path: Path) -> Fields:
        try:
            values = json.loads(path.read_bytes())
        except FileNotFoundError as error:
            raise invalid(f"{path} is not there: a model is a folder with config.json and safetensors files") from error
        except (OSError, ValueError) as error:
            raise invalid(f"{path}: {error}") from error
        if not isinstance(values, dict):
            raise invalid(f"{path}: an object is expected, not {type(values).__name__}")
        return cls(str(path), values)

    def wrong(self, name: str, problem: str) -> EngineError:
        return invalid(f"{self.where}{self.separator}{name}: {problem}")

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def table(self, name: str) -> Fields:
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise self.wrong(name, f"an object is expected, not {value!r}")
        return Fields(f"{self.where}{self.separator}{name}", value, ".")

    def integer(self, *names_and_default: str | int | None, minimum: int = 1) -> int:
        """The first of these names that is present, else the default (the last argument, where it is an integer)."""
        names = [each for each in names_and_default if isinstance(each, str)]
        default = names_and_default[-1]
        name = next((each for each in names if self.has(each)), names[0])
        default = default if isinstance(default, int) else None
        right = f"an integer of at least {minimum}"
        number: int = self._checked(name, default, lambda value: type(value) is int and value >= minimum, right)
        return number

    def integers(self, name: str) -> list[int]:
        """A list, or one number alone."""
        value = self.values.get(name)
        values: list[Any] = [] if value is None else value if isinstance(value, list) else [value]
        if not all(type(each) is int for each in values):
            raise self.wrong(name, f"a list of integers is expected, not {value!r}")
        return values

    def number(self, name: str, default: float | None = None) -> float:
        right = "a number above 0"
        return float(self._checked(name, default, lambda value: type(value) in (int, float) and 0 < value < inf, right))

    def boolean(self, name: str, default: bool) -> bool:
        return bool(self._checked(name, default, lambda value: isinstance(value, bool), "true or false"))

    def text(self, name: str, default: str) -> str:
        return str(self._checked(name, default, lambda value: isinstance(value, str), "a text"))

    def texts(self, name: str) -> list[str]:
        def are_texts(value: Any) -> bool:
            return isinstance(value, list) and all(isinstance(each, str) for each in value)

        return list(self._checked(name, (), are_texts, "a list of texts"))

    def _checked(self, name: str, default: Any, is_right: Callable[[Any], bool], right: str) -> Any:
        """The value, or the default, without which the field is required."""
        value = self.values.get(name)
        if value is None and default is None:
            raise self.wrong(name, "is missing")
        if value is None:
            return default
        if not is_right(value):
            raise self.wrong(name, f"{right} is expected, not {value!r}")
        return value


def read_object(path: Path) -> dict[str, Any]:
    """A file's JSON object; empty where there is no file.

    Raises: EngineError that names the file.
    """
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise invalid(f"{path} is no JSON: {error}") from error
    if not isinstance(values, dict):
        raise invalid(f"{path} must be a JSON object")
    return values
