"""Readers: from a node to a value, with all findings collected.

A reader takes a node and the `Reading`, and returns a value, or None after it has reported the reason. Readers do not
raise, so one pass reports everything that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from gateway.yaml import values
from gateway.yaml.nodes import Invalid, Items, Map, Node, Scalar, describe
from gateway.yaml.problems import Location, Problem, Severity, nearest, suggest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to a name that is declared elsewhere; checked when all files are read."""

    kind: str
    name: str
    location: Location


@dataclass(slots=True)
class Reading:
    """What one reading of one or several files has found besides values."""

    problems: list[Problem] = field(default_factory=list)
    declared: dict[str, dict[str, Location]] = field(default_factory=dict)  # kind -> name -> place
    references: list[Reference] = field(default_factory=list)
    named_files: set[str] = field(default_factory=set)  # other files that values name
    allowed_files: frozenset[str] | None = None  # None: any
    named_hooks: set[str] = field(default_factory=set)  # code that values name
    allowed_hooks: frozenset[str] | None = None  # None: any
    followed_files: dict[str, None] = field(default_factory=dict)  # files to read again when they change
    environment: Mapping[str, str] = field(default_factory=dict)  # variables that values name
    is_partial: bool = False  # a file or a section was unreadable and may contain what is missing
    _num_counted: int = 0  # problems that `_num_errors` has counted
    _num_errors: int = 0

    def error(self, location: Location, message: str) -> None:
        self.problems.append(Problem(location, message))

    def warn(self, location: Location, message: str) -> None:
        self.problems.append(Problem(location, message, Severity.WARNING))

    @property
    def num_errors(self) -> int:
        if len(self.problems) > self._num_counted:  # each record looks
            self._num_errors += sum(problem.is_error for problem in self.problems[self._num_counted :])
            self._num_counted = len(self.problems)
        return self._num_errors

    def declare(self, kind: str, name: str, location: Location) -> None:
        """Note that a name is given to something; a second time is an error that names both places."""
        places = self.declared.setdefault(kind, {})
        if name in places:
            self.error(location, f"{kind} {name!r} is declared twice: first at {places[name]}")
        else:
            places[name] = location


Reader = Callable[[Node, Reading], T | None]


def scalar(parse: Callable[[str], T]) -> Reader[T]:
    """Read one value by a function that raises ValueError."""

    def read(node: Node, reading: Reading) -> T | None:
        if not isinstance(node, Scalar) or node.is_null:
            expected(node, "one value", reading)
            return None
        try:
            return parse(node.text)
        except ValueError as error:
            reading.error(node.location, str(error))
            return None

    return read


def reference(kind: str) -> Reader[str]:
    """Read the name of something that is declared elsewhere."""

    def read(node: Node, reading: Reading) -> str | None:
        name = scalar(str)(node, reading)
        if name is not None:
            reading.references.append(Reference(kind, name, node.location))
        return name

    return read


def one_or_many(item: Reader[T]) -> Reader[tuple[T, ...]]:
    """Read a non-empty list; a single value counts as a list of one."""

    def read(node: Node, reading: Reading) -> tuple[T, ...] | None:
        if not isinstance(node, Items):
            value = item(node, reading)
            return None if value is None else (value,)
        if not node.nodes:
            reading.error(node.location, "the list is empty")
            return None
        found = [item(child, reading) for child in node.nodes]
        return tuple(value for value in found if value is not None)

    return read


def list_of(what: str, parse: Callable[[str], T]) -> Reader[tuple[T, ...]]:
    """Read a list of values, which may be empty."""

    def read(node: Node, reading: Reading) -> tuple[T, ...] | None:
        if not isinstance(node, Items):
            expected(node, f"{what} (a list)", reading)
            return None
        found = [scalar(parse)(child, reading) for child in node.nodes]
        return tuple(value for value in found if value is not None)

    return read


def keyed(parse_key: Callable[[str], str], item: Reader[T]) -> Reader[dict[str, T]]:
    """Read a map with arbitrary keys, such as header names."""

    def read(node: Node, reading: Reading) -> dict[str, T] | None:
        if not isinstance(node, Map):
            expected(node, "a map", reading)
            return None
        found: dict[str, T] = {}
        for key, entry in node.entries.items():
            name = scalar(parse_key)(Scalar(key, False, entry.location), reading)
            value = item(entry.node, reading)
            if name in found:
                reading.error(entry.location, f"key {name!r} is given twice, in different case")
            elif name is not None and value is not None:
                found[name] = value
        return found

    return read


