"""Commands about the engines of a running gateway: tables, drains, endpoints, models."""

from __future__ import annotations

import getpass
import json
from typing import Annotated, Any

import typer
from rich.text import Text

from gateway.cli.admin_client import Gateway, GatewayTyper, Row, print_table, printable
from gateway.cli.operator_commands import Reason

# Loading a model at all endpoints can take minutes.
_LOAD_SECONDS = 660.0

endpoints = GatewayTyper(
    help="Add, remove or weight an engine's endpoints. Each change is a version of the rules, which can be rolled back."
)

_COLOURS = {"ready": "green", "unready": "yellow", "down": "red"}


def engines(gateway: Gateway) -> None:
    """Show the engines of a running gateway: endpoints, health, reported load and models."""
    where = ("engine", "endpoint", "weight")
    columns = (*where, "condition", "breaker", "in flight", "its load", "requests", "errors", "models")
    rows: list[Row] = []
    for engine in gateway.items("engines"):
        for endpoint in engine["endpoints"]:
            condition = endpoint["condition"]
            health = Text(condition, style=_COLOURS.get(condition, "dim"))
            if endpoint["draining"] is not None:
                health = Text(f"{condition}, drained", style="yellow")
            breaker = Text("open", style="red") if endpoint["breaker_open"] else Text("closed")
            in_flight, requests, errors = (str(endpoint[name]) for name in ("in_flight", "requests", "errors"))
            load = _load(endpoint["load"])
            models = ", ".join(endpoint["models"]) if endpoint["lists_models"] else "unknown"
            place = (engine["name"], endpoint["url"], f"{endpoint['weight']:g}")
            rows.append((*place, health, breaker, in_flight, load, requests, errors, models))
    print_table(columns, rows, "The rules name no engine.")


def drain(
    gateway: Gateway,
    engine: Annotated[str, typer.Argument(help="The engine, as the rules name it.")],
    url: Annotated[str, typer.Argument(help="Its endpoint, as `pointsman engines` shows it.")],
    undo: Annotated[bool, typer.Option("--undo", help="Send it new work again.")] = False,
) -> None:
    """Drain an endpoint of a running gateway: it gets no new work, sessions move, requests under way end there.

    With Redis this holds at all replicas, and after restarts; without it, at this gateway until it stops.
    """
    body = {"url": url, "by": f"{getpass.getuser()} by the command line"}
    result = gateway.call("POST", "engines", engine, "endpoints", "undrain" if undo else "drain", body=body)
    where = "at every replica" if result["shared"] else "at this gateway alone, since Redis is not there"
    typer.echo(f"{url} of {engine} {'gets new work again' if undo else 'gets no new work'}, {where}.")


def _load(load: dict[str, Any] | None) -> str:
    """An engine's load as "3 run, 1 wait, 40% of KV"; empty where it reports none."""
    if load is None:
        return ""
    kv_use = "" if load["kv_use"] is None else f", {load['kv_use']:.0%} of KV"
    return f"{load['running']:g} run, {load['waiting']:g} wait{kv_use}"


def models(gateway: Gateway) -> None:
    """Show every model of the engines, and the endpoints where it is ready."""
    result = gateway.get("models", timeout=30.0)
    rows: list[Row] = []
    for model in result["models"]:
        for engine in model["engines"]:
            for each in engine["endpoints"]:
                state = Text(each["state"].lower(), style="green" if each["ready"] else "yellow")
                versions = ", ".join(each["versions"])
                rows.append((model["name"], engine["engine"], each["url"], state, versions, each["reason"]))
    print_table(("model", "engine", "endpoint", "state", "versions", "why"), rows, "No engine tells of a model.")
    for each in result["unanswered"]:
        typer.echo(f"{each['url']} of {each['engine']} does not tell: {printable(each['detail'])}", err=True)


Model = Annotated[str, typer.Argument(help="The model's name for clients; with --engine, that engine's name of it.")]
Engine = Annotated[str, typer.Option(help="Only at this engine; else at all engines that the rules lead to.")]
Quorum = Annotated[str, typer.Option(metavar="all|majority|N", help="How many endpoints must succeed.")]


