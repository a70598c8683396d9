"""A whole run of language models: the engine up, proxies up, rounds interleaved, everything down."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from bench.openai_cases import CASES, Loader, check_answers
from bench.openai_proxies import ENGINE, PROXIES
from bench.processes import Children, free_port, raise_file_limit
from bench.programs import Running, Site, start_on_port
from bench.rounds import Cores, interleave
from bench.samples import Results
from bench.wrk import wrk_path


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure and how long."""

    proxies: Sequence[str]
    cases: Sequence[str]  # keys of CASES
    rounds: int
    seconds: float
    connections: int
    use_wrk: bool
    pin: bool


def carry_out(plan: Plan, progress: Progress) -> Results:
    """Do what the plan says. Every process that was started has ended when this returns or raises."""
    results, cases = Results(), [CASES[name] for name in plan.cases]
    with _stage(plan.pin) as stage:
        starting = progress.add_task("starting", total=None)
        running = []
        for name in plan.proxies:
            progress.console.log(f"starting {name}")
            running.append(PROXIES[name].start(stage.site, stage.engine_port))
            check_answers(running[-1], cases)
        progress.remove_task(starting)
        loader = Loader(
            seconds=plan.seconds,
            connections=plan.connections,
            use_wrk=plan.use_wrk and wrk_path() is not None,
            cores=stage.cores.others,
            upstream_pids=[stage.engine_pid],
        )
        for case in cases:
            if rows := case.rows(running):
                interleave([case], rows, plan.rounds, loader.sample, progress, results)
    return results


@contextmanager
def held(proxy: str, pin: bool) -> Iterator[Running]:
    """One proxy before the canned engine, for as long as the context lasts: to be profiled."""
    with _stage(pin) as stage:
        running = PROXIES[proxy].start(stage.site, stage.engine_port)
        check_answers(running, [CASES["chat"]])
        yield running


@dataclass(frozen=True, slots=True)
class _Stage:
    """What is up while a run lasts."""

    site: Site
    cores: Cores
    engine_port: int
    engine_pid: int


@contextmanager
def _stage(pin: bool) -> Iterator[_Stage]:
    raise_file_limit()
    cores = Cores.split() if pin else Cores()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pointsman-bench-")))
        children = stack.enter_context(Children(folder))
        port, pid = start_engine(Site(children, folder, cores.others))
        yield _Stage(Site(children, folder, cores.proxy), cores, port, pid)


def start_engine(site: Site) -> tuple[int, int]:
    """Start the canned engine; returns its port and its process id."""
    port = free_port()
    argv = (sys.executable, "-m", "bench.openai_upstream", "--port", str(port))
    engine = start_on_port(site, "engine", argv, port, {ENGINE: port}).process
    assert engine is not None
    return port, engine.pid
