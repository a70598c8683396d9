"""A whole run: upstreams up, proxies up, rounds interleaved, then memory, then everything down."""

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.progress import Progress

from bench import configs, memory
from bench.cases import CASES, Loader, Sample, answer_of, check_answers
from bench.configs import Ports
from bench.memory import MemorySample
from bench.processes import BenchError, Children, free_port, raise_file_limit, tree
from bench.proxies import PROXIES, Running, Site, nginx_path, start_nginx, start_on_port
from bench.wrk import wrk_path

MEMORY = "memory"

# What the idle connections leave of the limit of open files for everything else in a process.
SPARE_FILES = 500


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure and how long."""

    proxies: Sequence[str]
    cases: Sequence[str]  # keys of CASES, and "memory"
    rounds: int
    seconds: float
    connections: int
    use_wrk: bool
    pin: bool
    idle_connections: int
    huge_bytes: int


@dataclass(slots=True)
class Results:
    """Everything that a run measured."""

    samples: list[Sample] = field(default_factory=list)
    memory: list[MemorySample] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Cores:
    """One core for the proxy under measurement, the others for load and upstream; None: as the scheduler likes."""

    proxy: Sequence[int] | None = None
    others: Sequence[int] | None = None

    @classmethod
    def split(cls) -> "Cores":
        if not hasattr(os, "sched_getaffinity"):
            return cls()
        *others, proxy = sorted(os.sched_getaffinity(0))
        return cls([proxy], others) if others else cls()


def carry_out(plan: Plan, progress: Progress) -> Results:
    """Do what the plan says. Every process that was started has ended when this returns or raises."""
    idle_connections = min(plan.idle_connections, raise_file_limit() - SPARE_FILES)
    cores = Cores.split() if plan.pin else Cores()
    results = Results()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pointsman-bench-")))
        children = stack.enter_context(Children(folder))
        starting = progress.add_task("starting", total=None)
        upstreams, upstream_pids = _start_upstreams(children, folder, plan.huge_bytes, cores)
        site = Site(children, folder, upstreams, cores.proxy)
        loader = Loader(
            seconds=plan.seconds,
            connections=plan.connections,
            use_wrk=plan.use_wrk and wrk_path() is not None,
            cores=cores.others,
            upstream_pids=upstream_pids,
        )
        if cases := [name for name in plan.cases if name != MEMORY]:
            running = [_start(name, site, progress) for name in plan.proxies]
            progress.remove_task(starting)
            _interleave(cases, running, plan.rounds, loader, progress, results)
            for each in running:
                if each.process is not None:
                    children.stop(each.process)
        if MEMORY in plan.cases:
            _measure_memory(plan.proxies, site, idle_connections, plan.huge_bytes, progress, results)
    return results


def _start_upstreams(children: Children, folder: Path, huge_bytes: int, cores: Cores) -> tuple[Ports, list[int]]:
    """The canned server, and nginx beside it for the small answers where it is installed."""
    bulk = free_port()
    argv = (sys.executable, "-m", "bench.upstream", "--port", str(bulk), "--huge-bytes", str(huge_bytes))
    site = Site(children, folder, Ports(bulk, bulk), cores.others)
    canned = start_on_port(site, "upstream", argv, bulk).process
    assert canned is not None
    if nginx_path() is None:
        return Ports(bulk, bulk), [canned.pid]
    small = free_port()
    nginx = start_nginx(site, "nginx-upstream", configs.nginx_upstream_config(small), small)
    assert nginx.process is not None
    return Ports(small, bulk), [canned.pid, *(each.pid for each in tree(nginx.process))]


def _start(name: str, site: Site, progress: Progress) -> Running:
    progress.console.log(f"starting {name}")
    running = PROXIES[name].start(site)
    check_answers(running)
    return running


def _interleave(
    cases: Sequence[str], running: Sequence[Running], rounds: int, loader: Loader, progress: Progress, results: Results
) -> None:
    """Every proxy takes its turn in every round, so that noise of the machine falls on all of them alike."""
    for name in cases:
        case = CASES[name]
        task = progress.add_task(case.title, total=rounds * len(running))
        for round_number in range(rounds):
            # Begin each round with another proxy: none always runs first, on a rested machine.
            first = round_number % len(running)
            for each in [*running[first:], *running[:first]]:
                progress.update(task, description=f"{case.title}: {each.name}, round {round_number + 1} of {rounds}")
                results.samples.append(loader.sample(case, each, round_number))
                progress.advance(task)
        progress.update(task, description=case.title)


def _measure_memory(
    names: Sequence[str], site: Site, connections: int, huge_bytes: int, progress: Progress, results: Results
) -> None:
    """Each proxy is measured alone: no other is running then."""
    names = [name for name in names if name != "direct"]
    task = progress.add_task("memory", total=len(names))

    def stop(running: Running) -> None:
        assert running.process is not None
        site.children.stop(running.process)

    for name in names:
        progress.update(task, description=f"memory: {name}")
        results.memory.append(memory.measure(partial(_start_fresh, name, site), stop, connections, huge_bytes))
        progress.advance(task)
    progress.update(task, description="memory")


def _start_fresh(name: str, site: Site) -> Running:
    """Start a proxy and wait for its first answers only; comparing large answers would already warm its memory."""
    running = PROXIES[name].start(site)
    deadline = time.monotonic() + 15.0
    while answer_of(running, "small")[0] != 200:
        if time.monotonic() > deadline:
            raise BenchError(f"memory: {name} gave no 200")
        time.sleep(0.1)
    return running
