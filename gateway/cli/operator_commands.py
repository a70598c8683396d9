"""Commands about a running gateway: requests under way, the log level, the audit, limits, budgets."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from gateway.cli.admin_client import Gateway, GatewayTyper, Row, moment, print_table

Reason = Annotated[str, typer.Option("--reason", help="The reason, for the audit and the versions of the rules.")]


def page(gateway: Gateway) -> None:
    """Print a link to the page that signs a browser in, once and within ten minutes.

    It is for gateways without --admin-keys; where there are keys, the page asks for one.
    """
    token = gateway.call("POST", "sign-in-tokens")["token"]
    typer.echo(f"{gateway.shown_address}/#token={token}")


def requests(
    gateway: Gateway,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Number of the oldest requests.")] = 50,
) -> None:
    """Show the requests under way, the oldest first, and what each waits for.

    reading: the rest of the request; limited: its turn; connecting: the engine's connection; asking: the first byte of
    the reply; answering: the end of the reply.
    """
    columns = ("id", "age", "stage", "protocol", "path", "model", "route", "arm", "engine", "endpoint", "peer")
    result = gateway.get("requests", query={"limit": limit})["requests"]
    rows: list[Row] = [(each["id"], f"{each['age']:.1f} s", *[each[name] for name in columns[2:]]) for each in result]
    print_table(columns, rows, "No request is under way.")


def cancel(
    gateway: Gateway,
    id: Annotated[str, typer.Argument(help="The request, as `pointsman requests` shows it, or its x-request-id.")],
) -> None:
    """Cancel a request: its engine is notified at once, and its client gets status 499 or CANCELLED."""
    result = gateway.call("DELETE", "requests", id)
    number = result["cancelled"]
    typer.echo(f"{id} is cancelled{'' if number == 1 else f' ({number} requests)'}.")


def audit(
    gateway: Gateway,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of the latest calls.")] = 50,
) -> None:
    """Show what can change something, the latest first: calls of the admin API, and operations of the inference ports
    that change engines."""
    rows: list[Row] = []
    for each in gateway.get("audit", query={"limit": limit})["audit"]:
        query = "".join(f" {name}={value}" for name, value in each["query"].items())
        body = "" if each["body"] is None else json.dumps(each["body"], ensure_ascii=False)
        status = Text(str(each["status"]), style="green" if each["status"] < 400 else "red")
        who = moment(each["time"]), each["name"], each["role"], each["peer"]
        rows.append((*who, each["method"], each["path"] + query, status, body))
    columns = ("when", "who", "role", "from", "method", "what", "status", "body")
    print_table(columns, rows, "Nothing has been changed yet.")


def log_level(
    gateway: Gateway,
    level: Annotated[
        Literal["debug", "info", "warning", "error"] | None, typer.Argument(help="The new level; none: show it.")
    ] = None,
    reason: Reason = "",
) -> None:
    """Show or set the log level of a running gateway, until it ends."""
    if level is None:
        result = gateway.get("log-level")
    else:
        result = gateway.call("PUT", "log-level", body={"level": level, "reason": reason})
    typer.echo(result["level"])


limits = GatewayTyper(help="Show limits, or change their amounts, as a new version of the rules.")

_AMOUNTS = {
    "requests_per_second": "{:g} requests/s",
    "burst": "{} at once",
    "tokens_per_minute": "{} tokens/min",
    "concurrency": "{} at the same time",
}


@limits.callback(invoke_without_command=True)
def show_limits(gateway: Gateway, context: typer.Context) -> None:
    """Show limits, or change their amounts, as a new version of the rules."""
    if context.invoked_subcommand is not None:
        return
    rows: list[Row] = []
    for limit in gateway.get("limits")["limits"]:
        allowed = ", ".join(text.format(limit[name]) for name, text in _AMOUNTS.items() if name in limit)
        per = f"per {', '.join(limit['per'])}" if limit["per"] else "all together"
        counts = (str(limit[name]) for name in ("admitted", "refused", "waited", "accounts"))
        rows.append((limit["name"], ", ".join(limit["routes"]) or "all", per, allowed, *counts))
    columns = ("limit", "routes", "per", "allows", "admitted", "refused", "waited", "accounts")
    print_table(columns, rows, "The rules name no limit.")


@limits.command("set")
def set_limit(
    gateway: Gateway,
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
) -> None:
    """Change a limit's amounts; the others stay. The change applies at once, in all workers."""
    amounts = {
        "requests_per_second": requests_per_second,
        "burst": burst,
        "tokens_per_minute": tokens_per_minute,
        "concurrency": concurrency,
        "max_wait": max_wait,
    }
    changes: dict[str, Any] = {field: value for field, value in amounts.items() if value is not None}
    for field in without or ():
        if field not in amounts:
            raise typer.BadParameter(f"{field!r} is no amount of a limit: {', '.join(amounts)}")
        changes[field] = None
    result = gateway.call("PUT", "limits", name, body=changes | {"reason": reason})
    typer.echo(f"Limit {name} is changed: rules {result['version']['number']}.")


budgets = GatewayTyper(help="Show what keys and tenants have used of their budgets, or have one start over.")


@budgets.callback(invoke_without_command=True)
def show_budgets(
    gateway: Gateway,
    context: typer.Context,
    account: Annotated[str | None, typer.Option(help="Only accounts with this value, such as a tenant.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Accounts of each budget: the fullest.")] = 20,
) -> None:
    """Show what keys and tenants have used of their budgets, or have one start over."""
    if context.invoked_subcommand is not None:
        return
    rows: list[Row] = []
    query = {"limit": limit} | ({"account": account} if account is not None else {})
    for budget in gateway.get("budgets", query=query)["budgets"]:
        for each in budget["shown"]:
            spent, allowed = each["spent"], each["allowed"]
            used = ", ".join(f"{spent[unit]:,.12g} of {amount:,.12g} {unit}" for unit, amount in allowed.items())
            share = Text(f"{each['used']:.0%}", style="red" if each["used"] >= 1 else "")
            rows.append((budget["name"], each["who"], used, share, f"{budget['reset']}"))
    print_table(("budget", "account", "used", "share", "resets at"), rows, "No budget has been used in its window.")


@budgets.command("reset")
def reset_budget(
    gateway: Gateway,
    name: Annotated[str, typer.Argument(help="The budget, as the rules name it.")],
    account: Annotated[
        list[str] | None, typer.Argument(help="The account: its tenant, key, ..., in the order of `per`.")
    ] = None,
    reason: Reason = "",
) -> None:
    """Have one account start over before its window ends, in all gateways of one Redis."""
    result = gateway.call("POST", "budgets", name, "reset", body={"account": account or [], "reason": reason})
    spent = ", ".join(f"{amount:,.12g} {unit}" for unit, amount in result["spent"].items())
    typer.echo(f"Budget {name} of {', '.join(account or []) or 'all'} starts over; it had used {spent}.")
