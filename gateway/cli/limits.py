"""`pointsman limits`: what limits hold back at a running gateway, and other amounts of theirs."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from gateway.cli.admin_client import ADMIN, Admin, Key, ask, call
from gateway.cli.tables import Row, print_table

app = typer.Typer(help="Show limits, or change what they allow, which is a version of the rules.")

_AMOUNTS = {
    "requests_per_second": "{:g} requests/s",
    "burst": "{} at once",
    "tokens_per_minute": "{} tokens/min",
    "concurrency": "{} at the same time",
}


@app.callback(invoke_without_command=True)
def listed(context: typer.Context, admin: Admin = ADMIN, key: Key = "") -> None:
    """Show limits, or change what they allow, which is a version of the rules."""
    if context.invoked_subcommand is not None:
        return
    rows: list[Row] = []
    for limit in ask(admin, "limits", key=key)["limits"]:
        allowed = ", ".join(text.format(limit[name]) for name, text in _AMOUNTS.items() if name in limit)
        whose = f"per {', '.join(limit['per'])}" if limit["per"] else "all together"
        counts = (str(limit[name]) for name in ("admitted", "refused", "waited", "accounts"))
        rows.append((limit["name"], ", ".join(limit["routes"]) or "all", whose, allowed, *counts))
    columns = ("limit", "routes", "whose", "allows", "admitted", "refused", "waited", "accounts")
    print_table(columns, rows, "The rules name no limit.")


@app.command("set")
def changed(
    name: Annotated[str, typer.Argument(help="The limit, as the rules name it.")],
    requests_per_second: Annotated[float | None, typer.Option(help="Requests a second.")] = None,
    burst: Annotated[int | None, typer.Option(min=1, help="So many of them at once.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1, help="Tokens of language models.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Requests at the same time.")] = None,
    max_wait: Annotated[
        float | None, typer.Option(min=0, help="Seconds for which requests wait for their turn.")
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="AMOUNT", help="Take this one out; may be repeated.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why, for the audit and the versions of the rules.")] = "",
    admin: Admin = ADMIN,
    key: Key = "",
) -> None:
    """Give a limit other amounts; what is not named stays as it is. It holds at once, in all workers."""
    given = {
        "requests_per_second": requests_per_second,
        "burst": burst,
        "tokens_per_minute": tokens_per_minute,
        "concurrency": concurrency,
        "max_wait": max_wait,
    }
    wish: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
    for field in without or ():
        if field not in given:
            raise typer.BadParameter(f"{field!r} is no amount of a limit: {', '.join(given)}")
        wish[field] = None
    told = call(admin, "PUT", f"limits/{quote(name, safe='')}", wish | {"reason": reason}, key=key)
    typer.echo(f"Limit {name} is changed: rules {told['version']['number']}.")
