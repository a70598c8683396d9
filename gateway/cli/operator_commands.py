"""Commands that run a gateway by its admin API: requests under way, models, endpoints, the log's level, the audit."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from urllib.parse import quote

import typer
from rich.text import Text

from gateway.cli.admin_client import ADMIN, Admin, Key, ask, call, reply
from gateway.cli.tables import Row, print_table

# Loading a model at all replicas can take minutes.
_LOAD_SECONDS = 660.0

Why = Annotated[str, typer.Option("--reason", help="Why, for the audit and the versions of the rules.")]

endpoints = typer.Typer(
    help="Add, remove or weigh an engine's endpoints. Each is a version of the rules, which can be taken back."
)


def requests(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="So many of the oldest.")] = 50,
    admin: Admin = ADMIN,
    key: Key = "",
) -> int:
    """Show the requests under way, the oldest first: where each is, and what it waits for.

    reading: the rest of the request; limited: its turn; connecting: the engine's connection; asking: the first byte of
    the reply; answering: its end.
    """
    columns = ("id", "age", "stage", "protocol", "path", "model", "route", "arm", "engine", "endpoint", "peer")
    told = ask(admin, f"requests?limit={limit}", key=key)["requests"]
    rows: list[Row] = [(each["id"], f"{each['age']:.1f} s", *[each[name] for name in columns[2:]]) for each in told]
    print_table(columns, rows, "No request is under way.")
    return 0


def cancel(
    id: Annotated[str, typer.Argument(help="The request, as `pointsman requests` shows it, or its x-request-id.")],
    admin: Admin = ADMIN,
    key: Key = "",
) -> int:
    """End a request: its engine is told at once, and its client reads that it was cancelled (499, CANCELLED)."""
    told = call(admin, "DELETE", f"requests/{quote(id, safe='')}", key=key)
    number = told["cancelled"]
    typer.echo(f"{id} is cancelled{'' if number == 1 else f' ({number} requests)'}.")
    return 0


def models(admin: Admin = ADMIN, key: Key = "") -> int:
    """Show every model that an engine knows, and at which endpoints it is ready."""
    told = ask(admin, "models", key=key, timeout=30.0)
    rows: list[Row] = []
    for model in told["models"]:
        for engine in model["engines"]:
            for each in engine["endpoints"]:
                state = Text(each["state"].lower(), style="green" if each["ready"] else "yellow")
                versions = ", ".join(each["versions"])
                rows.append((model["name"], engine["engine"], each["url"], state, versions, each["reason"]))
    print_table(("model", "engine", "endpoint", "state", "versions", "why"), rows, "No engine tells of a model.")
    for each in told["unanswered"]:
        typer.echo(f"{each['url']} of {each['engine']} does not tell: {each['detail']}", err=True)
    return 0


Model = Annotated[str, typer.Argument(help="The model, as clients name it; with --engine, as that engine does.")]
Engine = Annotated[str, typer.Option(help="At this engine alone; else wherever the rules lead.")]
Quorum = Annotated[str, typer.Option(metavar="all|majority|N", help="How many endpoints must have done it.")]


def load(
    model: Model,
    engine: Engine = "",
    quorum: Quorum = "all",
    parameter: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="For the engines, as V2's load takes it.")
    ] = None,
    reason: Why = "",
    admin: Admin = ADMIN,
    key: Key = "",
) -> int:
    """Load a model at all replicas at the same time, and tell what became of it at each; 1 where too few have it."""
    return _control("load", model, engine, quorum, parameter or [], reason, admin, key)


def unload(
    model: Model, engine: Engine = "", quorum: Quorum = "all", reason: Why = "", admin: Admin = ADMIN, key: Key = ""
) -> int:
    """Unload a model at all replicas at the same time, and tell what became of it at each."""
    return _control("unload", model, engine, quorum, [], reason, admin, key)


def _control(
    verb: str, model: str, engine: str, quorum: str, parameters: list[str], reason: str, admin: str, key: str
) -> int:
    wish: dict[str, Any] = {"quorum": int(quorum) if quorum.isdigit() else quorum, "reason": reason}
    if engine:
        wish["engine"] = engine
    if parameters:
        wish["parameters"] = dict(map(_parameter, parameters))
    path = f"models/{quote(model, safe='')}/{verb}"
    answer = reply(admin, "POST", path, wish, key=key, timeout=_LOAD_SECONDS, accepted=(409,))
    told = answer.json()
    rows: list[Row] = []
    for each in told.get("endpoints", ()):
        done = Text("done", style="green") if each["ok"] else Text("failed", style="red")
        rows.append((each["engine"], each["url"], each["model"], done, f"{each['seconds']:.1f} s", each["detail"]))
    print_table(("engine", "endpoint", "its name there", verb, "took", "why"), rows, "No endpoint was asked.")
    if answer.status_code == 409:
        typer.echo(told["detail"], err=True)
        return 1
    return 0


def _parameter(text: str) -> tuple[str, Any]:
    """A name, and a value that is JSON where it reads as that."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{text!r} is no NAME=VALUE")
    try:
        found = json.loads(value)
    except ValueError:
        return name, value
    return name, found if isinstance(found, bool | int | str) else value


