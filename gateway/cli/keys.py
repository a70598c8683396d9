"""`pointsman keys`: who may use the admin API."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from gateway.cli.tables import console

app = typer.Typer(
    help="Make, list and remove keys of the admin API. A key is shown once, when it is made: the file holds its hash "
    "alone, and may be given to whoever runs the gateway (`pointsman serve --admin-keys FILE`). A gateway that is "
    "running takes changes over at once."
)

File = Annotated[
    Path,
    typer.Option(metavar="FILE", envvar="POINTSMAN_ADMIN_KEYS", help="The keys file; `add` makes it where it is not."),
]


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Whose key it is, as the audit will tell.")],
    role: Annotated[
        Literal["viewer", "operator", "admin"],
        typer.Option(
            help="A viewer reads; an operator runs the fleet, too (drains, loads, ramps); an admin also changes rules, "
            "endpoints and limits, and reads the audit."
        ),
    ],
    file: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            envvar="POINTSMAN_ADMIN_KEYS",
            help="The keys file, made where it is not; - writes the entry to stdout and the key to stderr.",
        ),
    ],
) -> None:
    """Make a key, and print it: it cannot be shown again."""
    from gateway.admin.api_keys import Role, make_key, told
    from gateway.yaml import values

    try:
        values.name(name)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    key, entry = make_key(name, Role[role])
    if file == "-":
        fields = "\n  ".join(f"{field}: {value}" for field, value in told(entry).items())
        typer.echo(f"- {fields}")
        typer.echo(key, err=True)
        return
    entries = _read(Path(file)) if Path(file).exists() else []
    if any(known["name"] == name for known in entries):
        raise _refused(f"{file} has a key of {name!r} already; remove that one first, or choose another name")
    entries.append(dict(told(entry)))
    _write(Path(file), entries)
    typer.echo(key)
    typer.echo(f"This is the key of {name!r}, shown once. Use it: Authorization: Bearer KEY, or --key.", err=True)


@app.command("list")
def list_all(file: File) -> None:
    """List names and roles."""
    entries = _read(file)
    table = Table()
    for column in ("name", "role", "id"):
        table.add_column(column, overflow="fold")
    for entry in entries:
        table.add_row(*(Text(str(entry[field])) for field in ("name", "role", "id")))
    console().print(table if entries else "The file has no key: nobody can use the admin API.")


@app.command()
def remove(name: Annotated[str, typer.Argument(help="Whose key it is.")], file: File) -> None:
    """Take a key out of the file: it opens nothing from then on."""
    entries = _read(file)
    found = [index for index, entry in enumerate(entries) if entry["name"] == name]
    if not found:
        known = ", ".join(str(entry["name"]) for entry in entries) or "none"
        raise _refused(f"{file} has no key of {name!r}; it has {known}")
    del entries[found[0]]
    _write(file, entries)
    typer.echo(f"The key of {name!r} opens nothing any more.")


def _read(file: Path) -> Any:
    """The file's list as ruamel has it, which keeps comments; it is read as the gateway reads it, too."""
    from ruamel.yaml import YAML

    from gateway.admin.api_keys import KeysError, read_keys

    try:
        read_keys(file)
    except KeysError as error:
        raise _refused(str(error)) from error
    return YAML().load(file.read_text()) or []


def _write(file: Path, entries: Any) -> None:
    """In place: where a container has the file mounted, one put in its stead would not be seen."""
    from ruamel.yaml import YAML

    text = io.StringIO()
    yaml = YAML()
    yaml.width = 200
    yaml.dump(entries, text)
    try:
        file.write_text(text.getvalue())
    except OSError as error:
        raise _refused(f"{file} cannot be written: {error.strerror}") from error


def _refused(why: str) -> typer.Exit:
    print(why, file=sys.stderr)
    return typer.Exit(1)
