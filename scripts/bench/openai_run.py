"""A whole run of language models: start the engine and the proxies, run interleaved rounds, stop everything."""

import dataclasses
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import Progress

from bench.command import Plan, profile_line
from bench.openai_cases import CASES, OURS, Loader, OpenAICase, check_answers, right_answer
from bench.openai_load import OpenAILoad
from bench.openai_proxies import ENGINE, PROXIES
from bench.processes import SCRIPTS, free_port
from bench.programs import Running, Site, start_on_port
from bench.rounds import interleave, stage
from bench.samples import Results
from bench.wrk import wrk_path

# Long enough for a profile.
HOLD_SECONDS = 15


def carry_out(plan: Plan, progress: Progress) -> Results:
    """Measure by the plan. Every started process has ended when this returns or raises."""
    results, cases = Results(), [CASES[name] for name in plan.cases]
    with stage(plan.pin) as up:
        starting = progress.add_task("starting", total=None)
        port, pid = start_engine(up.others)
        running = []
        for name in plan.proxies:
            progress.console.log(f"starting {name}")
            running.append(PROXIES[name].start(up.proxies, port))
            check_answers(running[-1], cases)
        progress.remove_task(starting)
        loader = Loader(
            seconds=plan.seconds,
            connections=plan.connections,
            use_wrk=plan.use_wrk and wrk_path() is not None,
            cores=up.cores.others,
            upstream_pids=[pid],
            results=results,
        )
        for case in cases:
            if rows := case.rows(running):
                interleave([case], rows, plan.rounds, loader.sample, progress, results)
    return results


@contextmanager
def held(proxy: str, pin: bool) -> Iterator[Running]:
    """One proxy in front of the canned engine while the context lasts, for profiling."""
    with stage(pin) as up:
        running = PROXIES[proxy].start(up.proxies, start_engine(up.others)[0])
        check_answers(running, [CASES["chat"]])
        yield running


def how_to_load(running: Running) -> list[str]:
    """The worker of a proxy, and a command for each kind of load that the proxy supports."""
    port = running.ports[ENGINE]
    names = ["chat", "chat-long", "tokens", *(["translated"] if running.name == OURS else [])]
    return [
        f"{running.name} listens on {port}" + (f", its worker is {running.worker.pid}" if running.worker else ""),
        *(f"load, {name}: {_load_command(CASES[name], port)}" for name in names),
        *profile_line(running.worker),
    ]


def _load_command(case: OpenAICase, port: int) -> str:
    load = OpenAILoad(
        exchange=case.exchange,
        port=port,
        connections=case.connections or 32,
        seconds=HOLD_SECONDS,
        groups={},
        right=None if case.is_stream else right_answer(port, case.exchange).decode("ascii"),
    )
    argv = [sys.executable, "-m", "bench.openai_load", json.dumps(dataclasses.asdict(load))]
    return f"cd {shlex.quote(str(SCRIPTS))} && {shlex.join(argv)}"


def start_engine(site: Site) -> tuple[int, int]:
    """Start the canned engine; returns its port and its process id."""
    port = free_port()
    argv = (sys.executable, "-m", "bench.openai_upstream", "--port", str(port))
    engine = start_on_port(site, "engine", argv, port, {ENGINE: port}).process
    assert engine is not None
    return port, engine.pid
