"""`pointsman recordings`: records of the traffic of a running gateway, to try other rules on."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated
from urllib.parse import quote

import typer

from gateway.cli.admin_client import ADMIN, Admin, Key, ask, call, reply
from gateway.cli.tables import Row, print_table
from gateway.config import value_parsers

app = typer.Typer(help="Records of the traffic of a running gateway, to try other rules on.")

Name = Annotated[str, typer.Argument(help="A recording, as `pointsman recordings list` shows it.")]


def _share(text: str) -> float:
    try:
        return value_parsers.share(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@app.command("list")
def listed(admin: Admin = ADMIN, key: Key = "") -> None:
    """List recordings, the latest first."""
    rows: list[Row] = [
        (
            each["name"],
            datetime.fromtimestamp(each["started"]).isoformat(" ", "seconds"),
            each["by"],
            f"{each['share']:.2%}",
            str(each["facts"]),
            str(each["skipped"]),
            each["ended"] or "it runs",
        )
        for each in ask(admin, "recordings", key=key)["recordings"]
    ]
    print_table(("recording", "since", "by", "share", "facts", "skipped", "ended"), rows, "There is no recording.")


@app.command()
def start(
    name: Annotated[str | None, typer.Argument(help="How to call it; if not given, by its time.")] = None,
    sample: Annotated[
        float, typer.Option(parser=_share, metavar="SHARE", help="Of the requests, as 1% or 0.01.")
    ] = 0.01,
    seconds: Annotated[float, typer.Option(help="How long.")] = 60.0,
    max_facts: Annotated[int, typer.Option(help="It ends when it has so many.", min=1)] = 10_000,
    admin: Admin = ADMIN,
    key: Key = "",
) -> None:
    """Record what rules could ask of a sample of requests, and what they decided. No bodies, and of headers only those
    that rules ask for."""
    wish = {"name": name, "sample": sample, "seconds": seconds, "max_facts": max_facts}
    made = call(admin, "POST", "recordings", wish, key=key)
    typer.echo(f"Recording {made['name']} takes {sample:.2%} of the requests for {seconds:g} s, {max_facts} at most.")


@app.command()
def stop(name: Name, admin: Admin = ADMIN, key: Key = "") -> None:
    """Stop a recording that runs, or delete one that has ended."""
    told = call(admin, "DELETE", f"recordings/{quote(name, safe='')}", key=key)
    typer.echo(f"Recording {name} is {'deleted' if told['deleted'] else 'stopped'}.")


@app.command()
def fetch(name: Name, admin: Admin = ADMIN, key: Key = "") -> None:
    """Write a recording to standard output, for `pointsman replay`."""
    answer = reply(admin, "GET", f"recordings/{quote(name, safe='')}/file", key=key, timeout=60.0)
    sys.stdout.buffer.write(answer.content)
