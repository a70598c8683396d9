"""The types that all benchmarks share: a case, and the results of one round of it."""

from dataclasses import dataclass, field
from typing import Any

from bench.processes import BenchError
from bench.window import LoadResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement that is made with all proxies."""

    name: str
    title: str
    unit: str = "request"
    serial: bool = False  # one connection, one request at a time: measures the latency that a proxy adds
    share: float = 0.0  # the load's constant rate, of Envoy's capacity; 0: each reply is followed by a request
    body_bytes: int = 0  # body bytes that one unit moves, both ways together; 0 if the case does not report it


@dataclass(frozen=True, slots=True)
class Sample:
    """The results of one round of one case for one proxy. CPU and busy figures are None for direct."""

    case: str
    proxy: str
    round: int
    units: int
    units_per_second: float
    megabytes_per_second: float
    p50_us: float
    p99_us: float
    cpu_us: float | None  # of the whole process tree, for one unit
    worker_cpu_us: float | None  # of the one process that carries requests, for one unit
    busy: float | None  # share of one core that the tree used; near 1: the proxy is the bottleneck
    upstream_busy: float
    loader_busy: float | None  # None if the program that made the load does not report it
    p999_us: float | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a proxy has no figures in a case."""

    case: str
    proxy: str
    why: str


@dataclass(slots=True)
class Results:
    """Everything that a run measured."""

    samples: list[Sample] = field(default_factory=list)
    memory: list[Any] = field(default_factory=list)  # of MemorySample
    failures: list[Failure] = field(default_factory=list)


def sample_of(case: Case, proxy: str, round_number: int, result: LoadResult) -> Sample:
    """Divide a round's figures by its units.

    Raises: BenchError if there are none.
    """
    if not result.units:
        raise BenchError(f"{case.name} through {proxy}: no answer in the whole window")

    def per_unit(group: str) -> float | None:
        cpu = result.group_cpu_seconds.get(group)
        return None if cpu is None else cpu / result.units * 1e6

    def share(cpu: float | None) -> float | None:
        return None if cpu is None else cpu / result.seconds

    return Sample(
        case=case.name,
        proxy=proxy,
        round=round_number,
        units=result.units,
        units_per_second=result.units / result.seconds,
        megabytes_per_second=result.units * case.body_bytes / result.seconds / 1e6,
        p50_us=result.p50_us,
        p99_us=result.p99_us,
        p999_us=result.p999_us,
        cpu_us=per_unit("tree"),
        worker_cpu_us=per_unit("worker"),
        busy=share(result.group_cpu_seconds.get("tree")),
        upstream_busy=share(result.group_cpu_seconds["upstream"]) or 0.0,
        loader_busy=share(result.loader_cpu_seconds),
    )
