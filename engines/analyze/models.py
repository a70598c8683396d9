"""The values of an analysis: candidates, budgets, measurements."""

from __future__ import annotations

from dataclasses import dataclass


class AnalyzeError(Exception):
    """The analysis cannot go on; the message names the cause and the cure."""


@dataclass(frozen=True, slots=True)
class Candidate:
    instances: int
    max_batch_size: int  # 0: the model takes no batches
    queue_delay_us: int | None = None  # of the dynamic batcher; None: requests are not put together
    preferred: tuple[int, ...] = ()  # batch sizes that are sent at once

    def __str__(self) -> str:
        batcher = "" if self.queue_delay_us is None else f", delay {self.queue_delay_us} µs"
        preferred = f", preferred {'/'.join(map(str, self.preferred))}" if self.preferred else ""
        return f"{self.instances} x batch {self.max_batch_size}{batcher}{preferred}"


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds that clients waited for a reply."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class ServerTimes:
    """Where a request's time went on the server, by its statistics: milliseconds a request, on average."""

    queue: float
    compute_input: float
    compute_infer: float
    compute_output: float
    mean_batch: float  # inferences an execution


@dataclass(frozen=True, slots=True)
class Measurement:
    """One candidate under one load."""

    candidate: Candidate
    concurrency: int  # requests under way at any time
    throughput: float  # inferences a second: requests times their batch
    latency: Latency
    num_requests: int
    num_errors: int = 0
    error: str | None = None  # the first one's text
    is_steady: bool = True  # the last windows agreed; otherwise the figures are of a moving target
    client_load: float = 0.0  # share of a core that the load generator took; near 1 it is the bottleneck
    server: ServerTimes | None = None
    memory_bytes: int | None = None  # of the server with its processes; None where it is not on this machine


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a measurement; None: no limit."""

    latency_ms: float | None = None  # p99
    memory_bytes: int | None = None

    def allows(self, measured: Measurement) -> bool:
        return not self.excess(measured)

    def excess(self, measured: Measurement) -> tuple[str, ...]:
        """The limits that a measurement exceeds, in words."""
        is_slow = self.latency_ms is not None and measured.latency.p99 > self.latency_ms
        is_large = self.memory_bytes is not None and (measured.memory_bytes or 0) > self.memory_bytes
        exceeded = {"errors": measured.num_errors > 0, "latency": is_slow, "memory": is_large}
        return tuple(limit for limit, is_exceeded in exceeded.items() if is_exceeded)


@dataclass(frozen=True, slots=True)
class Space:
    """The values that each setting may take; each has one at least."""

    instances: tuple[int, ...]
    max_batch_sizes: tuple[int, ...]
    queue_delays_us: tuple[int | None, ...] = (None,)
    preferred: tuple[tuple[int, ...], ...] = ((),)
    concurrencies: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
