"""`pointsman keys client`: the API keys of the inference ports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.admin_client import Row, print_table
from gateway.cli.key_files import Expiry, KeyFile, block, expiry, refused

app = typer.Typer(
    help="Make, list and remove API keys of clients, by which the inference ports know a caller's tenant. A key is "
    "shown once, when it is made: the file holds only its hash. The rules name the file (`auth: {keys: FILE}`), and a "
    "running gateway applies its changes.",
    no_args_is_help=True,
)

_VARIABLE = "POINTSMAN_CLIENT_KEYS"
File = Annotated[Path, typer.Option(metavar="FILE", envvar=_VARIABLE, help="The file of keys.")]


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Whose key it is, for people. A name may have several keys.")],
    tenant: Annotated[str, typer.Option(help="The tenant that rules, limits and conversations see.")],
    file: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            envvar=_VARIABLE,
            help="The file of keys, which is created if needed; - writes the entry to stdout and the key to stderr.",
        ),
    ],
    expires: Expiry = None,
) -> None:
    """Make a key, and print it: it cannot be shown again."""
    from gateway.auth.api_keys import make_key
    from gateway.config.value_parsers import text

    try:
        fields = {"tenant": text(tenant), "name": text(name)}
        until = {"expires": expiry(expires)} if expires is not None else {}
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    key, id, digest = make_key()
    entry = {"id": id, **fields, "hash": digest, **until}
    if file == "-":
        typer.echo(block(entry, 0), nl=False)
        typer.echo(key, err=True)
        return
    KeyFile(Path(file), _check, may_be_missing=True).append(entry)
    typer.echo(key)
    typer.echo(
        f"This is a key of {name!r}, shown once. Use it: authorization: Bearer KEY, or x-api-key: KEY.", err=True
    )


@app.command("list")
def list_all(file: File) -> None:
    """List ids, tenants, names and ends."""
    columns = ("id", "tenant", "name", "expires")
    keys = KeyFile(file, _check)
    rows: list[Row] = list(zip(*(keys.values(column) for column in columns), strict=True))
    print_table(columns, rows, "The file has no key: it admits nobody.")


@app.command()
def remove(id: Annotated[str, typer.Argument(help="The key's id.")], file: File) -> None:
    """Remove a key from the file: it is refused from then on."""
    keys = KeyFile(file, _check)
    ids = keys.values("id")
    if id not in ids:
        raise refused(f"{file} has no key {id!r}; it has {', '.join(ids) or 'none'}")
    keys.remove(ids.index(id), f"key {id}")
    typer.echo(f"Key {id} opens nothing any more.")


def _check(path: Path) -> None:
    """Raises: ValueError."""
    from gateway.config.auth import read_key_file
    from gateway.yaml.readers import Reading

    reading = Reading()
    try:
        read_key_file(path, reading)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"the file of keys {path} cannot be read: {error}") from error
    if reading.problems:
        raise ValueError("\n".join(map(str, reading.problems)))
