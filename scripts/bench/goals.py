"""The product's goals for HTTP: each a figure of Pointsman against a limit, which is often a multiple of Envoy's."""

from collections.abc import Callable

from bench.medians import MEGABYTE, Verdict, added_cpu, added_p50_at_most_envoys, against, cpu, p99, rate, throughput
from bench.memory import MemorySample
from bench.messages import KEYED
from bench.samples import Results


def verdicts(results: Results) -> list[Verdict]:
    """Every goal, in the order in which the product states them."""

    def memory_at_most(goal: str, figure: Callable[[MemorySample], float | None], megabytes: float) -> Verdict:
        grown = next((figure(sample) for sample in results.memory if sample.proxy == "ours"), None)
        return Verdict(goal, None if grown is None else grown / MEGABYTE, megabytes, "MB", is_floor=False)

    return [
        against(results, "CPU of a small infer <= 0.75 of Envoy's", "µs", "small", cpu, 0.75),
        against(results, "CPU of a mixed infer <= 0.75 of Envoy's", "µs", "mixed", cpu, 0.75),
        against(results, "p99 of mixed infers at 60 % load <= Envoy's", "µs", "rate-60", p99, 1.0),
        against(results, "requests/s of small infers >= 1.3 of Envoy's", "/s", "small", rate, 1.3, is_floor=True),
        Verdict(
            "API keys add <= 3 µs of CPU to a small infer",
            added_cpu(results, "keys", KEYED, "ours"),
            3.0,
            "µs",
            is_floor=False,
        ),
        against(results, "CPU of a streamed token <= 0.8 of Envoy's", "µs", "sse", cpu, 0.8),
        against(results, "600 KB tensors: MB/s >= 0.9 of Envoy's", "MB/s", "tensor", throughput, 0.9, is_floor=True),
        added_p50_at_most_envoys(results),
        memory_at_most("idle worker <= 90 MB", lambda sample: sample.idle, 90),
        memory_at_most(
            "5,000 idle connections add <= 60 MB",
            lambda sample: sample.connections_added if sample.connections >= 5000 else None,
            60,
        ),
        memory_at_most(
            "2 GB streamed answer grows the worker by < 32 MB, fast reader or slow",
            lambda sample: (
                max(sample.fast_stream_added, sample.slow_stream_added) if sample.streamed_bytes >= 2e9 else None
            ),
            32,
        ),
    ]
