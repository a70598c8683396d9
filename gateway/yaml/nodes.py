"""YAML as nodes that know their place: each has file, line and column, so that every later finding can name them.

Anchors, aliases and merge keys (`<<`) work as in YAML 1.1. `${VAR}` and `${VAR:-default}` in a value are replaced from
the environment, so `weight: ${WEIGHT:-10}` works; `$${` writes a literal `${`. Keys stay as written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from gateway.yaml.problems import Location, Problem

_YamlLoader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_SCALAR_TAGS = {f"{_TAG}{kind}" for kind in ("str", "int", "float", "bool", "null", "timestamp", "merge", "value")}
# Of all files of one reading. Rules with 10,000 routes have some 200,000; more take seconds to check, and gigabytes.
MAX_VALUES = 1_000_000
# Our files nest six deep; PyYAML's C composer recurses and ends the process some thousands deep.
_MAX_DEPTH = 64
_VARIABLE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|\$\{")


class _Loader(_YamlLoader):  # type: ignore[misc]
    """Refuses what is nested too deeply while it is composed: the composer calls these methods around each node."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def descend_resolver(self, parent: yaml.Node | None, index: object) -> None:
        self._depth += 1
        if self._depth > _MAX_DEPTH + 1:  # it may be a value
            assert parent is not None
            raise yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=parent.start_mark)

    def ascend_resolver(self) -> None:
        self._depth -= 1


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value: `text` as written (1 and 1.0 differ), after substitution; an absent value has `is_null`."""

    text: str
    is_null: bool
    location: Location


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    nodes: tuple[Node, ...]
    location: Location


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of a map with its value; `location` is the key's."""

    location: Location
    node: Node


@dataclass(frozen=True, slots=True)
class Map:
    """A map with its keys in the order of the file, merged keys last."""

    entries: Mapping[str, Entry]
    location: Location


@dataclass(frozen=True, slots=True)
class Invalid:
    """What could not be read and is reported already: readers pass over it in silence."""

    location: Location


Node = Scalar | Items | Map | Invalid


def describe(node: Node) -> str:
    """A description of the node, for "expected a list, found ..."."""
    match node:
        case Map():
            return "a map"
        case Items():
            return "a list"
        case Scalar(is_null=True):
            return "nothing"
        case _:
            return "one value"


def compose(text: str) -> yaml.Node | None:
    """PyYAML's nodes of a text, with their marks in it; None where it is empty. Raises: yaml.YAMLError."""
    return yaml.compose(text, Loader=_Loader)


class ValueCount:
    """The values of the files of one reading. Those behind an alias count at each use, since each use reads them."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, number: int, node: yaml.Node) -> None:
        """Raises: yaml.MarkedYAMLError where there are too many."""
        self.total += number
        if self.total > MAX_VALUES:
            message = f"the rules have more than {MAX_VALUES:,} values, where those behind an alias count at each use"
            raise _TooManyError(problem=message, problem_mark=node.start_mark)


class _TooManyError(yaml.MarkedYAMLError):
    pass


def read_yaml(
    text: str, file: str, environment: Mapping[str, str], problems: list[Problem], count: ValueCount | None = None
) -> Node:
    """Parse one YAML document; findings go to `problems`, and invalid parts become `Invalid`. `count` is that of all
    files that are read together."""
    start = Location(file, 1, 1)
    try:
        root = compose(text)
        if root is None:
            return Scalar("", True, start)
        return _Conversion(file, environment, problems, count or ValueCount()).convert(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = start if mark is None else Location(file, mark.line + 1, mark.column + 1)
        is_syntax = not isinstance(error, _TooManyError)
        problems.append(Problem(place, f"not YAML: {_sentence(error)}" if is_syntax else str(error.problem)))
    except yaml.reader.ReaderError as error:
        problems.append(Problem(start, f"not YAML: {error.reason}"))
    return Invalid(start)


def substitute(text: str, environment: Mapping[str, str]) -> str:
    """A text with its variables filled in.

    Raises: ValueError where one is not set, or is written wrongly.
    """

    def value_of(found: re.Match[str]) -> str:
        if found[0] == "$${":
            return "${"
        name, default = found["name"], found["default"]
        if name is None:
            raise ValueError("'${' begins no variable: write ${NAME}, ${NAME:-default}, or $${ for the text itself")
        value = environment.get(name, default)
        if value is None:
            raise ValueError(f"environment variable {name} is not set; ${{{name}:-default}} gives a default")
        return value

    return _VARIABLE.sub(value_of, text)


def _sentence(error: yaml.MarkedYAMLError) -> str:
    """PyYAML's two halves of an error in one line, with the line where the unfinished thing began."""
    if error.context is None or error.context_mark is None:
        return str(error.problem or error.context)
    return f"{error.context} from line {error.context_mark.line + 1} on, {error.problem}"


