"""`pointsman shadow`: the shadow reports of a running gateway."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from gateway.cli.admin_client import Gateway, GatewayTyper, Row, print_table

app = GatewayTyper(help="Show how the candidates of mirrored routes compare with the routes' own engines.")

Route = Annotated[str, typer.Argument(help="A route with a 'shadow', as the rules name it.")]

_TENSOR_FIELDS = ("max_absolute", "max_relative", "cosine_distance")
_WORST_SHOWN = 5


@app.command("list")
def list_all(gateway: Gateway) -> None:
    """List mirrored routes and the agreement of their candidates."""
    columns = ("route", "candidate", "sample", "captured", "mirrored", "compared", "agree", "failed", "dropped")
    rows: list[Row] = [
        (
            each["route"],
            _candidate(each),
            f"{each['shadow']['sample']:.4g}",
            str(each["captured"]),
            str(each["mirrored"]),
            str(each["compared"]),
            _agreement(each),
            str(each["candidate_failed"] + each["primary_failed"] + each["both_failed"]),
            str(sum(each["dropped"].values())),
        )
        for each in gateway.get("shadows")["shadows"]
    ]
    print_table(columns, rows, "No route has a shadow.")


@app.command()
def report(
    gateway: Gateway,
    route: Route,
    as_json: Annotated[bool, typer.Option("--json", help="Write the whole report to stdout as JSON.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report as a self-contained page with plots.")
    ] = None,
) -> None:
    """Show a route's report: agreement, distances, and the requests that differ most."""
    if html is not None:
        try:
            html.write_text(gateway.reply("GET", "shadows", route, "report").text, encoding="utf-8")
        except OSError as error:
            typer.echo(f"{html} cannot be written: {error.strerror}", err=True)
            raise typer.Exit(1) from error
        typer.echo(f"{html} is written.", err=True)
    if html is not None and not as_json:
        return
    result = gateway.get("shadows", route)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        _show(result)


@app.command()
def reset(gateway: Gateway, route: Route) -> None:
    """Reset a route's report."""
    gateway.call("DELETE", "shadows", route)
    typer.echo(f"The report of {route} begins anew.")


def _show(result: dict[str, Any]) -> None:
    own = ", ".join(result["primary_engines"]) or "its own engine"
    typer.echo(f"{result['route']}: {own} against {_candidate(result)}")
    failed = {name: result[name] for name in ("candidate_failed", "primary_failed", "both_failed") if result[name]}
    notes = [f"{number} {name.replace('_', ' ')}" for name, number in failed.items()]
    notes += [f"{number} dropped ({reason})" for reason, number in result["dropped"].items()]
    more = f"; {', '.join(notes)}" if notes else ""
    typer.echo(f"{_agreement(result)} of {result['compared']} agree; {result['mirrored']} mirrored{more}")
    rows: list[Row] = [_tensor_row(name, each) for name, each in result["tensors"].items()]
    rows += [_text_row(name, each) for name, each in result["texts"].items()]
    print_table(("output", "agree", "how far", "what else"), rows, "Nothing has been compared yet.")
    worst: list[Row] = [
        (entry["request_id"], entry["model"], each["name"], _worst(each))
        for entry in result["worst"][:_WORST_SHOWN]
        for each in entry["outputs"]
    ]
    if worst:
        print_table(("request", "model", "output", "difference"), worst, "")


def _tensor_row(name: str, result: dict[str, Any]) -> Row:
    far = [f"{field} {_ends(result[field])}" for field in _TENSOR_FIELDS if result[field]["count"]]
    more = [f"{field} {result[field]['mean']:.2%}" for field in ("argmax", "top_k") if result[field]["count"]]
    more += [f"{number} x {problem}" for problem, number in result["problems"].items()]
    return name, _share(result), "; ".join(far), "; ".join(more)


def _text_row(name: str, result: dict[str, Any]) -> Row:
    far = ""
    if result["prefix_share"]["count"]:
        far = f"equal from the begin {result['prefix_share']['mean']:.2%}"
    if result["first_token"]["count"]:
        far += f"; first token that differs {_ends(result['first_token'])}"
    more = [f"{number} x {pair}" for pair, number in result["finishes"].items()]
    more += [f"{number} x {problem}" for problem, number in result["problems"].items()]
    return name, _share(result), far, "; ".join(more)


def _worst(each: dict[str, Any]) -> str:
    if each["problem"] and not each.get("index"):
        return str(each["problem"])
    if "primary" in each:
        return f"{each['index']}: {each['primary']} became {each['candidate']}"
    return f"part at character {each['first_character']}, token {each['first_token']}"


def _ends(result: dict[str, Any]) -> str:
    """A distribution by its median and maximum."""
    return f"{result['p50']:.4g} (most {result['most']:.4g})"


def _share(result: dict[str, Any]) -> Text:
    share = result["agreeing"] / result["compared"] if result["compared"] else 0.0
    return Text(f"{share:.2%}", style="green" if share == 1 else "yellow")


def _agreement(result: dict[str, Any]) -> str:
    return "-" if result["agreement"] is None else f"{result['agreement']:.2%}"


def _candidate(result: dict[str, Any]) -> str:
    shadow = result["shadow"]
    return f"{shadow['engine']}, model {shadow['model']}" if shadow["model"] else str(shadow["engine"])
