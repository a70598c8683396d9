"""`pointsman engines` and `pointsman experiments`: what a running gateway knows, as tables."""

from __future__ import annotations

from typing import Annotated, Any

import typer

Admin = Annotated[
    str, typer.Option(metavar="URL", help="The admin address of a running gateway, as `pointsman serve` prints it.")
]
_COLOURS = {"ready": "green", "unready": "yellow", "down": "red"}
_ADMIN = "http://127.0.0.1:8002"


def engines(admin: Admin = _ADMIN) -> int:
    """Show the engines of a running gateway: endpoints, health, load."""
    columns = ("engine", "endpoint", "condition", "breaker", "in flight", "requests", "errors")
    rows: list[tuple[str, ...]] = []
    for engine in _ask(admin, "engines"):
        for endpoint in engine["endpoints"]:
            condition = endpoint["condition"]
            health = f"[{_COLOURS.get(condition, 'dim')}]{condition}[/]"
            breaker = "[red]open[/]" if endpoint["breaker_open"] else "closed"
            counts = (str(endpoint[name]) for name in ("in_flight", "requests", "errors"))
            rows.append((engine["name"], endpoint["url"], health, breaker, *counts))
    _print(columns, rows, "The rules name no engine.")
    return 0


def experiments(admin: Admin = _ADMIN) -> int:
    """Show the experiments of a running gateway: arms, weights, traffic."""
    columns = ("experiment", "unit", "arm", "engine", "model", "share", "requests", "errors")
    rows: list[tuple[str, ...]] = []
    for experiment in _ask(admin, "experiments"):
        for arm in experiment["arms"]:
            where = (arm["engine"], arm["model"] or "as asked", f"{arm['share']:.1%}")
            counts = (str(arm["requests"]), str(arm["errors"]))
            rows.append((experiment["name"], experiment["unit"], arm["name"], *where, *counts))
    _print(columns, rows, "The rules name no experiment.")
    return 0


def _ask(admin: str, what: str) -> list[dict[str, Any]]:
    import httpx

    try:
        response = httpx.get(f"{admin.rstrip('/')}/{what}", timeout=5.0, trust_env=False)
        response.raise_for_status()
        answer: list[dict[str, Any]] = response.json()[what]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError) as error:
        typer.echo(
            f"No gateway answers at {admin} ({error}). Name the admin port of a running one: --admin URL", err=True
        )
        raise typer.Exit(1) from error
    return answer


def _print(columns: tuple[str, ...], rows: list[tuple[str, ...]], nothing: str) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not rows:
        console.print(nothing)
        return
    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    console.print(table)
