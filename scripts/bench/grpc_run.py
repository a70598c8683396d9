"""A whole run of the gRPC benchmark: start the upstreams and proxies, run interleaved rounds, stop everything."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import psutil
from rich.progress import Progress

from bench.command import Plan
from bench.grpc_cases import CASES, GrpcCase, Loader
from bench.grpc_checks import await_first_reply
from bench.grpc_configs import Upstream
from bench.grpc_messages import MIXED
from bench.grpc_proxies import MIXED_PROXIES, PROXIES
from bench.processes import SCRIPTS, BenchError, free_port, pinned, tree
from bench.programs import Proxy, Running, Site, start_on_port
from bench.rounds import Stage, interleave, stage
from bench.samples import Failure, Results
from gateway.demo.triton import TritonProcess, why_unavailable

# The tests' repository: its `identity_fp32` is a minimal model.
MODEL_REPOSITORY = SCRIPTS.parent / "tests" / "models"
TRITON_MODELS = ("identity_fp32",)


def carry_out(plan: Plan, progress: Progress) -> Results:
    """Measure by the plan. Every started process has ended when this returns or raises."""
    results = Results()
    cases = [CASES[name] for name in plan.cases]
    why_no_triton = why_unavailable()
    if why_no_triton is not None:
        cases, without = [each for each in cases if each.upstream != "triton"], cases
        for case in without:
            if case.upstream == "triton":
                results.failures += [Failure(case.name, name, why_no_triton) for name in plan.proxies]
    with stage(plan.pin) as up:
        starting = progress.add_task("starting", total=None)
        upstreams = [start_canned(up.others)]
        if any(case.upstream == "triton" for case in cases):
            upstreams.append(_start_triton(up))
        progress.remove_task(starting)
        loader = Loader(plan.seconds, up.cores.others, upstreams)
        for proxies, has_many_routes in ((MIXED_PROXIES, True), (PROXIES, False)):
            group = [case for case in cases if case.has_many_routes is has_many_routes]
            running = _start_all(proxies, group, plan, up, upstreams, progress, results)
            for case in group:
                turns = case.turns if plan.rounds > 1 else 1  # one round is but a glance
                interleave([case], running, plan.rounds * turns, loader.sample, progress, results)
            for each in running:
                if each.process is not None:
                    up.proxies.children.stop(each.process)
    return results


@contextmanager
def held(proxy: str, pin: bool) -> Iterator[Running]:
    """One proxy in front of the canned upstream while the context lasts, for profiling."""
    with stage(pin) as up:
        yield _start(PROXIES[proxy], up.proxies, [start_canned(up.others)])


def _start_all(
    proxies: Mapping[str, Proxy[Sequence[Upstream]]],
    cases: Sequence[GrpcCase],
    plan: Plan,
    up: Stage,
    upstreams: Sequence[Upstream],
    progress: Progress,
    results: Results,
) -> list[Running]:
    """Start the proxies for these cases; one that does not start is a failure in each of them."""
    running = []
    for name in plan.proxies if cases else ():
        progress.console.log(f"starting {name}")
        try:
            running.append(_start(proxies[name], up.proxies, upstreams))
        except BenchError as error:
            results.failures += [Failure(case.name, name, f"did not start: {error}") for case in cases]
    return running


def _start(proxy: Proxy[Sequence[Upstream]], site: Site, upstreams: Sequence[Upstream]) -> Running:
    """Start a proxy and wait for its first reply.

    Raises: BenchError.
    """
    running = proxy.start(site, upstreams)
    await_first_reply(running.ports[upstreams[0].name])
    return running


def start_canned(site: Site) -> Upstream:
    """The canned servers: gRPC, and HTTP beside it for the probes."""
    grpc_port, http_port = free_port(), free_port()
    argv = [sys.executable, "-m", "bench.grpc_upstream", "--port", str(grpc_port)]
    canned = start_on_port(site, "grpc-upstream", argv, grpc_port, {})
    argv = [sys.executable, "-m", "bench.upstream", "--port", str(http_port)]
    start_on_port(site, "http-upstream", argv, http_port, {})
    assert canned.process is not None
    return Upstream("canned", grpc_port, http_port, ("simple", "tensor", "llm", MIXED), (canned.process.pid,))


def _start_triton(up: Stage) -> Upstream:
    """A real Triton with one small model, which returns its input."""
    arguments = ["--model-control-mode=explicit", *(f"--load-model={model}" for model in TRITON_MODELS)]
    with pinned(up.cores.others):
        triton = TritonProcess.start(MODEL_REPOSITORY, extra_args=arguments, log_path=up.others.folder / "triton.log")
    up.stack.callback(triton.kill)
    triton.wait_ready()
    pids = tuple(process.pid for process in tree(psutil.Process(triton.process.pid)))
    return Upstream("triton", triton.grpc_port, triton.http_port, TRITON_MODELS, pids)
