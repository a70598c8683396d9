"""A whole run: start the upstreams and proxies, run interleaved rounds, measure memory, stop everything."""

import sys
import time
from collections.abc import Callable
from functools import partial

from rich.progress import Progress

from bench import configs, memory
from bench.cases import CASES, Loader, answer_of, check_answers, check_keyed_answers, check_mixed_answers
from bench.command import Plan
from bench.processes import BenchError, Ports, free_port, raise_file_limit, tree
from bench.programs import Proxy, Running, Site, nginx_path, start_nginx, start_on_port
from bench.proxies import KEYED_PROXIES, MIXED_PROXIES, PROXIES
from bench.rounds import interleave, stage
from bench.samples import Results
from bench.wrk import wrk_path

MEMORY = "memory"
# The proxies of each setup, and what checks their answers.
SETUPS = {
    "plain": (PROXIES, check_answers),
    "keys": (KEYED_PROXIES, check_keyed_answers),
    "mixed": (MIXED_PROXIES, check_mixed_answers),
}
ALL_CASES = {**{name: case.title for name, case in CASES.items()}, MEMORY: "resident memory"}

IDLE_CONNECTIONS = 5_000
HUGE_BYTES = 2 << 30

# Open files that idle connections leave for other uses in a process.
SPARE_FILES = 500


def carry_out(plan: Plan, progress: Progress) -> Results:
    """Measure by the plan. Every started process has ended when this returns or raises."""
    idle_connections = min(IDLE_CONNECTIONS, raise_file_limit() - SPARE_FILES)
    results = Results()
    with stage(plan.pin) as up:
        starting = progress.add_task("starting", total=None)
        upstreams, upstream_pids = _start_upstreams(up.others)
        loader = Loader(
            seconds=plan.seconds,
            connections=plan.connections,
            use_wrk=plan.use_wrk and wrk_path() is not None,
            cores=up.cores.others,
            upstream_pids=upstream_pids,
            results=results,
        )
        cases = [CASES[name] for name in plan.cases if name != MEMORY]
        for setup, (proxies, check) in SETUPS.items():
            if group := [case for case in cases if case.setup == setup]:
                chosen = [proxy for name, proxy in proxies.items() if name.partition("-")[0] in plan.proxies]
                running = [_start(proxy, up.proxies, upstreams, check, progress) for proxy in chosen]
                progress.update(starting, visible=False)
                interleave(group, running, plan.rounds, loader.sample, progress, results)
                for each in running:
                    if each.process is not None:
                        up.proxies.children.stop(each.process)
        if MEMORY in plan.cases:
            _measure_memory(plan, up.proxies, upstreams, idle_connections, progress, results)
    return results


def _start_upstreams(site: Site) -> tuple[Ports, list[int]]:
    """The canned server, and nginx beside it for the small answers if it is installed."""
    bulk = free_port()
    argv = (sys.executable, "-m", "bench.upstream", "--port", str(bulk), "--huge-bytes", str(HUGE_BYTES))
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


def _start(
    proxy: Proxy[Ports], site: Site, upstreams: Ports, check: Callable[[Running], None], progress: Progress
) -> Running:
    progress.console.log(f"starting {proxy.name}")
    running = proxy.start(site, upstreams)
    check(running)
    return running


def _measure_memory(
    plan: Plan, site: Site, upstreams: Ports, connections: int, progress: Progress, results: Results
) -> None:
    """Each proxy is measured alone, while no other is running."""
    names = [name for name in plan.proxies if name != "direct"]
    task = progress.add_task("memory", total=len(names))

    def stop(running: Running) -> None:
        assert running.process is not None
        site.children.stop(running.process)

    for name in names:
        progress.update(task, description=f"memory: {name}")
        start = partial(_start_fresh, name, site, upstreams)
        results.memory.append(memory.measure(start, stop, connections, HUGE_BYTES))
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
