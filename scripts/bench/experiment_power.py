"""How often experiments raise a false alarm if they are checked each second, and how soon they detect harm: simulated.

    python scripts/bench/experiment_power.py                   # 1,000 harmless experiments a kind; five minutes
    python scripts/bench/experiment_power.py --experiments 100

No engine is called. Traffic is simulated, counted as the gateway counts it, and judged by gateway/statistics' formulas.
Tables and `experiment_power.json`, `experiment_power.png` in `scripts/bench/results/`. README.md beside this file says
how to read it.
"""

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated

# Started by its path, Python looks for modules in this folder first, where some have names of libraries.
sys.path[0] = str(Path(__file__).resolve().parent.parent)
sys.path.append(str(Path(__file__).resolve().parents[2]))

import json as json_format  # noqa: E402

import numpy as np  # noqa: E402
import typer  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: E402
from rich.table import Table  # noqa: E402

from bench.power_cases import ALPHA, HARMFUL, HARMLESS, first_looks, harmless_checks  # noqa: E402
from bench.power_plot import write_plot  # noqa: E402
from bench.power_traffic import Traffic, requests  # noqa: E402

BATCH = 25

# Case -> check -> the second of the first alarm of each experiment, in seconds; inf for none.
Found = dict[str, dict[str, list[float]]]


def main(
    experiments: Annotated[int, typer.Option(min=BATCH, help="Of each harmless kind; of harmful ones a fifth.")] = 1000,
    only: Annotated[str, typer.Option(help="Simulate kinds with this in their names.")] = "",
    seed: Annotated[int, typer.Option(help="The same seed draws the same traffic.")] = 8,
    processes: Annotated[int, typer.Option(min=1, max=64, help="That simulate at the same time.")] = 2,
    output: Annotated[Path, typer.Option(help="The folder for JSON and plot.")] = Path("scripts/bench/results"),
) -> None:
    """Simulate, and show both tables."""
    harmless = {name: (of, harmless_checks(of)) for name, of in HARMLESS.items() if only in name}
    harmful = {name: (harm.traffic, [harm.check]) for name, harm in HARMFUL.items() if only in name}
    jobs = _jobs("harmless", harmless, experiments, seed) + _jobs("harmful", harmful, experiments // 5, seed + 1)
    found: dict[str, Found] = {"harmless": {}, "harmful": {}}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ProcessPoolExecutor(processes) as pool, Progress(*columns) as progress:
        task = progress.add_task("experiments", total=len(jobs) * BATCH)
        for (kind, name, *_), looks in zip(jobs, pool.map(_simulate, jobs), strict=True):
            for check, seconds in looks.items():
                found[kind].setdefault(name, {}).setdefault(check, []).extend(seconds)
            progress.advance(task, BATCH)
    console = Console(width=max(Console().width, 190))
    console.print(false_alarms(found["harmless"]), power(found["harmful"]))
    if only:
        return
    output.mkdir(parents=True, exist_ok=True)
    told = {"alpha": ALPHA, "experiments": experiments, "seed": seed, "first_alarm_seconds": _without_inf(found)}
    (output / "experiment_power.json").write_text(json_format.dumps(told) + "\n")
    write_plot(found["harmless"], found["harmful"], output / "experiment_power.png")


Job = tuple[str, str, Traffic, list[str], int]


def _jobs(kind: str, cases: dict[str, tuple[Traffic, list[str]]], experiments: int, seed: int) -> list[Job]:
    return [
        (kind, name, of, checks, seed * 1_000_000 + 1000 * number + batch)
        for number, (name, (of, checks)) in enumerate(cases.items())
        for batch in range(max(experiments // BATCH, 1))
    ]


def _simulate(job: Job) -> dict[str, list[float]]:
    _, _, of, checks, seed = job
    seen = requests(of, BATCH, np.random.default_rng(seed))
    return {check: seconds.tolist() for check, seconds in first_looks(of, seen, BATCH, checks).items()}


def false_alarms(found: Found) -> Table:
    """Of experiments without a difference, how many were found different at any of 600 looks."""
    checks = list(dict.fromkeys(check for case in found.values() for check in case))
    table = Table("nothing is different", *checks, title=f"False alarms in ten minutes, alpha = {ALPHA:.0%}")
    for name, case in found.items():
        shares = [f"{np.isfinite(case[check]).mean():.1%}" if check in case else "" for check in checks]
        table.add_row(name, *shares)
    return table


def power(found: Found) -> Table:
    """The time until harm is found."""
    title = "Harm found, at 20 requests a second and half of them the arm's where nothing else is said"
    table = Table("what is different", "check", "found in 10 min", "median seconds", "9 of 10", title=title)
    for name, case in found.items():
        for check, seconds in case.items():
            soon, late = (np.quantile(seconds, share, method="higher") for share in (0.5, 0.9))
            table.add_row(name, check, f"{np.isfinite(seconds).mean():.0%}", _shown(soon), _shown(late))
    return table


def _shown(seconds: float) -> str:
    return f"{seconds:.0f}" if np.isfinite(seconds) else "-"


def _without_inf(found: dict[str, Found]) -> dict[str, dict[str, dict[str, list[float | None]]]]:
    return {
        kind: {
            name: {check: [s if np.isfinite(s) else None for s in seconds] for check, seconds in case.items()}
            for name, case in cases.items()
        }
        for kind, cases in found.items()
    }


if __name__ == "__main__":
    typer.run(main)
