"""The cost of an experiment on the hot path: CPU of one worker for a request, with one and without, in the same rounds.

    python scripts/bench/experiments.py              # about 2 minutes
    python scripts/bench/experiments.py --rounds 5

Four gateways before the same canned engine get the same requests. One has a plain route; the others split it into two
arms, by a header, by session or at random, and measure both. All arms use the same server, so the difference is the
cost to assign an arm, name it and measure it.
"""

import json
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

sys.path[0] = str(Path(__file__).resolve().parent.parent)

import typer  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import track  # noqa: E402
from rich.table import Table  # noqa: E402

from bench import command  # noqa: E402
from bench.processes import Children, free_port, raise_file_limit  # noqa: E402
from bench.programs import Running, Site, start_on_port, start_pointsman  # noqa: E402
from bench.rounds import Cores  # noqa: E402
from bench.sessions import Case, cpu_us  # noqa: E402

GOAL_US = 6.0

CASES = (
    Case("1,000 users", 1_000),
    Case("20,000 users", 20_000, has_goal=False),  # more heads than a worker caches
)
# The users' header is the session's, so that all gateways get the same requests.
UNITS = {"plain": "", "header": "header:x-session-id", "session": "session", "request": "request"}


def rules(port: int, unit: str) -> str:
    """One engine, and a route to it, or to two arms that are both this engine."""
    text = f"version: 1\nengines: {{it: {{endpoints: ['http://127.0.0.1:{port}']}}}}\nroutes:\n"
    if not unit:
        return f"{text}  - {{name: all, engine: it}}\n"
    arms = "{name: old, engine: it, weight: 90}, {name: new, engine: it, weight: 10}"
    return f"{text}  - {{name: all, experiment: split}}\nexperiments: {{split: {{unit: '{unit}', arms: [{arms}]}}}}\n"


def main(
    rounds: command.Rounds = 3,
    seconds: Annotated[float, typer.Option(min=0.5, max=60, help="Length of one round.")] = 2.0,
    connections: command.Connections = 32,
    results: command.ResultsFolder = command.RESULTS,
) -> None:
    """Measure what experiments add to a request's CPU time. Exits with 1 if that is more than the goal."""
    raise_file_limit()
    cores = Cores.split()
    figures: dict[str, dict[str, list[float]]] = {case.name: {unit: [] for unit in UNITS} for case in CASES}
    with TemporaryDirectory(prefix="pointsman-bench-") as name, Children(folder := Path(name)) as children:
        others = Site(children, folder, cores.others)
        port = free_port()
        start_on_port(others, "upstream", (sys.executable, "-m", "bench.upstream", "--port", str(port)), port, {})
        gateways = {unit: _start(unit, port, children, folder, cores) for unit in UNITS}
        for case in track(CASES, description="measuring", console=Console(stderr=True)):
            for number in range(rounds + 1):
                turns = list(gateways.items())[:: 1 if number % 2 else -1]
                for unit, running in turns:
                    figure = cpu_us(running, case, connections, seconds, cores)
                    if number:  # by the first round every session has its arm, in Redis too
                        figures[case.name][unit].append(figure)
    table = Table("case", "plain, µs", *(f"{unit} adds, µs" for unit in UNITS if unit != "plain"), "goal, µs")
    is_missed = False
    for case in CASES:
        plain = median(figures[case.name]["plain"])
        added = [median(figures[case.name][unit]) - plain for unit in UNITS if unit != "plain"]
        is_missed |= case.has_goal and max(added) > GOAL_US
        goal = f"{GOAL_US:g}" if case.has_goal else "none: heads are read anew"
        table.add_row(case.name, f"{plain:.1f}", *(f"{each:+.1f}" for each in added), goal)
    Console().print(table)
    results.mkdir(parents=True, exist_ok=True)
    (results / "experiments.json").write_text(json.dumps(figures, indent=1))
    raise typer.Exit(1 if is_missed else 0)


def _start(unit: str, port: int, children: Children, folder: Path, cores: Cores) -> Running:
    own = folder / unit
    own.mkdir()
    site = Site(children, own, cores.proxy)
    options = ("--redis", "embedded", "--data-dir", str(own)) if unit == "session" else ("--redis", "off")
    return start_pointsman(site, rules(port, UNITS[unit]), dict, name=unit, options=options)


if __name__ == "__main__":
    typer.run(main)
