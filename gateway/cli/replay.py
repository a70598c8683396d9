"""`pointsman replay`: what other rules would have made of recorded traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.check import print_problems, summarize
from gateway.cli.tables import Row, console, print_table
from gateway.config.rules import load_rules
from gateway.config.specs import RulesSpec


def replay(
    recording: Annotated[Path, typer.Argument(help="A recording, as `pointsman recordings fetch` writes it.")],
    rules: Annotated[list[Path], typer.Option(help="The candidate: rule files or directories; may be repeated.")],
    against: Annotated[
        list[Path] | None,
        typer.Option(help="Compare with what these rules say; if not given, with what was decided then."),
    ] = None,
    fail_on_change: Annotated[bool, typer.Option("--fail-on-change", help="Exit with 1 where any changes.")] = False,
) -> int:
    """Decide recorded requests again by other rules, and show what changes. Nothing is sent.

    Where an arm is drawn by chance it is no change that another one is drawn. Exit code: 0, or 1 where the recording or
    the rules cannot be read, or, with --fail-on-change, where a decision changes.
    """
    from gateway.dry_run.replay import RecordingSpoiltError, Replay

    candidate = _load(rules)
    trial = Replay(candidate, _load(against) if against else None)
    try:
        unrecorded = _run(trial, recording)
    except OSError as error:
        typer.echo(f"{recording} cannot be read: {error.strerror}", err=True)
        return 1
    except RecordingSpoiltError as error:
        typer.echo(f"{recording}: {error}", err=True)
        return 1
    print_report({**trial.report(), "unrecorded": unrecorded})
    return 1 if fail_on_change and trial.changed else 0


def print_report(report: dict[str, Any]) -> None:
    """Print a report of a replay, as a run of its own or the admin API tells it."""
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


def _run(trial: Any, recording: Path) -> list[str]:
    """Take all facts, with a bar where somebody watches.

    Raises: OSError, RecordingSpoiltError.
    """
    from rich.progress import Progress

    from gateway.dry_run.replay import read_facts

    with recording.open("rb") as file, Progress(console=console(), transient=True) as progress:
        unrecorded: list[str] = trial.unrecorded(file.readline())
        bar = progress.add_task("replaying", total=recording.stat().st_size)
        file.seek(0)
        for number, fact in enumerate(read_facts(iter(file.readline, b""))):
            trial.take(fact)
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