def load(
    gateway: Gateway,
    model: Model,
    engine: Engine = "",
    quorum: Quorum = "all",
    parameter: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A parameter of V2's load.")] = None,
    reason: Reason = "",
) -> int:
    """Load a model at all endpoints at once, and show the results. Exit code: 1 below the quorum."""
    return _control(gateway, "load", model, engine, quorum, parameter or [], reason)


def unload(gateway: Gateway, model: Model, engine: Engine = "", quorum: Quorum = "all", reason: Reason = "") -> int:
    """Unload a model at all endpoints at once, and show the results. Exit code: 1 below the quorum."""
    return _control(gateway, "unload", model, engine, quorum, [], reason)


def _control(
    gateway: Gateway, verb: str, model: str, engine: str, quorum: str, parameters: list[str], reason: str
) -> int:
    body: dict[str, Any] = {"quorum": int(quorum) if quorum.isdigit() else quorum, "reason": reason}
    if engine:
        body["engine"] = engine
    if parameters:
        body["parameters"] = dict(map(_parameter, parameters))
    answer = gateway.reply("POST", "models", model, verb, body=body, timeout=_LOAD_SECONDS, accepted=(409,))
    result = answer.json()
    rows: list[Row] = []
    for each in result.get("endpoints", ()):
        done = Text("done", style="green") if each["ok"] else Text("failed", style="red")
        rows.append((each["engine"], each["url"], each["model"], done, f"{each['seconds']:.1f} s", each["detail"]))
    print_table(("engine", "endpoint", "its name there", verb, "took", "why"), rows, "No endpoint was asked.")
    if answer.status_code == 409:
        typer.echo(printable(result["detail"]), err=True)
        return 1
    return 0


def _parameter(text: str) -> tuple[str, Any]:
    """A name, and a value, parsed where it is JSON."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{text!r} is no NAME=VALUE")
    try:
        found = json.loads(value)
    except ValueError:
        return name, value
    return name, found if isinstance(found, bool | int | str) else value


EngineName = Annotated[str, typer.Argument(help="The engine, as the rules name it.")]
Url = Annotated[str, typer.Argument(help="http://host:port, or grpc://host:port without REST.")]


@endpoints.command("add")
def add_endpoint(
    gateway: Gateway,
    engine: EngineName,
    url: Url,
    grpc: Annotated[str, typer.Option(metavar="HOST:PORT", help="Its gRPC address, where it has both.")] = "",
    weight: Annotated[float | None, typer.Option(min=0, help="Its share of the work, relative to the others.")] = None,
    reason: Reason = "",
) -> None:
    """Add an endpoint; it gets work once it is ready."""
    body = {"url": url, "grpc": grpc or None, "weight": weight, "reason": reason}
    result = gateway.call("POST", "engines", engine, "endpoints", body=body)
    typer.echo(f"{url} is added to {engine}: rules {result['version']['number']}.")


@endpoints.command("remove")
def remove_endpoint(gateway: Gateway, engine: EngineName, url: Url, reason: Reason = "") -> None:
    """Remove an endpoint; requests under way end there."""
    query = {"url": url, "reason": reason}
    result = gateway.reply("DELETE", "engines", engine, "endpoints", query=query).json()
    typer.echo(f"{url} is removed from {engine}: rules {result['version']['number']}.")


@endpoints.command("weight")
def weigh_endpoint(
    gateway: Gateway,
    engine: EngineName,
    url: Url,
    weight: Annotated[float, typer.Argument(min=0, help="Relative to the others; 0: as if drained.")],
    reason: Reason = "",
) -> None:
    """Set an endpoint's share of its engine's work."""
    body = {"url": url, "weight": weight, "reason": reason}
    result = gateway.call("POST", "engines", engine, "endpoints", "weight", body=body)
    typer.echo(f"{url} of {engine} has weight {weight:g}: rules {result['version']['number']}.")
