"""`pointsman engines`: what a running gateway knows of them, as a table; `pointsman drain`: which endpoint is to get no
new work."""

from __future__ import annotations

import getpass
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.text import Text

from gateway.cli.admin_client import ADMIN, Admin, Key, call, no_gateway, reply
from gateway.cli.tables import Row, print_table

_COLOURS = {"ready": "green", "unready": "yellow", "down": "red"}


def engines(admin: Admin = ADMIN, key: Key = "") -> int:
    """Show the engines of a running gateway: endpoints, health, what they say of their load and their models."""
    where = ("engine", "endpoint", "weight")
    columns = (*where, "condition", "breaker", "in flight", "its load", "requests", "errors", "models")
    rows: list[Row] = []
    for engine in _listed(admin, key, "engines"):
        for endpoint in engine["endpoints"]:
            condition = endpoint["condition"]
            health = Text(condition, style=_COLOURS.get(condition, "dim"))
            if endpoint["draining"] is not None:
                health = Text(f"{condition}, drained", style="yellow")
            breaker = Text("open", style="red") if endpoint["breaker_open"] else Text("closed")
            in_flight, requests, errors = (str(endpoint[name]) for name in ("in_flight", "requests", "errors"))
            load, models = _load(endpoint["load"]), ", ".join(endpoint["models"])
            place = (engine["name"], endpoint["url"], f"{endpoint['weight']:g}")
            rows.append((*place, health, breaker, in_flight, load, requests, errors, models))
    print_table(columns, rows, "The rules name no engine.")
    return 0


def drain(
    engine: Annotated[str, typer.Argument(help="The engine, as the rules name it.")],
    url: Annotated[str, typer.Argument(help="Its endpoint, as `pointsman engines` shows it.")],
    undo: Annotated[bool, typer.Option("--undo", help="Have it get new work again.")] = False,
    admin: Admin = ADMIN,
    key: Key = "",
) -> int:
    """Have an endpoint of a running gateway get no new work: sessions move elsewhere, what is under way ends there.

    With Redis all replicas of the gateway do so, and do so after a restart; without it, this one until it stops.
    """
    wish = {"url": url, "by": f"{getpass.getuser()} by the command line"}
    path = f"engines/{quote(engine, safe='')}/endpoints/{'undrain' if undo else 'drain'}"
    told = call(admin, "POST", path, wish, key=key)
    where = "at every replica" if told["shared"] else "at this gateway alone, since Redis is not there"
    typer.echo(f"{url} of {engine} {'gets new work again' if undo else 'gets no new work'}, {where}.")
    return 0


def _load(load: dict[str, Any] | None) -> str:
    """What an engine says of its load, as "3 run, 1 waits, 40% of KV"; empty where it does not tell."""
    if load is None:
        return ""
    kv_use = "" if load["kv_use"] is None else f", {load['kv_use']:.0%} of KV"
    return f"{load['running']:g} run, {load['waiting']:g} wait{kv_use}"


def _listed(admin: str, key: str, what: str) -> list[dict[str, Any]]:
    """The gateway's list of `what`; where there is none, one line says so and the command ends with 1."""
    answer = reply(admin, "GET", what, key=key, timeout=5.0)
    try:
        listed: list[dict[str, Any]] = answer.json()[what]
    except (ValueError, KeyError, TypeError) as error:
        raise no_gateway(admin, f"/{what} is answered with something else") from error
    return listed
