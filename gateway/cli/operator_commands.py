"""Commands about a running gateway: requests under way, the log level, the audit, limits."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from urllib.parse import quote

import typer
from rich.text import Text

from gateway.cli.admin_client import ADMIN, Admin, Key, Row, call, get_json, print_table

Reason = Annotated[str, typer.Option("--reason", help="The reason, for the audit and the versions of the rules.")]


def requests(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Number of the oldest requests.")] = 50,
    admin: Admin = ADMIN,
    key: Key = "",
) -> int:
    """Show the requests under way, the oldest first, and what each waits for.

    reading: the rest of the request; limited: its turn; connecting: the engine's connection; asking: the first byte of
    the reply; answering: the end of the reply.
    """
    columns = ("id", "age", "stage", "protocol", "path", "model", "route", "arm", "engine", "endpoint", "peer")
    result = get_json(admin, f"requests?limit={limit}", key=key)["requests"]
    rows: list[Row] = [(each["id"], f"{each['age']:.1f} s", *[each[name] for name in columns[2:]]) for each in result]
    print_table(columns, rows, "No request is under way.")
    return 0


def cancel(
    id: Annotated[str, typer.Argument(help="The request, as `pointsman requests` shows it, or its x-request-id.")],
    admin: Admin = ADMIN,
    key: Key = "",
) -> int:
    """Cancel a request: its engine is notified at once, and its client gets status 499 or CANCELLED."""
    result = call(admin, "DELETE", f"requests/{quote(id, safe='')}", key=key)
    number = result["cancelled"]
    typer.echo(f"{id} is cancelled{'' if number == 1 else f' ({number} requests)'}.")
    return 0


def audit(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of the latest calls.")] = 50,
    admin: Admin = ADMIN,
    key: Key = "",
) -> int:
    """Show the calls of the admin API that can change something, the latest first."""
    rows: list[Row] = []
    for each in get_json(admin, f"audit?limit={limit}", key=key)["audit"]:
        when = datetime.fromtimestamp(each["time"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        query = "".join(f" {name}={value}" for name, value in each["query"].items())
        body = "" if each["body"] is None else json.dumps(each["body"], ensure_ascii=False)
        status = Text(str(each["status"]), style="green" if each["status"] < 400 else "red")
        rows.append((when, each["name"], each["role"], each["method"], each["path"] + query, status, body))
    print_table(("when", "who", "role", "method", "what", "status", "body"), rows, "Nothing has been changed yet.")
    return 0


def log_level(
    level: Annotated[
        Literal["debug", "info", "warning", "error"] | None, typer.Argument(help="The new level; none: show it.")
    ] = None,
    reason: Reason = "",
    admin: Admin = ADMIN,
    key: Key = "",
) -> int:
    """Show or set the log level of a running gateway, until it ends."""
    if level is None:
        result = get_json(admin, "log-level", key=key)
    else:
        result = call(admin, "PUT", "log-level", {"level": level, "reason": reason}, key=key)
    typer.echo(result["level"])
    return 0


limits = typer.Typer(help="Show limits, or change their amounts, as a new version of the rules.")

_AMOUNTS = {
    "requests_per_second": "{:g} requests/s",
    "burst": "{} at once",
    "tokens_per_minute": "{} tokens/min",
    "concurrency": "{} at the same time",
}


@limits.callback(invoke_without_command=True)
def show_limits(context: typer.Context, admin: Admin = ADMIN, key: Key = "") -> None:
    """Show limits, or change their amounts, as a new version of the rules."""
    if context.invoked_subcommand is not None:
        return
    rows: list[Row] = []
    for limit in get_json(admin, "limits", key=key)["limits"]:
        allowed = ", ".join(text.format(limit[name]) for name, text in _AMOUNTS.items() if name in limit)
        per = f"per {', '.join(limit['per'])}" if limit["per"] else "all together"
        counts = (str(limit[name]) for name in ("admitted", "refused", "waited", "accounts"))
        rows.append((limit["name"], ", ".join(limit["routes"]) or "all", per, allowed, *counts))
    columns = ("limit", "routes", "per", "allows", "admitted", "refused", "waited", "accounts")
    print_table(columns, rows, "The rules name no limit.")


@limits.command("set")
def set_limit(
    name: Annotated[str, typer.Argument(help="The limit, as the rules name it.")],
    requests_per_second: Annotated[float | None, typer.Option(help="Requests a second.")] = None,
    burst: Annotated[int | None, typer.Option(min=1, help="Requests at once.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1, help="Tokens of language models.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Concurrent requests.")] = None,
    max_wait: Annotated[float | None, typer.Option(min=0, help="Seconds that requests wait for their turn.")] = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="AMOUNT", help="Remove this amount; may be repeated.")
    ] = None,
    reason: Reason = "",
    admin: Admin = ADMIN,
    key: Key = "",
) -> None:
    """Change a limit's amounts; the others stay. The change applies at once, in all workers."""
    given = {
        "requests_per_second": requests_per_second,
        "burst": burst,
        "tokens_per_minute": tokens_per_minute,
        "concurrency": concurrency,
        "max_wait": max_wait,
    }
    changes: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
    for field in without or ():
        if field not in given:
            raise typer.BadParameter(f"{field!r} is no amount of a limit: {', '.join(given)}")
        changes[field] = None
    result = call(admin, "PUT", f"limits/{quote(name, safe='')}", changes | {"reason": reason}, key=key)
    typer.echo(f"Limit {name} is changed: rules {result['version']['number']}.")
