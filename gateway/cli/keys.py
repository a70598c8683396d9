"""`pointsman keys`: the keys of the admin API."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gateway.cli.admin_client import Row, print_table

if TYPE_CHECKING:
    from gateway.rule_versions.splice import Span

app = typer.Typer(
    help="Make, list and remove keys of the admin API. A key is shown once, when it is made: the file holds only its "
    "hash. Pass the file to the gateway (`pointsman serve --admin-keys FILE`), which applies changes at once."
)

File = Annotated[
    Path,
    typer.Option(metavar="FILE", envvar="POINTSMAN_ADMIN_KEYS", help="The keys file."),
]


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Owner of the key, as it appears in the audit.")],
    role: Annotated[
        Literal["viewer", "operator", "admin"],
        typer.Option(
            help="A viewer reads; an operator also runs the fleet (drains, loads, ramps); an admin also changes rules, "
            "endpoints and limits, and reads the audit."
        ),
    ],
    file: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            envvar="POINTSMAN_ADMIN_KEYS",
            help="The keys file, which is created if needed; - writes the entry to stdout and the key to stderr.",
        ),
    ],
) -> None:
    """Make a key, and print it: it cannot be shown again."""
    from gateway.admin.api_keys import Role, entry_fields, make_key
    from gateway.rule_versions.splice import append_item, flow_map
    from gateway.yaml import values

    try:
        values.name(name)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    key, entry = make_key(name, Role[role])
    fields = entry_fields(entry)
    if file == "-":
        typer.echo(_block(fields, 0), nl=False)
        typer.echo(key, err=True)
        return
    path = Path(file)
    text, entries = _read(path) if path.exists() else ("", None)
    if any(_value(each, "name") == name for each in _items(entries)):
        raise _refused(f"{file} has a key of {name!r} already; remove that one first, or choose another name")
    if entries is None or not entries.children:
        before = text[: entries.start] if entries is not None else text
        text = before + ("\n" if before and not before.endswith("\n") else "") + _block(fields, 0)
    elif entries.is_flow:
        text = append_item(text, entries, flow_map(**fields))
    else:
        text = append_item(text, entries, _block(fields, entries.column)[entries.column + 2 :].rstrip("\n"))
    _write(path, text)
    typer.echo(key)
    typer.echo(f"This is the key of {name!r}, shown once. Use it: Authorization: Bearer KEY, or --key.", err=True)


@app.command("list")
def list_all(file: File) -> None:
    """List names and roles."""
    columns = ("name", "role", "id")
    _, entries = _read(file)
    rows: list[Row] = [tuple(_value(entry, column) for column in columns) for entry in _items(entries)]
    print_table(columns, rows, "The file has no key: nobody can use the admin API.")


@app.command()
def remove(name: Annotated[str, typer.Argument(help="Owner of the key.")], file: File) -> None:
    """Remove a key from the file: it is refused from then on."""
    from gateway.rule_versions.splice import remove_item
    from gateway.rule_versions.version import EditError

    text, entries = _read(file)
    names = [_value(entry, "name") for entry in _items(entries)]
    if entries is None or name not in names:
        raise _refused(f"{file} has no key of {name!r}; it has {', '.join(names) or 'none'}")
    try:
        _write(file, remove_item(text, entries, names.index(name), f"the key of {name!r}"))
    except EditError as error:
        raise _refused(f"{file}: {error}") from error
    typer.echo(f"The key of {name!r} opens nothing any more.")


def _block(fields: Mapping[str, str], column: int) -> str:
    """An entry in lines of its own, as an item of a list at this column."""
    indent = " " * column
    lines = "".join(f"{indent}  {name}: {value}\n" for name, value in fields.items())
    return f"{indent}- {lines[len(indent) + 2 :]}"


def _read(file: Path) -> tuple[str, Span | None]:
    """The file's text and its list, None where it is empty. The gateway's own reader checks it first."""
    from gateway.admin.api_keys import KeysError, read_keys
    from gateway.rule_versions.splice import read_spans

    try:
        read_keys(file)
    except KeysError as error:
        raise _refused(str(error)) from error
    text = file.read_text()
    root = read_spans(text, str(file))
    return text, root if root.kind == "list" else None


def _items(entries: Span | None) -> list[Span]:
    return entries.children if entries is not None else []


def _value(entry: Span, field: str) -> str:
    found = entry.get(field)
    return found.value if found is not None else ""


def _write(file: Path, text: str) -> None:
    """In place: a container that has the file mounted would not see a new file."""
    try:
        file.write_text(text)
    except OSError as error:
        raise _refused(f"{file} cannot be written: {error.strerror}") from error


def _refused(reason: str) -> typer.Exit:
    print(reason, file=sys.stderr)
    return typer.Exit(1)
