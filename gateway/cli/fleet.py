"""`pointsman engines` and `pointsman experiments`: what a running gateway knows, as tables; `pointsman drain`: which
endpoint is to get no new work."""

from __future__ import annotations

import getpass
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

Admin = Annotated[
    str, typer.Option(metavar="URL", help="The admin address of a running gateway, as `pointsman serve` prints it.")
]
# A cell is a Text where it has a colour; names and addresses are never read as rich's markup: [fe80::1] would be.
Row = tuple[str | Text, ...]

_ADMIN = "http://127.0.0.1:8002"
_COLOURS = {"ready": "green", "unready": "yellow", "down": "red"}
# A pipe has no width; rich would take 80 columns and fold the addresses that a script looks for.
_PIPE_COLUMNS = 400


def engines(admin: Admin = _ADMIN) -> int:
    """Show the engines of a running gateway: endpoints, health, what they say of their load and their models."""
    columns = ("engine", "endpoint", "condition", "breaker", "in flight", "its load", "requests", "errors", "models")
    rows: list[Row] = []
    for engine in _ask(admin, "engines"):
        for endpoint in engine["endpoints"]:
            condition = endpoint["condition"]
            health = Text(condition, style=_COLOURS.get(condition, "dim"))
            if endpoint["draining"] is not None:
                health = Text(f"{condition}, drained", style="yellow")
            breaker = Text("open", style="red") if endpoint["breaker_open"] else Text("closed")
            in_flight, requests, errors = (str(endpoint[name]) for name in ("in_flight", "requests", "errors"))
            load, models = _load(endpoint["load"]), ", ".join(endpoint["models"])
            rows.append((engine["name"], endpoint["url"], health, breaker, in_flight, load, requests, errors, models))
    _print(columns, rows, "The rules name no engine.")
    return 0


def experiments(admin: Admin = _ADMIN) -> int:
    """Show the experiments of a running gateway: arms, weights, traffic."""
    columns = ("experiment", "unit", "arm", "engine", "model", "weight", "share", "requests", "errors")
    rows: list[Row] = []
    for experiment in _ask(admin, "experiments"):
        for arm in experiment["arms"]:
            where = (arm["engine"], arm["model"] or "as asked", f"{arm['weight']:g}", f"{arm['share']:.1%}")
            counts = (str(arm["requests"]), str(arm["errors"]))
            rows.append((experiment["name"], experiment["unit"], arm["name"], *where, *counts))
    _print(columns, rows, "The rules name no experiment.")
    return 0


def drain(
    engine: Annotated[str, typer.Argument(help="The engine, as the rules name it.")],
    url: Annotated[str, typer.Argument(help="Its endpoint, as `pointsman engines` shows it.")],
    undo: Annotated[bool, typer.Option("--undo", help="Have it get new work again.")] = False,
    admin: Admin = _ADMIN,
) -> int:
    """Have an endpoint of a running gateway get no new work: sessions move elsewhere, what is under way ends there.

    With Redis all replicas of the gateway do so, and do so after a restart; without it, this one until it stops.
    """
    wish = {"url": url, "by": f"{getpass.getuser()} by the command line"}
    told = _tell(admin, f"engines/{quote(engine, safe='')}/endpoints/{'undrain' if undo else 'drain'}", wish)
    where = "at every replica" if told["shared"] else "at this gateway alone, since Redis is not there"
    typer.echo(f"{url} of {engine} {'gets new work again' if undo else 'gets no new work'}, {where}.")
    return 0


def _load(load: dict[str, Any] | None) -> str:
    """What an engine says of its load, as "3 run, 1 waits, 40% of KV"; empty where it does not tell."""
    if load is None:
        return ""
    kv_use = "" if load["kv_use"] is None else f", {load['kv_use']:.0%} of KV"
    return f"{load['running']:g} run, {load['waiting']:g} wait{kv_use}"


def _ask(admin: str, what: str) -> list[dict[str, Any]]:
    """The gateway's list of `what`; where there is none, one line says so and the command ends with 1."""
    import httpx

    try:
        response = httpx.get(f"{admin.rstrip('/')}/{what}", timeout=5.0, trust_env=False)
        response.raise_for_status()
        answer: list[dict[str, Any]] = response.json()[what]
    except httpx.HTTPStatusError as error:
        raise _no_gateway(admin, f"/{what} is answered {error.response.status_code}") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise _no_gateway(admin, str(error) or type(error).__name__) from error
    except (ValueError, KeyError, TypeError) as error:
        raise _no_gateway(admin, f"/{what} is answered with something else") from error
    return answer


def _tell(admin: str, what: str, wish: dict[str, str]) -> dict[str, Any]:
    """The gateway's answer to a wish; where it refuses, one line says why and the command ends with 1."""
    import httpx

    try:
        response = httpx.post(f"{admin.rstrip('/')}/{what}", json=wish, timeout=10.0, trust_env=False)
        answer: dict[str, Any] = response.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise _no_gateway(admin, str(error) or type(error).__name__) from error
    if response.status_code != 200:
        typer.echo(f"Refused: {answer.get('detail', response.status_code)}", err=True)
        raise typer.Exit(1)
    return answer


def _no_gateway(admin: str, why: str) -> typer.Exit:
    typer.echo(f"No gateway answers at {admin} ({why}). Name the admin port of a running one: --admin URL", err=True)
    return typer.Exit(1)


def _print(columns: tuple[str, ...], rows: list[Row], nothing: str) -> None:
    console = Console()
    if not console.is_terminal:
        console.width = _PIPE_COLUMNS
    if not rows:
        console.print(nothing)
        return
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")  # a narrow terminal shows an address in two lines, never half of it
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    console.print(table)
