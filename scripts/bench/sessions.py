"""The cost of sessions on the hot path: CPU of one worker for a request, with and without them, in the same rounds.

    python scripts/bench/sessions.py              # under 2 minutes
    python scripts/bench/sessions.py --rounds 5

Two gateways before the same canned engine get the same requests, each with a session. One balances by `power_of_two`
and ignores sessions; the other by `session`, with its embedded Redis: it looks the session up, keeps its endpoint, and
stores that it was seen. The difference is the cost.
"""

import json
import sys
from dataclasses import dataclass
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
from bench.load import LoadSpec  # noqa: E402
from bench.processes import Children, free_port, raise_file_limit  # noqa: E402
from bench.programs import Running, Site, start_on_port, start_pointsman  # noqa: E402
from bench.rounds import Cores  # noqa: E402
from bench.window import run_module  # noqa: E402

GOAL_US = 12.0


@dataclass(frozen=True, slots=True)
class Case:
    """This many sessions take turns, named in the body or in the head."""

    name: str
    sessions: int
    in_body: bool = False
    has_goal: bool = True


CASES = (
    Case("1,000 sessions, by header", 1_000),
    Case("20,000 sessions, by header", 20_000, has_goal=False),
    Case("1,000 sessions, by a parameter of the body", 1_000, in_body=True),
    Case("every request a new session", 100_000_000, has_goal=False),
)


def rules(port: int, balance: str) -> str:
    """One engine with two addresses of the same server, so that there is a choice."""
    urls = f"'http://127.0.0.1:{port}', 'http://localhost:{port}'"
    engine = f"it: {{endpoints: [{urls}], balance: {balance}}}"
    return f"version: 1\nengines: {{{engine}}}\nroutes: [{{name: all, engine: it}}]\n"


def cpu_us(running: Running, case: Case, connections: int, seconds: float, cores: Cores) -> float:
    """CPU microseconds of the worker for one request."""
    spec = LoadSpec(
        "small",
        running.ports["http"],
        connections,
        seconds,
        running.groups(),
        sessions=case.sessions,
        in_body=case.in_body,
    )
    found = run_module("bench.load", spec, seconds, cores.others)
    return found.group_cpu_seconds["worker"] / found.units * 1e6


def main(
    rounds: command.Rounds = 3,
    seconds: Annotated[float, typer.Option(min=0.5, max=60, help="Length of one round.")] = 2.0,
    connections: command.Connections = 32,
    results: command.ResultsFolder = command.RESULTS,
) -> None:
    """Measure what sessions add to a request's CPU time. Exits with 1 if that is more than the goal."""
    raise_file_limit()
    cores = Cores.split()
    figures: dict[str, dict[str, list[float]]] = {case.name: {"without": [], "with": []} for case in CASES}
    with TemporaryDirectory(prefix="pointsman-bench-") as name, Children(folder := Path(name)) as children:
        others = Site(children, folder, cores.others)
        mine = Site(children, folder, cores.proxy)
        port = free_port()
        start_on_port(others, "upstream", (sys.executable, "-m", "bench.upstream", "--port", str(port)), port, {})
        gateways = {
            "without": start_pointsman(
                mine, rules(port, "power_of_two"), dict, name="without", options=("--redis", "off")
            ),
            "with": start_pointsman(
                mine,
                rules(port, "session"),
                dict,
                name="with",
                options=("--redis", "embedded", "--data-dir", str(folder)),
            ),
        }
        for case in track(CASES, description="measuring", console=Console(stderr=True)):
            for number in range(rounds):
                turns = list(gateways.items())[:: 1 if number % 2 else -1]
                for name, running in turns:
                    figures[case.name][name].append(cpu_us(running, case, connections, seconds, cores))
    table = Table("case", "without, µs", "with, µs", "sessions add, µs", "goal, µs")
    is_missed = False
    for case in CASES:
        without, with_ = (median(figures[case.name][name]) for name in ("without", "with"))
        added = with_ - without
        is_missed |= case.has_goal and added > GOAL_US
        goal = f"{GOAL_US:g}" if case.has_goal else "none: read or written down"
        table.add_row(case.name, f"{without:.1f}", f"{with_:.1f}", f"{added:.1f}", goal)
    Console().print(table)
    results.mkdir(parents=True, exist_ok=True)
    (results / "sessions.json").write_text(json.dumps(figures, indent=1))
    raise typer.Exit(1 if is_missed else 0)


if __name__ == "__main__":
    typer.run(main)
