"""Files of keys as the command line edits them: comments and order stay as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.admin_client import Row

if TYPE_CHECKING:
    from gateway.rule_versions.splice import Span


Expiry = Annotated[
    str | None,
    typer.Option(metavar="WHEN", help="When it ends: 2027-01-31, 2027-01-31T12:00:00Z, or 90d from now."),
]


class KeyFile:
    """A file with a list of keys, which may not exist yet."""

    def __init__(self, path: Path, check: Callable[[Path], object], *, may_be_missing: bool = False) -> None:
        """`check` is the gateway's own reader of the file; it raises ValueError.

        Raises: typer.Exit where the file cannot be used.
        """
        from gateway.rule_versions.splice import read_spans

        self._path = path
        self._text = ""
        self._entries: Span | None = None
        if may_be_missing and not path.exists():
            return
        try:
            check(path)
        except ValueError as error:
            raise refused(str(error)) from error
        self._text = path.read_text()
        root = read_spans(self._text, str(path))
        self._entries = root if root.kind == "list" else None

    def values(self, field: str) -> list[str]:
        """A field's value in each entry, "" where it is missing."""
        return [_value(entry, field) for entry in self._entries.children] if self._entries is not None else []

    def entries(self, *fields: str) -> list[Row]:
        """These fields of each entry."""
        return list(zip(*(self.values(field) for field in fields), strict=True))

    def append(self, fields: Mapping[str, str]) -> None:
        from gateway.rule_versions.splice import append_item, flow_map

        text, entries = self._text, self._entries
        if entries is None or not entries.children:
            before = text[: entries.start] if entries is not None else text
            text = before + ("\n" if before and not before.endswith("\n") else "") + block(fields, 0)
        elif entries.is_flow:
            text = append_item(text, entries, flow_map(**fields))
        else:
            text = append_item(text, entries, block(fields, entries.column)[entries.column + 2 :].rstrip("\n"))
        self._write(text)

    def rotate(self, id: str, fields: Mapping[str, str], until: str) -> None:
        """Add an entry for the owner of a key, which ends then, unless it ends before.

        Raises: typer.Exit where there is no such key.
        """
        from gateway.config.auth_specs import moment
        from gateway.rule_versions.splice import read_spans, set_entry
        from gateway.rule_versions.version import EditError

        place = self._find("id", id, f"key {id!r}")
        assert self._entries is not None
        old = self._entries.children[place]
        owner = {name: value for name in ("tenant", "name") if (value := _value(old, name))}
        expires = _value(old, "expires")
        if not expires or moment(expires) > moment(until):
            try:
                self._text = set_entry(self._text, old, "expires", until, f"key {id!r}")
            except EditError as error:
                raise refused(f"{self._path}: {error}") from error
            self._entries = read_spans(self._text, str(self._path))
        self.append({**fields, **owner})

    def remove(self, field: str, value: str, what: str) -> None:
        """Remove the entry that has this value; `what` names it.

        Raises: typer.Exit where there is none.
        """
        from gateway.rule_versions.splice import remove_item
        from gateway.rule_versions.version import EditError

        place = self._find(field, value, what)
        assert self._entries is not None
        try:
            self._write(remove_item(self._text, self._entries, place, what))
        except EditError as error:
            raise refused(f"{self._path}: {error}") from error

    def _find(self, field: str, value: str, what: str) -> int:
        values = self.values(field)
        if value not in values:
            raise refused(f"{self._path} has no {what}; it has {', '.join(values) or 'none'}")
        return values.index(value)

    def _write(self, text: str) -> None:
        """In place: a container that has the file mounted would not see a new file."""
        try:
            self._path.write_text(text)
        except OSError as error:
            raise refused(f"{self._path} cannot be written: {error.strerror}") from error


def block(fields: Mapping[str, str], column: int) -> str:
    """An entry in lines of its own, as an item of a list at this column."""
    from gateway.rule_versions.splice import written

    indent = " " * column
    lines = "".join(f"{indent}  {name}: {written(value)}\n" for name, value in fields.items())
    return f"{indent}- {lines[len(indent) + 2 :]}"


def expiry(text: str) -> str:
    """The end of a key, as files have it.

    Raises: ValueError.
    """
    from gateway.config.auth_specs import moment

    if text.endswith("d") and text[:-1].isdigit() and len(text) < 6:
        return (datetime.now(UTC) + timedelta(days=int(text[:-1]))).isoformat(timespec="seconds")
    moment(text)
    return text


def _value(entry: Span, field: str) -> str:
    found = entry.get(field)
    return found.value if found is not None else ""


def refused(reason: str) -> typer.Exit:
    print(reason, file=sys.stderr)
    return typer.Exit(1)
