"""`pointsman recordings` and `pointsman replay`: recorded traffic of a gateway, to try other rules on."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.admin_client import Gateway, GatewayTyper, Row, console, print_table
from gateway.cli.check import print_problems, summarize
from gateway.config import value_parsers
from gateway.config.rules import load_rules
from gateway.config.specs import RulesSpec

app = GatewayTyper(help="Record the traffic of a running gateway, to try other rules on it.")

Name = Annotated[str, typer.Argument(help="A recording, as `pointsman recordings list` shows it.")]


def _share(text: str) -> float:
    try:
        return value_parsers.share(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@app.command("list")
def listed(gateway: Gateway) -> None:
    """List recordings, the latest first."""
    rows: list[Row] = [
        (
            each["name"],
            datetime.fromtimestamp(each["started"]).isoformat(" ", "seconds"),
            each["by"],
            f"{each['share']:.2%}",
            str(each["facts"]),
            str(each["skipped"]),
            each["ended"] or "it runs",
        )
        for each in gateway.get("recordings")["recordings"]
    ]
    print_table(("recording", "since", "by", "share", "facts", "skipped", "ended"), rows, "There is no recording.")


@app.command()
def start(
    gateway: Gateway,
    name: Annotated[str | None, typer.Argument(help="Its name; by default its time.")] = None,
    sample: Annotated[
        float, typer.Option(parser=_share, metavar="SHARE", help="Share of the requests, as 1% or 0.01.")
    ] = 0.01,
    seconds: Annotated[float, typer.Option(help="Duration.")] = 60.0,
    max_facts: Annotated[int, typer.Option(help="It ends at this number of facts.", min=1)] = 10_000,
) -> None:
    """Record the facts that rules match of a sample of requests, and the decisions: no bodies, and only the headers
    that the rules use."""
    body = {"name": name, "sample": sample, "seconds": seconds, "max_facts": max_facts}
    recording = gateway.call("POST", "recordings", body=body)
    typer.echo(
        f"Recording {recording['name']} takes {sample:.2%} of the requests for {seconds:g} s, {max_facts} at most."
    )


@app.command()
def stop(gateway: Gateway, name: Name) -> None:
    """Stop a recording that runs, or delete one that has ended."""
    result = gateway.call("DELETE", "recordings", name)
    typer.echo(f"Recording {name} is {'deleted' if result['deleted'] else 'stopped'}.")


@app.command()
def fetch(gateway: Gateway, name: Name) -> None:
    """Write a recording to standard output, for `pointsman replay`."""
    answer = gateway.reply("GET", "recordings", name, "file", timeout=60.0)
    sys.stdout.buffer.write(answer.content)


def replay(
    recording: Annotated[Path, typer.Argument(help="A recording, as `pointsman recordings fetch` writes it.")],
    rules: Annotated[list[Path], typer.Option(help="The candidate: rule files or directories; may be repeated.")],
    against: Annotated[
        list[Path] | None,
        typer.Option(help="Compare with the decisions of these rules; by default with the recorded ones."),
    ] = None,
    fail_on_change: Annotated[
        bool, typer.Option("--fail-on-change", help="Exit with 1 if any decision changes.")
    ] = False,
) -> int:
    """Decide recorded requests again by other rules, and show the changes. Nothing is sent.

    Another random arm is not a change. Exit code: 0, or 1 if the recording or the rules cannot be read, or, with
    --fail-on-change, if a decision changes.
    """
    from gateway.dry_run.replay import RecordingSpoiltError, Replay

    candidate = _load(rules)
    dry_run = Replay(candidate, _load(against) if against else None)
    try:
        unrecorded = _run(dry_run, recording)
    except OSError as error:
        typer.echo(f"{recording} cannot be read: {error.strerror}", err=True)
        return 1
    except RecordingSpoiltError as error:
        typer.echo(f"{recording}: {error}", err=True)
        return 1
    print_report({**dry_run.report(), "unrecorded": unrecorded})
    return 1 if fail_on_change and dry_run.changed else 0


def print_report(report: dict[str, Any]) -> None:
    """Print the report of a replay, local or by the admin API."""
    for what, changes in report["changes"].items():
        if changes:
            rows: list[Row] = [
                (each["from"], each["to"], str(each["count"]), ", ".join(map(_example, each["examples"][:2])))
                for each in changes
            ]
            print_table((what, "becomes", "requests", "such as"), rows, "")
    if report["unrecorded"]:
        names = ", ".join(report["unrecorded"])
        typer.echo(
            f"The recording has nothing of headers that the candidate asks for ({names}): they count as missing."
        )
    unknown = (
        f", {report['unknown']} unknown, since what the rules ask for was not recorded" if report["unknown"] else ""
    )
    lost = f", {report['without_route']} now without a route" if report["without_route"] else ""
    time = f"; a decision takes {report['decide_p50']:g} µs" if report["decide_p50"] is not None else ""
    typer.echo(
        f"{report['facts']} facts: {report['unchanged']} unchanged, {report['changed']} changed{lost}{unknown}{time}"
    )


def _run(dry_run: Any, recording: Path) -> list[str]:
    """Take all facts, with a bar on a terminal.

    Raises: OSError, RecordingSpoiltError.
    """
    from rich.progress import Progress

    from gateway.dry_run.replay import read_facts

    with recording.open("rb") as file, Progress(console=console(), transient=True) as progress:
        unrecorded: list[str] = dry_run.unrecorded(file.readline())
        bar = progress.add_task("replaying", total=recording.stat().st_size)
        file.seek(0)
        for number, fact in enumerate(read_facts(iter(file.readline, b""))):
            dry_run.take(fact)
            if number % 512 == 0:
                progress.update(bar, completed=file.tell())
    return unrecorded


def _load(paths: list[Path]) -> RulesSpec:
    loaded = load_rules(paths)
    if loaded.rules is None:
        print_problems(loaded)
        typer.echo(summarize(loaded), err=True)
        raise typer.Exit(1)
    return loaded.rules


def _example(example: dict[str, Any]) -> str:
    headers = ", ".join(f"{name}: {value}" for name, value in example["header"].items())
    session = f", session {example['session']}" if example["session"] else ""
    return f"{example['model']} by {example['protocol']}{session}{f' ({headers})' if headers else ''}"
