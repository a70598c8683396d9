"""YAML read with the place of everything in it, so that each finding names file, line, field and nearest spelling.

The same manners as the gateway's rule files: every finding is kept, `${VAR}` and `${VAR:-default}` come from the
environment, `$${` writes a literal `${`, anchors and `<<` work. A reader answers None after it has reported why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeVar

import yaml

T = TypeVar("T")

_VARIABLE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|\$\{")
_MERGE = "tag:yaml.org,2002:merge"
_NULL = "tag:yaml.org,2002:null"


@dataclass(frozen=True, slots=True)
class Location:
    """Where something stands; line and column count from 1."""

    file: str
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding, printed as compilers print theirs. An error refuses the file, a warning lets it pass."""

    location: Location
    message: str
    is_error: bool = True

    def __str__(self) -> str:
        return f"{self.location}: {'error' if self.is_error else 'warning'}: {self.message}"


@dataclass(slots=True)
class Reading:
    """One file being read, and what has been found wrong with it."""

    file: str
    environment: Mapping[str, str]
    problems: list[Problem] = field(default_factory=list)

    @property
    def num_errors(self) -> int:
        return sum(problem.is_error for problem in self.problems)

    def error(self, node: yaml.Node | None, message: str) -> None:
        self.problems.append(Problem(self.place(node), message))

    def warn(self, node: yaml.Node | None, message: str) -> None:
        self.problems.append(Problem(self.place(node), message, is_error=False))

    def place(self, node: yaml.Node | None) -> Location:
        """Where a node stands; None is the file as a whole."""
        mark = None if node is None else node.start_mark
        return Location(self.file) if mark is None else Location(self.file, mark.line + 1, mark.column + 1)


# From a node to a value; None once it is reported why there is none.
Reader = Callable[[yaml.Node, Reading], T | None]


def compose(text: str, reading: Reading) -> yaml.Node | None:
    """The root of one YAML document; None where it is none (reported) or empty."""
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Location(reading.file) if mark is None else Location(reading.file, mark.line + 1, mark.column + 1)
        reading.problems.append(Problem(place, f"not YAML: {error.problem or error.context}"))
    except yaml.reader.ReaderError as error:
        reading.error(None, f"not YAML: {error.reason}")
    except RecursionError:
        reading.error(None, "not YAML that can be read: nested too deeply")
    return None


def scalar(parse: Callable[[str], T]) -> Reader[T]:
    """Read one value by a function that raises ValueError."""

    def read(node: yaml.Node, reading: Reading) -> T | None:
        if not isinstance(node, yaml.ScalarNode) or node.tag == _NULL:
            reading.error(node, f"expected one value, found {describe(node)}")
            return None
        try:
            return parse(_substitute(node.value, reading.environment))
        except ValueError as error:
            reading.error(node, str(error))
            return None

    return read


def one_or_many(item: Reader[T]) -> Reader[tuple[T, ...]]:
    """Read a list that is not empty; one value alone stands for a list of one."""

    def read(node: yaml.Node, reading: Reading) -> tuple[T, ...] | None:
        children = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not children:
            reading.error(node, "the list is empty")
            return None
        values = [item(child, reading) for child in children]
        found = tuple(value for value in values if value is not None)
        return found if len(found) == len(values) else None

    return read


def keyed(parse_key: Callable[[str], str], item: Reader[T]) -> Reader[dict[str, T]]:
    """Read a map whose keys are free, as of environment variables."""

    def read(node: yaml.Node, reading: Reading) -> dict[str, T] | None:
        values: dict[str, T] = {}
        for key, value_node in entries(node, "a map", reading).items():
            name, value = scalar(parse_key)(key.node, reading), item(value_node, reading)
            if name is not None and value is not None:
                values[name] = value
        return values

    return read


@dataclass(frozen=True, slots=True)
class Key:
    """A key with its place; equal to another of the same text."""

    text: str
    node: yaml.Node = field(compare=False)


def entries(node: yaml.Node, what: str, reading: Reading) -> dict[Key, yaml.Node]:
    """The keys of a map in the order of the file, merged ones last; what is no map is reported and has none."""
    found: dict[Key, yaml.Node] = {}
    merged: dict[Key, yaml.Node] = {}
    if not isinstance(node, yaml.MappingNode):
        reading.error(node, f"expected {what}, found {describe(node)}")
        return found
    for key_node, value in node.value:
        if key_node.tag == _MERGE:
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                merged = entries(source, "a map to merge", reading) | merged if source is not node else merged
        elif not isinstance(key_node, yaml.ScalarNode):
            reading.error(key_node, "a key must be a text")
        elif (key := Key(key_node.value, key_node)) in found:
            reading.error(key_node, f"key {key.text!r} is given twice")
        else:
            found[key] = value
    return found | {key: value for key, value in merged.items() if key not in found}


def record(
    what: str, fields: Mapping[str, Reader[Any]], required: Iterable[str] = ()
) -> Callable[[yaml.Node, Reading], dict[str, Any] | None]:
    """Read a map with known keys; `what` names it with its article. Absent keys are absent in the result."""

    def read(node: yaml.Node, reading: Reading) -> dict[str, Any] | None:
        errors_before = reading.num_errors
        found = entries(node, f"{what} (a map)", reading)
        values: dict[str, Any] = {}
        for key, value in found.items():
            if key.text in fields:
                values[key.text] = fields[key.text](value, reading)
            else:
                reading.error(key.node, f"unknown key {key.text!r} in {what}{suggest(key.text, fields)}")
        if isinstance(node, yaml.MappingNode):
            misspelt = {_nearest(key.text, fields) for key in found if key.text not in fields}
            for name in required:
                if name not in values and name not in misspelt:
                    reading.error(node, f"{what} needs {name!r}")
        return values if reading.num_errors == errors_before else None

    return read


def suggest(word: str, known: Iterable[str]) -> str:
    """End a sentence about an unknown word: with the nearest known one, else with all of them."""
    choices = list(known)
    near = _nearest(word, choices)
    if near is not None:
        return f": did you mean {near!r}?"
    return f"; known: {', '.join(choices)}" if choices else ""


def describe(node: yaml.Node) -> str:
    """What stands there, to end the sentence "expected a list, found ..."."""
    if isinstance(node, yaml.MappingNode):
        return "a map"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "nothing" if node.tag == _NULL else f"{node.value!r}"


def _nearest(word: str, known: Iterable[str]) -> str | None:
    lower = {choice.lower(): choice for choice in known}
    found = get_close_matches(word.lower(), lower, n=1)
    return lower[found[0]] if found else None


def _substitute(text: str, environment: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        if found[0] == "$${":
            return "${"
        name, default = found["name"], found["default"]
        if name is None:
            raise ValueError("'${' begins no variable: write ${NAME}, ${NAME:-default}, or $${ for the text itself")
        given = environment.get(name, default)
        if given is None:
            raise ValueError(f"environment variable {name} is not set; ${{{name}:-default}} gives a default")
        return given

    return _VARIABLE.sub(value, text)
