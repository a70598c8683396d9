"""A whole run of the gRPC benchmark: upstreams up, proxies up, rounds interleaved, everything down."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.progress import Progress

from bench.grpc_cases import CASES, Loader
from bench.grpc_checks import await_first_reply
from bench.grpc_configs import Upstream
from bench.grpc_proxies import PROXIES
from bench.processes import SCRIPTS, BenchError, Children, free_port, pinned, raise_file_limit, tree
from bench.programs import Running, Site, start_on_port
from bench.rounds import Cores, interleave
from bench.samples import Failure, Results
from gateway.demo.triton import TritonProcess, why_unavailable

# The tests' repository: its `identity_fp32` is as small as a model gets.
MODEL_REPOSITORY = SCRIPTS.parent / "tests" / "models"
TRITON_MODELS = ("identity_fp32",)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure and how long."""

    proxies: Sequence[str]
    cases: Sequence[str]  # keys of CASES
    rounds: int
    seconds: float
    pin: bool


def carry_out(plan: Plan, progress: Progress) -> Results:
    """Do what the plan says. Every process that was started has ended when this returns or raises."""
    results = Results()
    cases = [CASES[name] for name in plan.cases]
    why_no_triton = why_unavailable()
    if why_no_triton is not None:
        cases, without = [each for each in cases if each.upstream != "triton"], cases
        for case in without:
            if case.upstream == "triton":
                results.failures += [Failure(case.name, name, why_no_triton) for name in plan.proxies]
    with _stage(plan.pin, with_triton=any(case.upstream == "triton" for case in cases)) as stage:
        starting = progress.add_task("starting", total=None)
        running = []
        for name in plan.proxies:
            progress.console.log(f"starting {name}")
            try:
                running.append(stage.start(name))
            except BenchError as error:
                results.failures += [Failure(case.name, name, f"did not start: {error}") for case in cases]
        progress.remove_task(starting)
        loader = Loader(plan.seconds, stage.cores.others, stage.upstreams)
        for case in cases:
            turns = case.turns if plan.rounds > 1 else 1  # one round is but a glance
            interleave([case], running, plan.rounds * turns, loader.sample, progress, results)
    return results


@contextmanager
def held(proxy: str, pin: bool) -> Iterator[Running]:
    """One proxy before the canned upstream, for as long as the context lasts: to be profiled."""
    with _stage(pin, with_triton=False) as stage:
        yield stage.start(proxy)


@dataclass(frozen=True, slots=True)
class _Stage:
    """What is up while a run lasts."""

    site: Site
    cores: Cores
    upstreams: Sequence[Upstream]

    def start(self, name: str) -> Running:
        """Start a proxy and wait for its first answer.

        Raises: BenchError.
        """
        running = PROXIES[name].start(self.site, self.upstreams)
        await_first_reply(running.ports[self.upstreams[0].name])
        return running


@contextmanager
def _stage(pin: bool, *, with_triton: bool) -> Iterator[_Stage]:
    raise_file_limit()
    cores = Cores.split() if pin else Cores()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pointsman-bench-")))
        children = stack.enter_context(Children(folder))
        upstreams = [start_canned(Site(children, folder, cores.others))]
        if with_triton:
            upstreams.append(_start_triton(stack, folder, cores))
        yield _Stage(Site(children, folder, cores.proxy), cores, upstreams)


def start_canned(site: Site) -> Upstream:
    """Our canned servers: gRPC, and HTTP beside it for the probes."""
    grpc_port, http_port = free_port(), free_port()
    argv = [sys.executable, "-m", "bench.grpc_upstream", "--port", str(grpc_port)]
    canned = start_on_port(site, "grpc-upstream", argv, grpc_port, {})
    argv = [sys.executable, "-m", "bench.upstream", "--port", str(http_port)]
    start_on_port(site, "http-upstream", argv, http_port, {})
    assert canned.process is not None
    return Upstream("canned", grpc_port, http_port, ("simple", "tensor", "llm"), (canned.process.pid,))


def _start_triton(stack: ExitStack, folder: Path, cores: Cores) -> Upstream:
    """A real Triton with one small model, which answers what it is asked."""
    arguments = ["--model-control-mode=explicit", *(f"--load-model={model}" for model in TRITON_MODELS)]
    with pinned(cores.others):
        triton = TritonProcess.start(MODEL_REPOSITORY, extra_args=arguments, log_path=folder / "triton.log")
    stack.callback(triton.kill)
    triton.wait_ready()
    pids = tuple(process.pid for process in tree(psutil.Process(triton.process.pid)))
    return Upstream("triton", triton.grpc_port, triton.http_port, TRITON_MODELS, pids)
