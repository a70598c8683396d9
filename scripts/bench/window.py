"""The window of a run of load: its counts, the CPU that each group of processes spent in it, and the load process.

CPU times of the measured processes are read at the very start and end of the window, so that opening and closing
connections is not counted.
"""

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.processes import SCRIPTS, BenchError, group_cpu_seconds, pinned

# A run of load that takes this much longer than its window is stuck.
GRACE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The results of one run inside its window. A unit is a request, or a token if the answers are streams."""

    units: int
    seconds: float
    p50_us: float
    p99_us: float
    group_cpu_seconds: dict[str, float]
    loader_cpu_seconds: float | None  # near the window's length the loader itself is the bottleneck; None: not known
    p999_us: float | None = None


class Window:
    """The time between two moments of a run, and the CPU that each group of processes spent in it."""

    def __init__(self, groups: dict[str, list[int]]) -> None:
        self._groups = groups
        self._cpu = group_cpu_seconds(groups)
        self._own_cpu = time.process_time()
        self._opened_at = time.perf_counter()

    def close(self, units: float, latencies_us: list[float]) -> LoadResult:
        cpu = group_cpu_seconds(self._groups)
        return LoadResult(
            units=round(units),
            seconds=time.perf_counter() - self._opened_at,
            p50_us=percentile(latencies_us, 50),
            p99_us=percentile(latencies_us, 99),
            p999_us=percentile(latencies_us, 99.9),
            group_cpu_seconds={name: cpu[name] - self._cpu[name] for name in cpu},
            loader_cpu_seconds=time.process_time() - self._own_cpu,
        )


def percentile(values: list[float], percent: float) -> float:
    """One of the values, which need no order.

    Raises: BenchError if there are none.
    """
    if not values:
        raise BenchError("no answer came in time")
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]


def run_module(module: str, spec: Any, seconds: float, cores: Sequence[int] | None) -> LoadResult:
    """Run one of the load generators here, `python -m MODULE JSON`, in a process of its own and wait for its result.

    It prints a LoadResult as JSON, or exits with an error message and status 1 at the first wrong answer, which raises
    BenchError here.
    """
    done = run_program([sys.executable, "-m", module, json.dumps(dataclasses.asdict(spec))], seconds, cores)
    if done.returncode:
        raise BenchError(done.stderr.strip() or f"the load generator ended with status {done.returncode}")
    return LoadResult(**json.loads(done.stdout))


def run_program(argv: Sequence[str], seconds: float, cores: Sequence[int] | None) -> subprocess.CompletedProcess[str]:
    """Run a load generator and wait for its end.

    Raises: BenchError if it does not end in time.
    """
    with pinned(cores):
        try:
            return subprocess.run(
                argv,
                cwd=SCRIPTS,
                capture_output=True,
                text=True,
                timeout=seconds + GRACE_SECONDS,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BenchError("the load generator did not end in time") from error
