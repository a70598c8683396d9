"""`pointsman experiments`: the experiments of a running gateway, and commands on their runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.text import Text

from gateway.cli.admin_client import ADMIN, Admin, Key, Row, call, console, no_gateway, print_table, reply

app = typer.Typer(
    help="List or show the experiments of a running gateway; start, stop, ramp, hold, promote or roll back a run; "
    "assign a session to an arm."
)

Name = Annotated[str, typer.Argument(help="The experiment, as the rules name it.")]
Reason = Annotated[str, typer.Option(help="The reason, for the decision log.")]

_COLOURS = {"running": "green", "held": "yellow", "rolled_back": "red", "finished": "bold"}
_NONE = "The rules name no experiment."


@app.callback(invoke_without_command=True)
def _listed(context: typer.Context, admin: Admin = ADMIN, key: Key = "") -> None:
    """List or show the experiments of a running gateway; start, stop, ramp, hold, promote or roll back a run; assign a
    session to an arm. Without a command: list."""
    if context.invoked_subcommand is None:
        list_all(admin, key)


@app.command("list")
def list_all(admin: Admin = ADMIN, key: Key = "") -> None:
    """List all experiments: arms, weights in the rules, shares in force, traffic."""
    columns = ("experiment", "status", "unit", "arm", "engine", "model", "weight", "share", "requests", "errors")
    rows: list[Row] = []
    answer = reply(admin, "GET", "experiments", key=key, timeout=5.0)
    try:
        for experiment in answer.json()["experiments"]:
            for arm in experiment["arms"]:
                where = (arm["engine"], arm["model"] or "as asked", f"{arm['weight']:g}", f"{arm['share']:.1%}")
                counts = (str(arm["requests"]), str(arm["errors"]))
                rows.append((experiment["name"], _status(experiment), experiment["unit"], arm["name"], *where, *counts))
    except (ValueError, KeyError, TypeError) as error:
        raise no_gateway(admin, "/experiments is answered with something else") from error
    print_table(columns, rows, _NONE)


@app.command()
def show(name: Name, admin: Admin = ADMIN, key: Key = "") -> None:
    """Show one experiment: its state, its arms, comparisons and decisions."""
    result = call(admin, "GET", f"experiments/{quote(name, safe='')}", key=key)
    to = console()
    to.print(
        Text(name, style="bold").append("  ").append(_status(result)).append(f"  {result['reason']}", style="not bold")
    )
    if result["next"]:
        to.print(Text(f"waits for {result['next']}" if result["status"] in ("running", "held") else result["next"]))
    arms: list[Row] = [
        (arm["name"], f"{arm['share']:.1%}", str(arm["counts"]["requests"]), str(arm["counts"]["errors"]))
        for arm in result["arms"]
    ]
    print_table(("arm", "share", "requests of this run", "errors"), arms, "It has no arm.")
    found: list[Row] = [
        (arm, each["metric"], _interval(each["control"]), _interval(each["arm"]), _interval(each["difference"]))
        for arm, comparisons in result["comparisons"].items()
        for each in comparisons
    ]
    print_table(("arm", "metric", result["control"], "the arm", "difference"), found, "Nothing is compared yet.")
    bounds: list[Row] = [
        (arm, each["metric"], f"{each['bound']} {each['limit']:g}", _interval(each["value"]), _verdict(each))
        for arm, guardrails in result["guardrails"].items()
        for each in guardrails
    ]
    if bounds:
        print_table(("arm", "guardrail", "bound", "seen", "verdict"), bounds, "")
    decided: list[Row] = [
        (_moment(each["time"]), each["action"], each["by"], each["reason"]) for each in result["decisions"]
    ]
    print_table(("when", "what", "who", "why"), decided, "Nothing was decided yet.")


@app.command()
def start(
    name: Name,
    step: Annotated[int, typer.Option(min=1, help="The first step, counted from 1.")] = 1,
    reason: Reason = "",
    admin: Admin = ADMIN,
    key: Key = "",
) -> None:
    """Start a ramp, or a bandit, without the evidence of earlier runs."""
    _command(admin, key, name, "start", {"reason": reason, "step": step})


@app.command()
def ramp(
    name: Name,
    step: Annotated[int | None, typer.Option(min=1, help="The step, counted from 1; without it: continue.")] = None,
    reason: Reason = "",
    admin: Admin = ADMIN,
    key: Key = "",
) -> None:
    """Go to a step of the ramp, forward or back; without a step: continue after a hold."""
    _command(admin, key, name, "ramp", {"reason": reason, "step": step})


@app.command()
def hold(name: Name, reason: Reason = "", admin: Admin = ADMIN, key: Key = "") -> None:
    """Stay at this step. A guardrail still ends the run."""
    _command(admin, key, name, "hold", {"reason": reason})


@app.command()
def stop(name: Name, reason: Reason = "", admin: Admin = ADMIN, key: Key = "") -> None:
    """End the run: the rules' weights apply."""
    _command(admin, key, name, "stop", {"reason": reason})


@app.command()
def promote(
    name: Name,
    arm: Annotated[str, typer.Argument(help="The arm that gets all units.")],
    reason: Reason = "",
    admin: Admin = ADMIN,
    key: Key = "",
) -> None:
    """End the run: one arm gets all units, and the rules are changed to say so."""
    _command(admin, key, name, "promote", {"reason": reason, "arm": arm})


@app.command()
def rollback(name: Name, reason: Reason = "", admin: Admin = ADMIN, key: Key = "") -> None:
    """End the run: the control gets all units, and the rules are changed to say so."""
    _command(admin, key, name, "rollback", {"reason": reason})


@app.command()
def force(
    name: Name,
    unit: Annotated[str, typer.Argument(help="The session, as its clients name it.")],
    arm: Annotated[str | None, typer.Argument(help="The arm; without it: the arm of its hash.")] = None,
    reason: Reason = "",
    admin: Admin = ADMIN,
    key: Key = "",
) -> None:
    """Assign a session to an arm from its next request on, instead of its hash's."""
    call(admin, "POST", _path(name, "force"), {"unit": unit, "arm": arm, "reason": reason}, key=key)
    typer.echo(
        f"Session {unit!r} has arm '{arm}' of {name}." if arm else f"Session {unit!r} has its own arm of {name}."
    )


def _command(admin: str, key: str, name: str, what: str, body: dict[str, Any]) -> None:
    result = call(admin, "POST", _path(name, what), body, key=key)
    shares = ", ".join(f"{arm['name']} {arm['share']:.4g}" for arm in result["arms"])
    typer.echo(f"{name} is {_status(result).plain}: {shares}.")


def _path(name: str, what: str) -> str:
    return f"experiments/{quote(name, safe='')}/{what}"


def _status(result: dict[str, Any]) -> Text:
    """With the step of a ramp."""
    step = (result.get("ramp") or {}).get("step")
    at = (
        f" at step {step} of {len(result['ramp']['steps'])}" if step and result["status"] in ("running", "held") else ""
    )
    return Text(result["status"].replace("_", " ") + at, style=_COLOURS.get(result["status"], "dim"))


def _interval(interval: list[float | None] | None) -> str:
    """As 0.012 [0.01, 0.02]; a dash where it is unknown."""
    if interval is None or interval[0] is None:
        return "-"
    ends = ("-" if end is None else f"{end:.4g}" for end in interval[1:])
    return f"{interval[0]:.4g} [{', '.join(ends)}]"


def _verdict(result: dict[str, Any]) -> Text:
    if result["breached"]:
        return Text("breached", style="red")
    return Text("kept", style="green") if result["cleared"] else Text("not known yet", style="dim")


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
