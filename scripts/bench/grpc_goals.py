"""The product's goals for gRPC: each a figure of Pointsman against a multiple of a peer's."""

from bench.medians import Verdict, added_p50_at_most_envoys, against, cpu, throughput
from bench.samples import Results


def verdicts(results: Results) -> list[Verdict]:
    """Every goal, in the order in which the product states them."""
    return [
        against(results, "CPU of a mixed call <= 0.9 of Envoy's", "µs", "mixed", cpu, 0.9),
        against(results, "CPU of a unary call <= 0.9 of Envoy's", "µs", "unary", cpu, 0.9),
        against(results, "CPU of a unary call <= 0.3 of grpcio.aio's", "µs", "unary", cpu, 0.3, peer="grpcio"),
        against(results, "CPU of a streamed message <= 0.9 of Envoy's", "µs", "stream", cpu, 0.9),
        against(results, "600 KB tensors: MB/s >= 0.9 of Envoy's", "MB/s", "tensor", throughput, 0.9, is_floor=True),
        added_p50_at_most_envoys(results),
    ]
