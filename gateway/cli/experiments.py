"""`pointsman experiments`: what a running gateway knows of its experiments, and what is to become of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.text import Text

from gateway.cli.admin_client import ADMIN, Admin, Key, call, no_gateway, reply
from gateway.cli.tables import Row, console, print_table

app = typer.Typer(
    help="List or show the experiments of a running gateway; start, stop, ramp, hold, promote or roll one back; have a "
    "session in an arm."
)

Name = Annotated[str, typer.Argument(help="The experiment, as the rules name it.")]
Reason = Annotated[str, typer.Option(help="Why; it stands in the record.")]

_COLOURS = {"running": "green", "held": "yellow", "rolled_back": "red", "finished": "bold"}
_NONE = "The rules name no experiment."


@app.callback(invoke_without_command=True)
def _listed(context: typer.Context, admin: Admin = ADMIN, key: Key = "") -> None:
    """List or show the experiments of a running gateway; start, stop, ramp, hold, promote or roll one back; have a
    session in an arm. Without a command: list."""
    if context.invoked_subcommand is None:
        list_all(admin, key)


@app.command("list")
def list_all(admin: Admin = ADMIN, key: Key = "") -> None:
    """List all of them: arms, weights in the rules, shares in force, traffic."""
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
    """Show one: where it stands, what is known of its arms, what was decided."""
    told = call(admin, "GET", f"experiments/{quote(name, safe='')}", key=key)
    to = console()
    to.print(
        Text(name, style="bold").append("  ").append(_status(told)).append(f"  {told['reason']}", style="not bold")
    )
    if told["next"]:
        to.print(Text(f"waits for {told['next']}" if told["status"] in ("running", "held") else told["next"]))
    arms: list[Row] = [
        (arm["name"], f"{arm['share']:.1%}", str(arm["counts"]["requests"]), str(arm["counts"]["errors"]))
        for arm in told["arms"]
    ]
    print_table(("arm", "share", "requests of this run", "errors"), arms, "It has no arm.")
    found: list[Row] = [
        (arm, each["metric"], _interval(each["control"]), _interval(each["arm"]), _interval(each["difference"]))
        for arm, comparisons in told["comparisons"].items()
        for each in comparisons
    ]
    print_table(("arm", "metric", told["control"], "the arm", "difference"), found, "Nothing is compared yet.")
    bounds: list[Row] = [
        (arm, each["metric"], f"{each['bound']} {each['limit']:g}", _interval(each["value"]), _verdict(each))
        for arm, guardrails in told["guardrails"].items()
        for each in guardrails
    ]
    if bounds:
        print_table(("arm", "guardrail", "bound", "seen", "verdict"), bounds, "")
    decided: list[Row] = [
        (_moment(each["time"]), each["action"], each["by"], each["reason"]) for each in told["decisions"]
    ]
    print_table(("when", "what", "who", "why"), decided, "Nothing was decided yet.")


@app.command()
def start(
    name: Name,
    step: Annotated[int, typer.Option(min=1, help="Where to begin, counted from 1.")] = 1,
    reason: Reason = "",
    admin: Admin = ADMIN,
    key: Key = "",
) -> None:
    """Begin a ramp, or a bandit; what was known of an earlier run does not count."""
    _tell(admin, key, name, "start", {"reason": reason, "step": step})


@app.command()
def ramp(
    name: Name,
    step: Annotated[int | None, typer.Option(min=1, help="Which step, counted from 1; without: go on.")] = None,
    reason: Reason = "",
    admin: Admin = ADMIN,
    key: Key = "",
) -> None:
    """Go to a step of the ramp, forward or back; without one: go on after a hold."""
    _tell(admin, key, name, "ramp", {"reason": reason, "step": step})


@app.command()
def hold(name: Name, reason: Reason = "", admin: Admin = ADMIN, key: Key = "") -> None:
    """Stay at this step. Harm still ends the run."""
    _tell(admin, key, name, "hold", {"reason": reason})


@app.command()
def stop(name: Name, reason: Reason = "", admin: Admin = ADMIN, key: Key = "") -> None:
    """End the run: the rules' weights are in force."""
    _tell(admin, key, name, "stop", {"reason": reason})


@app.command()
def promote(
    name: Name,
    arm: Annotated[str, typer.Argument(help="The arm that gets all.")],
    reason: Reason = "",
    admin: Admin = ADMIN,
    key: Key = "",
) -> None:
    """End the run: one arm has all, and the rules say so."""
    _tell(admin, key, name, "promote", {"reason": reason, "arm": arm})


@app.command()
def rollback(name: Name, reason: Reason = "", admin: Admin = ADMIN, key: Key = "") -> None:
    """End the run: the control has all, and the rules say so."""
    _tell(admin, key, name, "rollback", {"reason": reason})


@app.command()
def force(
    name: Name,
    unit: Annotated[str, typer.Argument(help="The session, as its clients name it.")],
    arm: Annotated[str | None, typer.Argument(help="The arm; without one: the arm that falls to it.")] = None,
    reason: Reason = "",
    admin: Admin = ADMIN,
    key: Key = "",
) -> None:
    """Have a session in an arm from its next request on, whatever its hash says."""
    call(admin, "POST", _path(name, "force"), {"unit": unit, "arm": arm, "reason": reason}, key=key)
    typer.echo(
        f"Session {unit!r} has arm '{arm}' of {name}." if arm else f"Session {unit!r} has its own arm of {name}."
    )


def _tell(admin: str, key: str, name: str, what: str, wish: dict[str, Any]) -> None:
    told = call(admin, "POST", _path(name, what), wish, key=key)
    shares = ", ".join(f"{arm['name']} {arm['share']:.4g}" for arm in told["arms"])
    typer.echo(f"{name} is {_status(told).plain}: {shares}.")


def _path(name: str, what: str) -> str:
    return f"experiments/{quote(name, safe='')}/{what}"


def _status(told: dict[str, Any]) -> Text:
    """With the step, where a ramp is at one."""
    step = (told.get("ramp") or {}).get("step")
    at = f" at step {step} of {len(told['ramp']['steps'])}" if step and told["status"] in ("running", "held") else ""
    return Text(told["status"].replace("_", " ") + at, style=_COLOURS.get(told["status"], "dim"))


def _interval(found: list[float | None] | None) -> str:
    """As 0.012 [0.01, 0.02]; what is unknown is a dash."""
    if found is None or found[0] is None:
        return "-"
    ends = ("-" if end is None else f"{end:.4g}" for end in found[1:])
    return f"{found[0]:.4g} [{', '.join(ends)}]"


def _verdict(told: dict[str, Any]) -> Text:
    if told["breached"]:
        return Text("breached", style="red")
    return Text("kept", style="green") if told["cleared"] else Text("not known yet", style="dim")


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
