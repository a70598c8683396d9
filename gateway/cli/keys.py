"""`pointsman keys`: the keys of the admin API, and beside them those of clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from gateway.cli import client_keys
from gateway.cli.admin_client import print_table
from gateway.cli.key_files import Expiry, KeyFile, block, expiry, refused

app = typer.Typer(
    help="Make, list and remove keys of the admin API. A key is shown once, when it is made: the file holds only its "
    "hash. Pass the file to the gateway (`pointsman serve --admin-keys FILE`), which applies changes at once. "
    "`pointsman keys client` makes the keys of the inference ports."
)
app.add_typer(client_keys.app, name="client")

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
    expires: Expiry = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND:NAME",
            help="Have it change nothing but this: engine:NAME, model:NAME or experiment:NAME, by name or glob; may be "
            "repeated. It reads everything.",
        ),
    ] = None,
) -> None:
    """Make a key, and print it: it cannot be shown again."""
    from gateway.admin.api_keys import Role, entry_fields, make_key, read_scopes
    from gateway.yaml import values

    more = {}
    try:
        values.name(name)
        if expires is not None:
            more["expires"] = expiry(expires)
        if scope:
            more["scope"] = ", ".join(map(str, read_scopes(",".join(scope))))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    key, entry = make_key(name, Role[role])
    fields = {**entry_fields(entry), **more}
    if file == "-":
        typer.echo(block(fields, 0), nl=False)
        typer.echo(key, err=True)
        return
    keys = KeyFile(Path(file), _check, may_be_missing=True)
    if name in keys.values("name"):
        raise refused(f"{file} has a key of {name!r} already; remove that one first, or choose another name")
    keys.append(fields)
    typer.echo(key)
    typer.echo(f"This is the key of {name!r}, shown once. Use it: Authorization: Bearer KEY, or --key.", err=True)


@app.command("list")
def list_all(file: File) -> None:
    """List names, roles, ends and scopes."""
    columns = ("name", "role", "id", "expires", "scope")
    print_table(columns, KeyFile(file, _check).entries(*columns), "The file has no key: nobody can use the admin API.")


@app.command()
def remove(name: Annotated[str, typer.Argument(help="Owner of the key.")], file: File) -> None:
    """Remove a key from the file: it is refused from then on."""
    KeyFile(file, _check).remove("name", name, f"key of {name!r}")
    typer.echo(f"The key of {name!r} opens nothing any more.")


def _check(path: Path) -> None:
    """Raises: ValueError."""
    from gateway.admin.api_keys import KeysError, read_keys

    try:
        read_keys(path)
    except KeysError as error:
        raise ValueError(str(error)) from error
