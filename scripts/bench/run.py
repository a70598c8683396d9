"""A whole run: upstreams up, proxies up, rounds interleaved, then memory, then everything down."""

import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.progress import Progress

from bench import configs, memory
from bench.cases import CASES, Loader, answer_of, check_answers
from bench.processes import BenchError, Children, Ports, free_port, raise_file_limit, tree
from bench.programs import Running, Site, nginx_path, start_nginx, start_on_port
from bench.proxies import PROXIES
from bench.rounds import Cores, interleave
from bench.samples import Results
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


def carry_out(plan: Plan, progress: Progress) -> Results:
    """Do what the plan says. Every process that was started has ended when this returns or raises."""
    idle_connections = min(plan.idle_connections, raise_file_limit() - SPARE_FILES)
    cores = Cores.split() if plan.pin else Cores()
    results = Results()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pointsman-bench-")))
        children = stack.enter_context(Children(folder))
        starting = progress.add_task("starting", total=None)
        upstreams, upstream_pids = _start_upstreams(Site(children, folder, cores.others), plan.huge_bytes)
        site = Site(children, folder, cores.proxy)
        loader = Loader(
            seconds=plan.seconds,
            connections=plan.connections,
            use_wrk=plan.use_wrk and wrk_path() is not None,
            cores=cores.others,
            upstream_pids=upstream_pids,
        )
        if cases := [CASES[name] for name in plan.cases if name != MEMORY]:
            running = [_start(name, site, upstreams, progress) for name in plan.proxies]
            progress.remove_task(starting)
            interleave(cases, running, plan.rounds, loader.sample, progress, results)
            for each in running:
                if each.process is not None:
                    children.stop(each.process)
        if MEMORY in plan.cases:
            _measure_memory(plan, site, upstreams, idle_connections, progress, results)
    return results


def _start_upstreams(site: Site, huge_bytes: int) -> tuple[Ports, list[int]]:
    """The canned server, and nginx beside it for the small answers where it is installed."""
    bulk = free_port()
    argv = (sys.executable, "-m", "bench.upstream", "--port", str(bulk), "--huge-bytes", str(huge_bytes))
    ports = {"small": bulk, "bulk": bulk}
    canned = start_on_port(site, "upstream", argv, bulk, ports).process
    assert canned is not None
    if nginx_path() is None:
        return ports, [canned.pid]
    small = free_port()
    ports["small"] = small
    nginx = start_nginx(site, "nginx-upstream", configs.nginx_upstream_config(small), small, ports)
    assert nginx.process is not None
    return ports, [canned.pid, *(each.pid for each in tree(nginx.process))]


def _start(name: str, site: Site, upstreams: Ports, progress: Progress) -> Running:
    progress.console.log(f"starting {name}")
    running = PROXIES[name].start(site, upstreams)
    check_answers(running)
    return running


def _measure_memory(
    plan: Plan, site: Site, upstreams: Ports, connections: int, progress: Progress, results: Results
) -> None:
    """Each proxy is measured alone: no other is running then."""
    names = [name for name in plan.proxies if name != "direct"]
    task = progress.add_task("memory", total=len(names))

    def stop(running: Running) -> None:
        assert running.process is not None
        site.children.stop(running.process)

    for name in names:
        progress.update(task, description=f"memory: {name}")
        start = partial(_start_fresh, name, site, upstreams)
        results.memory.append(memory.measure(start, stop, connections, plan.huge_bytes))
        progress.advance(task)
    progress.update(task, description="memory")


def _start_fresh(name: str, site: Site, upstreams: Ports) -> Running:
    """Start a proxy and wait for its first answers only; comparing large answers would already warm its memory."""
    running = PROXIES[name].start(site, upstreams)
    deadline = time.monotonic() + 15.0
    while answer_of(running, "small")[0] != 200:
        if time.monotonic() > deadline:
            raise BenchError(f"memory: {name} gave no 200")
        time.sleep(0.1)
    return running
