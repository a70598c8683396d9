"""`pointsman keys client`: the API keys of the inference ports, in a file or in Redis."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.admin_client import print_table
from gateway.cli.key_files import Expiry, KeyFile, block, expiry
from gateway.cli.redis_keys import RedisKeys

app = typer.Typer(
    help="Make, list, rotate and remove API keys of clients, by which the inference ports know a caller's tenant. A "
    "key is shown once, when it is made: the file, or Redis, holds only its hash. The rules name the file (`auth: "
    "{keys: FILE}`), or say `auth: {redis_keys: true}`; a running gateway applies changes.",
    no_args_is_help=True,
)

File = Annotated[
    str | None, typer.Option(metavar="FILE", envvar="POINTSMAN_CLIENT_KEYS", help="The file of keys, or --redis.")
]
Redis = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        envvar="POINTSMAN_CLIENT_KEYS_REDIS",
        help="The Redis of the gateways, as in their --redis. Put a URL with a password in the variable.",
    ),
]
Prefix = Annotated[
    str, typer.Option(metavar="NAME", envvar="POINTSMAN_REDIS_PREFIX", help="The gateways' --redis-prefix.")
]
_PREFIX = "pointsman"


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Whose key it is, for people. A name may have several keys.")],
    tenant: Annotated[str, typer.Option(help="The tenant that rules, limits and conversations see.")],
    file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            envvar="POINTSMAN_CLIENT_KEYS",
            help="The file of keys, which is created if needed; - writes the entry to stdout and the key to stderr.",
        ),
    ] = None,
    redis: Redis = None,
    redis_prefix: Prefix = _PREFIX,
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
    _keys(file, redis, redis_prefix, may_be_missing=True).append(entry)
    _show(key, f"This is a key of {name!r}")


@app.command("list")
def list_all(file: File = None, redis: Redis = None, redis_prefix: Prefix = _PREFIX) -> None:
    """List ids, tenants, names and ends."""
    columns = ("id", "tenant", "name", "expires")
    print_table(columns, _keys(file, redis, redis_prefix).entries(*columns), "There is no key: nobody is admitted.")


@app.command()
def remove(
    id: Annotated[str, typer.Argument(help="The key's id.")],
    file: File = None,
    redis: Redis = None,
    redis_prefix: Prefix = _PREFIX,
) -> None:
    """Remove a key: it is refused from then on."""
    _keys(file, redis, redis_prefix).remove("id", id, f"key {id!r}")
    typer.echo(f"Key {id} opens nothing any more.")


@app.command()
def rotate(
    id: Annotated[str, typer.Argument(help="The id of the key that is replaced.")],
    keep: Annotated[str, typer.Option(metavar="WHEN", help="When that key ends: 7d from now, or a time.")] = "7d",
    file: File = None,
    redis: Redis = None,
    redis_prefix: Prefix = _PREFIX,
) -> None:
    """Make another key for the same tenant and name; both are valid until the former ends."""
    from gateway.auth.api_keys import make_key

    try:
        until = expiry(keep)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    key, new_id, digest = make_key()
    _keys(file, redis, redis_prefix).rotate(id, {"id": new_id, "hash": digest}, until)
    _show(key, f"This key replaces {id}, which ends {until}; it is")


def _show(key: str, what: str) -> None:
    typer.echo(key)
    typer.echo(f"{what}, shown once. Use it: authorization: Bearer KEY, or x-api-key: KEY.", err=True)


def _keys(file: str | None, redis: str | None, prefix: str, *, may_be_missing: bool = False) -> KeyFile | RedisKeys:
    """Raises: typer.BadParameter, typer.Exit."""
    if (file is None) == (redis is None):
        what = "--file (POINTSMAN_CLIENT_KEYS), or --redis (POINTSMAN_CLIENT_KEYS_REDIS)"
        raise typer.BadParameter(f"the keys are in one place: give {what}")
    if redis is not None:
        return RedisKeys(redis, prefix)
    assert file is not None
    return KeyFile(Path(file), _check, may_be_missing=may_be_missing)


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
