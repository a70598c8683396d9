"""Changes of a YAML text that keep all its other bytes: a value replaced, an item or a key added or removed.

Round-trip dumpers keep comments but reformat other lines; here a change is a splice at the span of a node. Functions
raise EditError where a place cannot be edited.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite

import yaml

from gateway.rule_versions.version import EditError

_Loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)
class Span:
    """One node. `children` are a list's items, or a map's keys and values in turn; `end` is behind the last of them."""

    kind: str  # scalar | list | map | alias
    start: int
    end: int
    column: int
    anchor: str | None = None  # the one that it has; an alias' own is the one that it names
    value: str = ""
    is_plain: bool = True
    is_flow: bool = False
    children: list[Span] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return self.kind == "scalar" and self.start == self.end

    def pairs(self) -> Iterator[tuple[Span, Span]]:
        return zip(self.children[::2], self.children[1::2], strict=True)

    def get(self, key: str) -> Span | None:
        """The value of a key in this map itself, not from `<<`."""
        if self.kind != "map":
            return None
        return next((value for name, value in self.pairs() if name.value == key and name.kind == "scalar"), None)

    def walk(self) -> Iterator[Span]:
        yield self
        for child in self.children:
            yield from child.walk()


def read_spans(text: str, name: str) -> Span:
    """The root of a text; the indexes are those of its characters."""
    shift = 1 if text.startswith("\ufeff") else 0
    open_: list[Span] = []
    root = Span("scalar", shift, shift, 0)
    try:
        for event in yaml.parse(text[shift:], Loader=_Loader):
            if isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
                closed = open_.pop()
                if closed.is_flow and event.end_mark is not None:
                    closed.end = event.end_mark.index + shift
                elif closed.children:  # a block's own end is where the next thing begins
                    closed.end = closed.children[-1].end
                continue
            span = _span(event, shift)
            if span is None:
                continue
            if open_:
                open_[-1].children.append(span)
            else:
                root = span
            if span.kind in ("list", "map"):
                open_.append(span)
    except yaml.YAMLError as error:
        raise EditError(f"{name} is not YAML: {error}") from error
    return root


def _span(event: yaml.Event, shift: int) -> Span | None:
    """The node that an event begins; None where it begins none."""
    assert event.start_mark is not None and event.end_mark is not None
    start, end = event.start_mark.index + shift, event.end_mark.index + shift
    column = event.start_mark.column
    match event:
        case yaml.ScalarEvent():
            return Span("scalar", start, end, column, event.anchor, event.value, not event.style)
        case yaml.AliasEvent():
            return Span("alias", start, end, column, event.anchor)
        case yaml.SequenceStartEvent():
            return Span("list", start, end, column, event.anchor, is_flow=bool(event.flow_style))
        case yaml.MappingStartEvent():
            return Span("map", start, end, column, event.anchor, is_flow=bool(event.flow_style))
    return None


# Texts that YAML reads unchanged in any position; all others are quoted.
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def written(value: str | int | float) -> str:
    """A value as YAML, such as the rules' reader reads it back."""
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if not isfinite(value):
            raise EditError(f"{value} is not a number that can stand in a file")
        return f"{value:.12f}".rstrip("0").rstrip(".")  # the reader knows no exponents
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value.replace("${", "$${"), ensure_ascii=False)


def flow_map(**entries: str | int | float | None) -> str:
    """A map in one line, without the entries that are None."""
    return "{" + ", ".join(f"{key}: {written(value)}" for key, value in entries.items() if value is not None) + "}"


def replace_scalar(text: str, span: Span, what: str, value: str | int | float) -> str:
    """The text with another value in this place."""
    check_own(text, span, what)
    if span.kind != "scalar":
        raise EditError(f"{what} is written as {'a list' if span.kind == 'list' else 'a map'}, not as one value")
    if "${" in span.value.replace("$${", ""):
        raise EditError(
            f"{what} is taken from the environment ({span.value}): set the variable, or write the value in the file"
        )
    lead = " " if span.is_empty and span.start and text[span.start - 1] == ":" else ""
    return text[: span.start] + lead + written(value) + text[span.end :]