def audit(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="So many of the latest.")] = 50,
    admin: Admin = ADMIN,
    key: Key = "",
) -> int:
    """Show who has changed what, the latest first: each call of the admin API that is no reading one."""
    rows: list[Row] = []
    for each in ask(admin, f"audit?limit={limit}", key=key)["audit"]:
        when = datetime.fromtimestamp(each["time"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        query = "".join(f" {name}={value}" for name, value in each["query"].items())
        body = "" if each["body"] is None else json.dumps(each["body"], ensure_ascii=False)
        status = Text(str(each["status"]), style="green" if each["status"] < 400 else "red")
        rows.append((when, each["name"], each["role"], each["method"], each["path"] + query, status, body))
    print_table(("when", "who", "role", "method", "what", "status", "body"), rows, "Nothing has been changed yet.")
    return 0


def log_level(
    level: Annotated[
        Literal["debug", "info", "warning", "error"] | None, typer.Argument(help="From here on; none: tell.")
    ] = None,
    reason: Why = "",
    admin: Admin = ADMIN,
    key: Key = "",
) -> int:
    """Show or set from which level on a running gateway logs: its control process and all workers, until it ends."""
    if level is None:
        told = ask(admin, "log-level", key=key)
    else:
        told = call(admin, "PUT", "log-level", {"level": level, "reason": reason}, key=key)
    typer.echo(told["level"])
    return 0


# Endpoints

EngineName = Annotated[str, typer.Argument(help="The engine, as the rules name it.")]
Url = Annotated[str, typer.Argument(help="http://host:port, or grpc://host:port where it has no REST.")]


@endpoints.command("add")
def add_endpoint(
    engine: EngineName,
    url: Url,
    grpc: Annotated[str, typer.Option(metavar="HOST:PORT", help="Its gRPC, where it has both.")] = "",
    weight: Annotated[float | None, typer.Option(min=0, help="Its share of the work beside the others'.")] = None,
    reason: Why = "",
    admin: Admin = ADMIN,
    key: Key = "",
) -> None:
    """Add one; it gets work once it is ready."""
    wish = {"url": url, "grpc": grpc or None, "weight": weight, "reason": reason}
    told = call(admin, "POST", _endpoints(engine), wish, key=key)
    typer.echo(f"{url} is added to {engine}: rules {told['version']['number']}.")


@endpoints.command("remove")
def remove_endpoint(engine: EngineName, url: Url, reason: Why = "", admin: Admin = ADMIN, key: Key = "") -> None:
    """Remove one; what is under way there ends."""
    path = f"{_endpoints(engine)}?url={quote(url, safe='')}&reason={quote(reason, safe='')}"
    told = call(admin, "DELETE", path, key=key)
    typer.echo(f"{url} is removed from {engine}: rules {told['version']['number']}.")


@endpoints.command("weight")
def weigh_endpoint(
    engine: EngineName,
    url: Url,
    weight: Annotated[float, typer.Argument(min=0, help="Beside the others'; 0: as if it were drained.")],
    reason: Why = "",
    admin: Admin = ADMIN,
    key: Key = "",
) -> None:
    """Give one another share of its engine's work."""
    wish = {"url": url, "weight": weight, "reason": reason}
    told = call(admin, "POST", f"{_endpoints(engine)}/weight", wish, key=key)
    typer.echo(f"{url} of {engine} has weight {weight:g}: rules {told['version']['number']}.")


def _endpoints(engine: str) -> str:
    return f"engines/{quote(engine, safe='')}/endpoints"
