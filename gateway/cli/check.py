"""`pointsman check`: all errors of rule files, printed as a compiler does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gateway.config.rules import LoadedRules, load_rules
from gateway.yaml.problems import Problem, Severity

_COLOURS = {Severity.ERROR: typer.colors.RED, Severity.WARNING: typer.colors.YELLOW}

RulePaths = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH",
        help="Rule files, or directories whose *.yaml and *.yml files are read in name order. Together they form one "
        "set: a route in one file may name an engine of another.",
        show_default=False,
    ),
]


def check(paths: RulePaths) -> int:
    """Check rule files and print all errors and warnings.

    Each line names file, line and column, and suggests a spelling. Environment variables that the files use must be
    set, as for serving, and certificate files must be there. Tests in the files are run; one that fails is an error.
    Exit code: 0 if the rules are valid (warnings are allowed), else 1.
    """
    from gateway.dry_run.guardrail_samples import with_samples
    from gateway.dry_run.hook_check import with_hooks
    from gateway.dry_run.rule_tests import tested
    from gateway.dry_run.tls_check import with_tls_files

    loaded = tested(with_hooks(with_samples(with_tls_files(load_rules(paths)))))
    print_problems(loaded)
    typer.echo(summarize(loaded))
    return 0 if loaded.rules is not None else 1


def print_problems(loaded: LoadedRules) -> None:
    """Print each problem on one line: `file:line:column: error: message`."""
    for problem in loaded.problems:
        typer.echo(_line(problem))


def summarize(loaded: LoadedRules) -> str:
    """The last line: the contents of the rules, or the number of errors."""
    num_errors = len(loaded.errors)
    num_warnings = len(loaded.problems) - num_errors
    warnings = f", {_count(num_warnings, 'warning')}" if num_warnings else ""
    if loaded.rules is None:
        return f"{_count(num_errors, 'error')}{warnings}: refused"
    rules = loaded.rules
    parts = ((rules.engines, "engine"), (rules.routes, "route"), (rules.experiments, "experiment"))
    limits = f", {_count(len(rules.limits), 'limit')}" if rules.limits else ""
    limits += f", {_count(len(rules.budgets), 'budget')}" if rules.budgets else ""
    tests = f", {_count(len(rules.tests), 'test')}" if rules.tests else ""
    return f"{', '.join(_count(len(part), noun) for part, noun in parts)}{limits}{tests}: ok{warnings}"


def _line(problem: Problem) -> str:
    severity = typer.style(problem.severity.value, fg=_COLOURS[problem.severity], bold=True)
    return f"{problem.location}: {severity}: {problem.message}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