def expected(node: Node, what: str, reading: Reading) -> None:
    """Report an unexpected node; broken ones are already reported."""
    if not isinstance(node, Invalid):
        reading.error(node.location, f"expected {what}, found {describe(node)}")


@dataclass(frozen=True, slots=True)
class Record(Generic[T]):
    """A map with known keys, read into a spec. Defaults live in the spec alone: an absent key is not passed on."""

    what: str  # with its article: "an engine"
    make: Callable[..., T]
    fields: Mapping[str, Reader[Any]]
    required: tuple[str, ...] = ()
    planned: Mapping[str, str] = field(default_factory=dict)  # key that a later version will know -> what there is
    has_location: bool = False  # the spec has the location of its node

    def __call__(self, node: Node, reading: Reading, **preset: object) -> T | None:
        """Read the map and create the spec from it and `preset`; None if something is wrong."""
        if not isinstance(node, Map):
            expected(node, f"{self.what} (a map)", reading)
            return None
        errors_before = reading.num_errors
        found = {key: self._read_entry(key, node, reading) for key in node.entries}
        # A misspelt key is one finding, at the key
        misspelt = {nearest(key, self.fields) for key in node.entries if key not in self.fields}
        for key in self.required:
            if key not in node.entries and key not in misspelt:
                reading.error(node.location, f"{self.what} needs {key!r}")
        if reading.num_errors > errors_before or any(value is None for value in found.values()):
            return None
        if self.has_location:
            preset = {"location": node.location} | preset
        return self.make(**found, **preset)

    def _read_entry(self, key: str, node: Map, reading: Reading) -> Any:
        entry = node.entries[key]
        if key in self.fields:
            return self.fields[key](entry.node, reading)
        if key in self.planned:
            reading.error(entry.location, f"{key!r} is not available in this version; {self.planned[key]}")
        else:
            reading.error(entry.location, f"unknown key {key!r} in {self.what}{suggest(key, self.fields)}")
        return None


def record_of(
    what: str,
    spec: type[T],
    *,
    preset: tuple[str, ...] = (),
    required: tuple[str, ...] = (),
    planned: Mapping[str, str] = MappingProxyType({}),
    **special: Reader[Any],
) -> Record[T]:
    """The record of a dataclass: its fields are the keys, and those without a default are required.

    A field's type determines its reader (see `reader_of`) unless `special` has one. Fields that are `preset` to
    the record, and `location`, are not keys.
    """
    hints = get_type_hints(spec, include_extras=True)
    keys = [each for each in fields(spec) if each.name not in (*preset, "location")]  # type: ignore[arg-type]
    needed = [each.name for each in keys if each.default is MISSING and each.default_factory is MISSING]
    readers = {each.name: special.get(each.name) or reader_of(hints[each.name], each.name) for each in keys}
    return Record(what, spec, readers, (*needed, *required), planned, has_location="location" in hints)


def reader_of(hint: Any, what: str) -> Reader[Any]:
    """The reader of a type: `Annotated[T, parse]` with a parser of scalars or a `NameOf`, a bare `str` or `bool`,
    literal texts, an enumeration, a tuple of a type, a mapping from one type to another, or a dataclass; each may be
    optional."""
    kind, arguments = get_origin(hint), get_args(hint)
    if kind is Annotated:
        parse = arguments[1]
        return reference(parse.kind) if isinstance(parse, values.NameOf) else scalar(parse)
    if kind in (Union, UnionType):
        return reader_of(arguments[0], what)
    if kind is tuple:
        return one_or_many(reader_of(arguments[0], what))
    if kind is Mapping:
        return keyed(get_args(arguments[0])[1], reader_of(arguments[1], what))
    if kind is Literal:
        return scalar(values.one_of(arguments))
    if is_dataclass(hint):
        return record_of(what, hint)  # type: ignore[arg-type]
    if issubclass(hint, Enum):
        return scalar(values.member_of(hint, what))
    return scalar(values.boolean if hint is bool else str)
