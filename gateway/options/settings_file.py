"""A file with the options of a command: YAML, or TOML by its suffix. A key is an option's name without its dashes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway.yaml.nodes import Entry, Items, Map, Node, Scalar, describe, read_yaml
from gateway.yaml.problems import Location, Problem, suggest

_TOML_SUFFIX = ".toml"
_LINE = re.compile(r"\(at line (\d+), column (\d+)\)")


@dataclass(frozen=True, slots=True)
class SettingValue:
    """One value of a settings file, as written: a list where the file has one."""

    text: str | list[str]
    location: Location


def read_settings(
    text: str, file: str, options: Collection[str], environment: Mapping[str, str]
) -> tuple[dict[str, SettingValue], list[Problem]]:
    """The values by option, and what is wrong. `max_body_bytes` is `max-body-bytes`; `${VAR}` in a value of YAML comes
    from the environment."""
    problems: list[Problem] = []
    is_toml = file.endswith(_TOML_SUFFIX)
    root = _toml(text, file, problems) if is_toml else read_yaml(text, file, environment, problems)
    match root:
        case Map(entries):
            return dict(_values(entries, options, problems)), problems
        case Scalar(is_null=True):
            pass  # an empty file
        case _ if not problems:
            problems.append(Problem(Location(file, 1, 1), f"expected a map of options, found {describe(root)}"))
    return {}, problems


def _values(
    entries: Mapping[str, Entry], options: Collection[str], problems: list[Problem]
) -> Iterator[tuple[str, SettingValue]]:
    seen: dict[str, str] = {}
    for key, entry in entries.items():
        name = key.replace("_", "-")
        if name not in options:
            problems.append(Problem(entry.location, f"unknown option {key!r}{suggest(name, options)}"))
        elif name in seen:
            problems.append(Problem(entry.location, f"{key!r} is {seen[name]!r}, which stands above"))
        else:
            seen[name] = key
            match entry.node:
                case Scalar(text, is_null=False, location=location):
                    yield name, SettingValue(text, location)
                case Items(nodes, location) if all(isinstance(node, Scalar) and not node.is_null for node in nodes):
                    yield name, SettingValue([node.text for node in nodes if isinstance(node, Scalar)], location)
                case Scalar() | Items() | Map() as node:
                    problem = f"{key!r} is one value, or a list of values: found {describe(node)}"
                    problems.append(Problem(node.location, problem))


def _toml(text: str, file: str, problems: list[Problem]) -> Node:
    start = Location(file, 1, 1)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _LINE.search(str(error))
        place = Location(file, int(found[1]), int(found[2])) if found else start
        problems.append(Problem(place, f"not TOML: {_LINE.sub('', str(error)).strip()}"))
        return Scalar("", True, start)
    return _node(table, text, start)


def _node(value: Any, text: str, place: Location) -> Node:
    """The node of a value of TOML, at the line that begins with its key."""
    match value:
        case dict():
            entries = {}
            for key, inner in value.items():
                at = Location(place.file, _line_of(key, text), 1)
                entries[key] = Entry(at, _node(inner, text, at))
            return Map(entries, place)
        case list():
            return Items(tuple(_node(item, text, place) for item in value), place)
        case bool():
            return Scalar(str(value).lower(), False, place)
    return Scalar(str(value), False, place)


def _line_of(key: str, text: str) -> int:
    found = re.search(rf"^[\[\s]*[\"']?{re.escape(key)}[\"']?\s*[=\].]", text, re.MULTILINE)
    return text.count("\n", 0, found.end()) + 1 if found else 1
