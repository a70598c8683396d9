"""`pointsman doctor`: what works on this machine, and what to do about the rest."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engines.cli.options import refuse

if TYPE_CHECKING:
    from rich.console import Console

    from engines.doctor.finding import Check, Finding

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "bold red", "skipped": "dim"}


def doctor(
    rules: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH", help="Connect to each engine of this rule file or directory; may be given several times."
        ),
    ] = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=URL", help="Connect to this engine as well; may be given several times."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="CHECK", help="Run this check alone; may be given several times.")
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", hidden=True, help="Without effect: the simulator of Metal is a tool of the tests.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.md", help="Write one file to attach to an issue; it has no secrets.")
    ] = None,
) -> int:
    """Examine this machine: Python, limits, Redis, torch, the GPU and its kernels, speed, memory, engines of the rules.

    Each check has a process and a time limit of its own. Nothing is sent anywhere, nothing is changed. Exit code: 0, 1
    where a check failed, 2 where the rules or the options are wrong.
    """
    from rich.console import Console

    from engines.doctor.process import examine

    if rules:
        raise typer.BadParameter("rule files are read by `pointsman doctor`", param_hint="--rules")
    checks = _chosen(endpoint or (), only or ())
    console, progress = Console(highlight=False), Console(stderr=True, highlight=False)
    findings: dict[str, Finding] = {}
    for number, check in enumerate(checks, 1):
        with progress.status(f"{number} of {len(checks)}: {check.name} (up to {check.seconds:g} s)"):
            findings[check.name] = finding = examine(check)
        if not json:
            _show(console, check.name, finding)
    if json:
        _print_json(findings)
    else:
        _show_models(console, findings)
        counts = {status: sum(one.status.value == status for one in findings.values()) for status in _COLOURS}
        console.print(", ".join(f"{number} {status}" for status, number in counts.items() if number))
    if report is not None:
        from engines.doctor.report import markdown

        try:
            report.write_text(markdown(findings))
        except OSError as error:
            refuse("doctor", f"{report}: {error.strerror}")
            return 2
        progress.print(f"written: {report}", markup=False, soft_wrap=True)
    return 1 if any(finding.status.value == "fail" for finding in findings.values()) else 0


def _chosen(endpoints: Iterable[str], only: Iterable[str]) -> list[Check]:
    """Raises: BadParameter."""
    from engines.doctor.finding import CHECKS, endpoint_checks

    named = [(name, url) for name, separator, url in (text.partition("=") for text in endpoints) if separator]
    if len(named) != len(list(endpoints)) or not all("://" in url for _, url in named):
        raise typer.BadParameter("it is NAME=URL: triton=http://10.0.0.7:8000", param_hint="--endpoint")
    checks = [*CHECKS, *endpoint_checks(named)]
    names = [check.name for check in checks]
    for name in only:
        if name not in names:
            raise typer.BadParameter(f"there is no check '{name}'; there are {', '.join(names)}", param_hint="--only")
    return [check for check in checks if not only or check.name in set(only)]


def _show(console: Console, name: str, finding: Finding) -> None:
    from rich.table import Table
    from rich.text import Text

    row = Table.grid(padding=(0, 1))
    row.add_column(width=8)
    row.add_column(width=18)
    row.add_column(overflow="fold")
    status = finding.status.value
    row.add_row(Text(status, style=_COLOURS[status]), Text(name, overflow="fold"), Text(finding.found))
    if finding.cure:
        row.add_row("", "", Text(f"-> {finding.cure}", style="dim" if status == "skipped" else _COLOURS[status]))
    console.print(row)


def _show_models(console: Console, findings: dict[str, Finding]) -> None:
    """Print the table of models that fit."""
    from rich.table import Table
    from rich.text import Text

    if "memory" not in findings or "models" not in (figures := findings["memory"].figures):
        return
    colours = {"fits": "green", "tight": "yellow", "no": "red"}
    kinds = list(next(iter(figures["models"].values())))
    table = Table("model", *kinds, title=f"Models, with one context of {figures['context']:,} tokens (GiB)")
    for name, verdicts in figures["models"].items():
        sizes = figures["gib"][name]
        table.add_row(name, *(Text(f"{verdicts[kind]} {sizes[kind]:.1f}", colours[verdicts[kind]]) for kind in kinds))
    console.print(table)


def _print_json(findings: dict[str, Finding]) -> None:
    from json import dumps

    from engines.doctor.report import redacted_values

    print(dumps(redacted_values({name: finding.to_json() for name, finding in findings.items()}), indent=1))