class _Conversion:
    """One document on its way from PyYAML's nodes to ours; a node behind an anchor is converted once."""

    def __init__(self, file: str, environment: Mapping[str, str], problems: list[Problem], count: ValueCount) -> None:
        self._file = file
        self._environment = environment
        self._problems = problems
        self._count = count
        self._done: dict[int, tuple[Node, int]] = {}  # with the number of its values
        self._open: dict[int, yaml.Node] = {}  # nodes being converted: an alias to one of them is a circle

    def convert(self, node: yaml.Node) -> Node:
        key = id(node)
        if key in self._open:
            return self._broken(self._place(node), "this anchor contains itself")
        if key in self._done:
            found, number = self._done[key]
            self._count.add(number, self._innermost(node))
            return found
        before = self._count.total
        self._count.add(1, node)
        self._open[key] = node
        found = self._convert_new(node)
        del self._open[key]
        self._done[key] = found, self._count.total - before
        return found

    def _innermost(self, node: yaml.Node) -> yaml.Node:
        """What an alias to this node is in: the node itself is where its anchor is."""
        return next(reversed(self._open.values()), node)

    def _convert_new(self, node: yaml.Node) -> Node:
        place = self._place(node)
        match node:
            case yaml.ScalarNode():
                return self._scalar(node, place)
            case yaml.SequenceNode(tag="tag:yaml.org,2002:seq"):
                return Items(tuple(self.convert(child) for child in node.value), place)
            case yaml.MappingNode(tag="tag:yaml.org,2002:map"):
                return self._map(node, place)
            case _:
                return self._broken(place, f"tag {node.tag} is not known here")

    def _scalar(self, node: yaml.ScalarNode, place: Location) -> Node:
        if node.tag not in _SCALAR_TAGS:
            return self._broken(place, f"tag {node.tag} is not known here")
        if "${" not in node.value:
            return Scalar(node.value, node.tag == f"{_TAG}null", place)
        try:
            text = substitute(node.value, self._environment)
        except ValueError as error:
            return self._broken(place, str(error))
        return Scalar(text, False, place)

    def _map(self, node: yaml.MappingNode, place: Location) -> Map:
        entries: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        for key, value in node.value:
            key_place = self._place(key)
            if key.tag == f"{_TAG}merge":
                self._count.add(len(merged), key)
                merged = self._merge(self.convert(value), key) | merged
            elif not isinstance(key, yaml.ScalarNode) or key.tag == f"{_TAG}null":
                self._problems.append(Problem(key_place, "a key must be a text"))
            elif key.value in entries:
                first = entries[key.value].location
                self._problems.append(Problem(key_place, f"key {key.value!r} is given twice: first at {first}"))
            else:
                entries[key.value] = Entry(key_place, self.convert(value))
        return Map(entries | {name: entry for name, entry in merged.items() if name not in entries}, place)

    def _merge(self, source: Node, key: yaml.Node) -> dict[str, Entry]:
        """The keys that `<<` brings in: of several maps, an earlier one wins."""
        maps = source.nodes if isinstance(source, Items) else (source,)
        merged: dict[str, Entry] = {}
        for one in maps:
            if isinstance(one, Map):
                self._count.add(len(merged) + len(one.entries), key)
                merged = dict(one.entries) | merged
            elif not isinstance(one, Invalid):
                self._problems.append(
                    Problem(self._place(key), f"'<<' takes a map or a list of maps, found {describe(one)}")
                )
        return merged

    def _broken(self, place: Location, message: str) -> Invalid:
        self._problems.append(Problem(place, message))
        return Invalid(place)

    def _place(self, node: yaml.Node) -> Location:
        mark = node.start_mark
        return Location(self._file, mark.line + 1, mark.column + 1)
