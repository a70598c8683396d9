"""A whole run of the engine host's benchmark: write models, start servers, run interleaved rounds, stop everything."""

import json
import secrets
import statistics
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory

import numpy as np
from rich.progress import Progress

from bench.command import Plan
from bench.host_cases import CASES, WITH_SHARED_MEMORY, HostCase, Loader
from bench.host_messages import INFERENCES, LARGE, REGION
from bench.host_models import PYTHON_MODELS, write_repository
from bench.host_servers import SERVERS
from bench.processes import BenchError
from bench.programs import Running
from bench.rounds import interleave, stage
from bench.samples import Failure, Results

# Copies that are timed for the cost of one; the median counts.
COPIES = 200

# More than a core's own cache.
CACHE_BYTES = 1 << 25


@dataclass(slots=True)
class HostResults(Results):
    """The samples of a run, and the cost of one copy of the large tensor on this machine, in microseconds of CPU."""

    copy_us: float | None = None


def carry_out(plan: Plan, progress: Progress) -> HostResults:
    """Measure by the plan. Every started process has ended when this returns or raises."""
    results = HostResults()
    with stage(plan.pin) as up, shared_region() as region:
        repository = up.proxies.folder / "models"
        models = write_repository(repository)
        starting = progress.add_task("starting", total=None)
        running: dict[str, Running] = {}
        for name in plan.proxies:
            progress.console.log(f"starting {name}")
            names = models if name == "ours" else PYTHON_MODELS
            try:
                running[name] = SERVERS[name].start(up.proxies, repository, names, up.stack)
                if name in WITH_SHARED_MEMORY:
                    register(running[name], region.name)
            except BenchError as error:
                why = f"did not start: {error}"
                results.failures += [Failure(case, name, why) for case in plan.cases if name in CASES[case].servers]
        progress.remove_task(starting)
        loader = Loader(plan.seconds, up.cores.others)
        for case in (CASES[name] for name in plan.cases):
            if INFERENCES[case.inference].model not in models:
                results.failures += [Failure(case.name, name, "its library is not installed") for name in case.servers]
                continue
            asked = [running[name] for name in case.servers if name in running]
            interleave([case], asked, plan.rounds, loader.sample, progress, results)
            if case.name == "shm-large":
                results.failures += wrong_copies(case, asked, region, loader)
        results.copy_us = copy_microseconds(region)
    return results


# Shared memory


@contextmanager
def shared_region() -> Iterator[SharedMemory]:
    """A region with a tensor of noise in its first half, and room for its copy in the second."""
    region = SharedMemory(f"pointsman-bench-{secrets.token_hex(4)}", create=True, size=2 * LARGE)
    try:
        noise = np.random.default_rng(0).random(LARGE // 4, dtype=np.float32)
        region.buf[:LARGE] = noise.tobytes()
        yield region
    finally:
        region.close()
        region.unlink()


def register(running: Running, key: str) -> None:
    """Register the shared memory region at a server. Raises: BenchError."""
    body = json.dumps({"key": f"/{key.lstrip('/')}", "offset": 0, "byte_size": 2 * LARGE}).encode()
    url = f"http://127.0.0.1:{running.ports['rest']}/v2/systemsharedmemory/region/{REGION}/register"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=10):
            pass
    except OSError as error:
        raise BenchError(f"{running.name} does not take shared memory: {error}") from error


def wrong_copies(case: HostCase, asked: Sequence[Running], region: SharedMemory, loader: Loader) -> list[Failure]:
    """The servers that do not write the tensor into an empty half of the region."""
    from bench.host_load import answer_bytes

    failures = []
    for each in asked:
        region.buf[LARGE:] = bytes(LARGE)
        try:
            answer_bytes(INFERENCES[case.inference], case.protocol, each.ports[case.protocol])
        except BenchError as error:
            failures.append(Failure(case.name, each.name, str(error)))
            continue
        if region.buf[LARGE:] != region.buf[:LARGE]:
            failures.append(Failure(case.name, each.name, "the output region does not have the tensor"))
    return failures


def copy_microseconds(region: SharedMemory) -> float:
    """The cost of the model's own copy of the tensor: from one half of the region into the other, neither of them in
    this core's caches, as for a tensor that another process has just sent."""
    others = np.zeros(CACHE_BYTES, np.uint8)
    source, target = np.frombuffer(region.buf[:LARGE], np.float32), np.frombuffer(region.buf[LARGE:], np.float32)
    times = []
    for _ in range(COPIES):
        others += 1
        begun_at = time.perf_counter()
        np.copyto(target, source)
        times.append((time.perf_counter() - begun_at) * 1e6)
    del source, target  # views keep the region from being closed
    return statistics.median(times)
