"""What an analysis shows while it goes on: a bar and the last figures on a terminal, a line a measurement in a pipe."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from engines.analyze.models import Candidate, Measurement
from engines.analyze.sweep import Sweep, SweepProgress


class SweepDisplay:
    """As a context manager it gives the callbacks of a study."""

    def __init__(self, study: Sweep, console: Console) -> None:
        self._study = study
        self._console = console
        # A bar in a pipe would be one line, at the end.
        self._bar = Bar(
            *(SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("asking the server", total=None)
        self._seen: set[Candidate] = set()

    def __enter__(self) -> SweepProgress:
        self._bar.start()
        return SweepProgress(self._trying, self._measured, self._refused)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _trying(self, candidate: Candidate, concurrency: int) -> None:
        self._seen.add(candidate)
        done = len(self._seen) - 1
        total = max(self._study.num_planned, len(self._seen))
        what = f"{candidate}, {concurrency} at a time"
        self._bar.update(self._task, description=what, completed=done, total=total)

    def _measured(self, measured: Measurement) -> None:
        figures = f"{measured.throughput:,.1f} inferences/s, p99 {measured.latency.p99:.2f} ms"
        errors = (
            f", [red]{measured.num_errors} errors: {escape(measured.error or '')}[/]" if measured.num_errors else ""
        )
        steady = "" if measured.is_steady else ", not steady"
        what = f"{measured.candidate}, {measured.concurrency} at a time: {figures}{steady}"
        self._bar.console.print(f"{escape(what)}{errors}", soft_wrap=True)

    def _refused(self, candidate: Candidate, why: str) -> None:
        self._bar.console.print(f"{escape(f'{candidate}: {why}')}", style="yellow", soft_wrap=True)