def check_own(text: str, span: Span, what: str) -> None:
    """Raises: EditError where a place is an anchor's or an alias', so that others would change with it."""
    if span.kind == "alias":
        raise EditError(
            f"{what} is written elsewhere (*{span.anchor}), for others too: write it in its own place first"
        )
    if span.anchor is not None and (span.kind == "scalar" or re.search(rf"\*{re.escape(span.anchor)}\b", text)):
        raise EditError(f"{what} has an anchor (&{span.anchor}), so others would change too: write it in its own place")


def append_item(text: str, items: Span, item: str) -> str:
    """The text with one more item at the end of a list."""
    if not items.children:
        return text[: items.start] + f"[{item}]" + text[items.end :]
    last = items.children[-1]
    if items.is_flow:
        return text[: last.end] + f", {item}" + text[last.end :]
    return _line_after(text, last.end, " " * items.column + f"- {item}")


def remove_item(text: str, items: Span, index: int, what: str) -> str:
    """The text without one of a list's items."""
    item = items.children[index]
    for part in item.walk():
        if part.kind != "alias":  # naming an anchor once less changes nothing for others
            check_own(text, part, what)
    if items.is_flow:
        return _without_part(text, [(each.start, each.end) for each in items.children], index)
    before = text[: item.start].rstrip(" \t")
    line = before.rfind("\n") + 1
    if not before.endswith("-") or before[line:-1].strip():
        raise EditError(f"{what} is not written in lines of its own: take it out of the file by hand")
    return text[:line] + text[_line_end(text, item.end) :]


def set_entry(text: str, entries: Span, key: str, value: str | int | float, what: str) -> str:
    """The text with this value under a map's key."""
    found = entries.get(key)
    if found is not None:
        return replace_scalar(text, found, what, value)
    entry = f"{key}: {written(value)}"
    if not entries.children:
        return text[: entries.start] + f"{{{entry}}}" + text[entries.end :]
    last = entries.children[-1]
    if entries.is_flow:
        return text[: last.end] + f", {entry}" + text[last.end :]
    return _line_after(text, last.end, " " * entries.children[0].column + entry)


def remove_entry(text: str, entries: Span, key: str, what: str) -> str:
    """The text without a map's key; unchanged if the map itself lacks it."""
    at = next((at for at, (name, _) in enumerate(entries.pairs()) if name.value == key), None)
    if at is None:
        return text
    name, value = entries.children[2 * at], entries.children[2 * at + 1]
    check_own(text, name, what)
    if entries.is_flow:
        return _without_part(text, [(key.start, its.end) for key, its in entries.pairs()], at)
    line = text.rfind("\n", 0, name.start) + 1
    if not text[line : name.start].strip():
        return text[:line] + text[_line_end(text, value.end) :]
    if 2 * at + 2 < len(entries.children):  # the first key of a list's item: the next one takes its place
        return text[: name.start] + text[entries.children[2 * at + 2].start :]
    raise EditError(f"{what} is all that stands there: take it out of the file by hand")


def _line_after(text: str, index: int, line: str) -> str:
    """The text with one more line, under that in which this place is."""
    end = _line_end(text, index)
    newline = "\r\n" if "\r\n" in text else "\n"
    if end and text[end - 1] == "\n":
        return text[:end] + line + newline + text[end:]
    return text[:end] + newline + line + text[end:]


def _line_end(text: str, index: int) -> int:
    """Behind the end of the line in which the place before this index is, its comment included."""
    if index and text[index - 1] == "\n":  # a block of text ends with its line
        return index
    end = text.find("\n", index)
    return len(text) if end < 0 else end + 1


def _without_part(text: str, parts: list[tuple[int, int]], at: int) -> str:
    """The text without one of the parts, from and to, that commas separate."""
    start, end = parts[at]
    if at + 1 < len(parts):
        return text[:start] + text[parts[at + 1][0] :]
    if at:
        return text[: parts[at - 1][1]] + text[end:]
    comma = re.compile(r"\s*,").match(text, end)
    return text[:start] + text[comma.end() if comma else end :]
