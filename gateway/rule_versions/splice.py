"""The few changes of which every edit is made: a value replaced, an item or a key put in or taken out."""

from __future__ import annotations

import json
import re
from math import isfinite

from gateway.rule_versions.spans import Span
from gateway.rule_versions.version import EditError

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
    """The text with another value in this place.

    Raises: EditError where the value is not written there itself.
    """
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
        if index + 1 < len(items.children):
            return text[: item.start] + text[items.children[index + 1].start :]
        if index:
            return text[: items.children[index - 1].end] + text[item.end :]
        return text[: item.start] + text[_behind_comma(text, item.end) :]
    before = text[: item.start].rstrip(" \t")
    line = before.rfind("\n") + 1
    if not before.endswith("-") or before[line:-1].strip():
        raise EditError(f"{what} is not written in lines of its own: take it out of the file by hand")
    return text[:line] + text[_line_end(text, item.end) :]


def set_entry(text: str, entries: Span, key: str, value: str | int | float, what: str) -> str:
    """The text with this value under a map's key.

    Raises: EditError where it is not written there itself.
    """
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
        if 2 * at + 2 < len(entries.children):
            return text[: name.start] + text[entries.children[2 * at + 2].start :]
        if at:
            return text[: entries.children[2 * at - 1].end] + text[value.end :]
        return text[: name.start] + text[_behind_comma(text, value.end) :]
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


def _behind_comma(text: str, index: int) -> int:
    found = re.compile(r"\s*,").match(text, index)
    return found.end() if found else index
