"""`pointsman experiments`: the experiments of a running gateway, and commands on their runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from gateway.cli.admin_client import Gateway, GatewayTyper, Row, console, moment, print_table, refused
from gateway.cli.experiment_tables import (
    ExperimentTable,
    FormatMissing,
    TableFormat,
    latency_rows,
    outcome_rows,
    result_rows,
    write_table,
)

app = GatewayTyper(
    help="List or show the experiments of a running gateway; start, stop, ramp, hold, promote or roll back a run; "
    "assign a session to an arm; export evidence and results."
)

Name = Annotated[str, typer.Argument(help="The experiment, as the rules name it.")]
Reason = Annotated[str, typer.Option(help="The reason, for the decision log.")]

_COLOURS = {"running": "green", "held": "yellow", "rolled_back": "red", "finished": "bold"}


@app.callback(invoke_without_command=True)
def _listed(gateway: Gateway, context: typer.Context) -> None:
    """List or show the experiments of a running gateway; start, stop, ramp, hold, promote or roll back a run; assign a
    session to an arm; export evidence and results. Without a command: list."""
    if context.invoked_subcommand is None:
        list_all(gateway)


@app.command("list")
def list_all(gateway: Gateway) -> None:
    """List all experiments: arms, weights in the rules, shares in force, traffic."""
    columns = ("experiment", "status", "unit", "arm", "engine", "model", "weight", "share", "requests", "errors")
    rows: list[Row] = []
    for experiment in gateway.items("experiments"):
        for arm in experiment["arms"]:
            where = (arm["engine"], arm["model"] or "as asked", f"{arm['weight']:g}", f"{arm['share']:.1%}")
            counts = (str(arm["requests"]), str(arm["errors"]))
            rows.append((experiment["name"], _status(experiment), experiment["unit"], arm["name"], *where, *counts))
    print_table(columns, rows, "The rules name no experiment.")


@app.command()
def show(gateway: Gateway, name: Name) -> None:
    """Show one experiment: its state, its arms, comparisons and decisions."""
    result = gateway.get("experiments", name)
    to = console()
    to.print(
        Text(name, style="bold").append("  ").append(_status(result)).append(f"  {result['reason']}", style="not bold")
    )
    if result["next"]:
        to.print(Text(f"waits for {result['next']}" if result["status"] in ("running", "held") else result["next"]))
    arms: list[Row] = [
        (
            arm["name"],
            f"{arm['share']:.1%}",
            str(arm["counts"]["requests"]),
            str(arm["counts"]["errors"]),
            str(arm["counts"].get("guessed", 0)),
        )
        for arm in result["arms"]
    ]
    print_table(("arm", "share", "requests of this run", "errors", "guessed, not counted"), arms, "It has no arm.")
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
        (moment(each["time"]), each["action"], each["by"], each["reason"]) for each in result["decisions"]
    ]
    print_table(("when", "what", "who", "why"), decided, "Nothing was decided yet.")


@app.command()
def start(
    gateway: Gateway,
    name: Name,
    step: Annotated[int, typer.Option(min=1, help="The first step, counted from 1.")] = 1,
    reason: Reason = "",
) -> None:
    """Start a ramp, or a bandit, without the evidence of earlier runs."""
    _command(gateway, name, "start", {"reason": reason, "step": step})


@app.command()
def ramp(
    gateway: Gateway,
    name: Name,
    step: Annotated[int | None, typer.Option(min=1, help="The step, counted from 1; without it: continue.")] = None,
    reason: Reason = "",
) -> None:
    """Go to a step of the ramp, forward or back; without a step: continue after a hold."""
    _command(gateway, name, "ramp", {"reason": reason, "step": step})


@app.command()
def hold(gateway: Gateway, name: Name, reason: Reason = "") -> None:
    """Stay at this step. A guardrail still ends the run."""
    _command(gateway, name, "hold", {"reason": reason})


@app.command()
def stop(gateway: Gateway, name: Name, reason: Reason = "") -> None:
    """End the run: the rules' weights apply."""
    _command(gateway, name, "stop", {"reason": reason})


@app.command()
def promote(
    gateway: Gateway,
    name: Name,
    arm: Annotated[str, typer.Argument(help="The arm that gets all units.")],
    reason: Reason = "",
) -> None:
    """End the run: one arm gets all units, and the rules are changed to say so."""
    _command(gateway, name, "promote", {"reason": reason, "arm": arm})


@app.command()
def rollback(gateway: Gateway, name: Name, reason: Reason = "") -> None:
    """End the run: the control gets all units, and the rules are changed to say so."""
    _command(gateway, name, "rollback", {"reason": reason})


@app.command()
def force(
    gateway: Gateway,
    name: Name,
    unit: Annotated[str, typer.Argument(help="The session, as its clients name it.")],
    arm: Annotated[str | None, typer.Argument(help="The arm; without it: the arm of its hash.")] = None,
    tenant: Annotated[str, typer.Option(help="The session's tenant, where the rules have auth.")] = "",
    reason: Reason = "",
) -> None:
    """Assign a session to an arm from its next request on, instead of its hash's."""
    gateway.call(
        "POST", "experiments", name, "force", body={"unit": unit, "tenant": tenant, "arm": arm, "reason": reason}
    )
    typer.echo(
        f"Session {unit!r} has arm '{arm}' of {name}." if arm else f"Session {unit!r} has its own arm of {name}."
    )


@app.command()
def export(
    gateway: Gateway,
    name: Name,
    table: Annotated[
        ExperimentTable,
        typer.Option(
            help="outcomes: exposures, requests, errors, latencies, tokens and feedback by period, arm and bucket of "
            "units; latencies: the histograms of quantiles; results: estimates, intervals and p-values."
        ),
    ] = ExperimentTable.OUTCOMES,
    file_format: Annotated[TableFormat, typer.Option("--format", help="Parquet needs pyarrow.")] = TableFormat.JSONL,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file to write; default: standard output.")
    ] = None,
) -> None:
    """Export the evidence or the results of an experiment's run, for a notebook or a warehouse."""
    if table is ExperimentTable.RESULTS:
        rows = result_rows(gateway.get("experiments", name))
    else:
        evidence = gateway.get("experiments", name, "evidence")
        rows = outcome_rows(evidence) if table is ExperimentTable.OUTCOMES else latency_rows(evidence)
    try:
        number = write_table(rows, file_format, output, sys.stdout)
    except (OSError, FormatMissing) as error:
        raise refused(str(error)) from error
    if output is not None:
        typer.echo(f"{number} rows of {table.value} are in {output}.")


def _command(gateway: Gateway, name: str, what: str, body: dict[str, Any]) -> None:
    result = gateway.call("POST", "experiments", name, what, body=body)
    shares = ", ".join(f"{arm['name']} {arm['share']:.4g}" for arm in result["arms"])
    typer.echo(f"{name} is {_status(result).plain}: {shares}.")


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
