"""The product's goals for language models: each a figure of Pointsman against a multiple of a peer's or of its own."""

from bench.medians import Verdict, against, cpu, p99
from bench.samples import Results


def verdicts(results: Results) -> list[Verdict]:
    """Every goal, in the order in which the product states them."""
    return [
        against(results, "CPU of a chat <= 0.6 of vllm-router's", "µs", "chat", cpu, 0.6, peer="vllm-router"),
        against(results, "CPU of a mixed chat <= 0.6 of vllm-router's", "µs", "mixed", cpu, 0.6, peer="vllm-router"),
        against(results, "CPU of a 220 KB chat <= Envoy's", "µs", "chat-long", cpu, 1.0),
        against(results, "p99 of mixed chats at 60 % load <= Envoy's", "µs", "rate-60", p99, 1.0),
        against(results, "CPU of a chat <= 0.35 of sglang-router's", "µs", "chat", cpu, 0.35, peer="sglang-router"),
        against(results, "CPU of a streamed token <= Envoy's", "µs", "tokens", cpu, 1.0),
        against(
            results,
            "CPU of a token translated from generate_stream <= 2 x one passed through",
            "µs",
            "translated",
            cpu,
            2.0,
            peer="ours, untranslated",
        ),
    ]
