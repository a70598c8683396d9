"""Typed reads of a JSON object's fields; errors name the file and the field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
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
        value = self.values.get(name)
        if value is None and isinstance(default, int):
            return default
        if value is None:
            raise self.wrong(name, "is missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.wrong(name, f"an integer of at least {minimum} is expected, not {value!r}")
        return value

    def optional_integer(self, name: str) -> int | None:
        return self.integer(name) if self.has(name) else None

    def integers(self, name: str) -> list[int]:
        value = self.values.get(name)
        values: list[Any] = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(each, int) and not isinstance(each, bool) for each in values):
            raise self.wrong(name, f"a list of integers is expected, not {value!r}")
        return values

    def number(self, name: str, default: float | None = None, above: float = 0.0) -> float:
        value = self.values.get(name)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.wrong(name, "is missing")
        if isinstance(value, bool) or not isinstance(value, int | float) or not above < value < float("inf"):
            raise self.wrong(name, f"a number above {above:g} is expected, not {value!r}")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, f"true or false is expected, not {value!r}")
        return value

    def text(self, name: str, default: str) -> str:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(name, f"a text is expected, not {value!r}")
        return value

    def texts(self, name: str) -> list[str]:
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.wrong(name, f"a list of texts is expected, not {value!r}")
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
