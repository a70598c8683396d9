"""Figures of a measurement: tokens per second, latencies, and the share of the memory's bandwidth.

A step reads every weight once, and the keys and values of each sequence. Decoding few sequences does little arithmetic
per number read, so that these bytes over the machine's bandwidth bound a step's time.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from engines.paged.bench.load import Round, gaps
from engines.paged.model.config import DecoderConfig

SCHEME_BITS = {"int8": 8, "int4": 4}
# A scale and a bias for each group.
NUMBERS_PER_GROUP = 2


def element_bytes(config: DecoderConfig) -> int:
    return 4 if config.dtype == "float32" else 2


def weight_bytes_per_step(
    config: DecoderConfig, num_sequences: int, quantize: str | None = None, group: int = 64
) -> float:
    """Of all layers and the head; of the embedding's table a step reads one row per sequence. Of a mixture, as many
    experts as the sequences are expected to choose independently."""
    attention = config.hidden_size * config.head_size * (2 * config.num_heads + 2 * config.num_kv_heads)
    experts = config.experts
    sparse = len(experts.layers) if experts is not None else 0
    elements = config.num_layers * attention + config.vocab_size * config.hidden_size
    elements += (config.num_layers - sparse) * 3 * config.hidden_size * config.intermediate_size
    numbers = elements * _bytes_per_weight(config, quantize, group)
    if experts is not None:
        unchosen = (1 - experts.experts_per_token / experts.num_experts) ** num_sequences
        inner = experts.num_experts * (1 - unchosen) * experts.intermediate_size + experts.shared_intermediate_size
        numbers += sparse * 3 * config.hidden_size * inner * _bytes_per_weight(config, quantize, group)
        numbers += sparse * config.hidden_size * experts.num_experts * element_bytes(config)  # the router
    return numbers


def cache_bytes_per_step(config: DecoderConfig, num_sequences: int, context_tokens: float) -> float:
    """Keys and values that the sequences read, within each layer's window."""
    per_layer = 2 * config.num_kv_heads * config.head_size * element_bytes(config)
    seen = sum(min(context_tokens, window) if window else context_tokens for window in config.windows)
    return num_sequences * per_layer * seen


def _bytes_per_weight(config: DecoderConfig, quantize: str | None, group: int) -> float:
    """With scales and biases. Modules that a folder left dense count as quantized."""
    if config.quantization is not None:
        bits, group = config.quantization.bits, config.quantization.group_size
    elif quantize is not None:
        bits = SCHEME_BITS[quantize]
    else:
        return element_bytes(config)
    return bits / 8 + NUMBERS_PER_GROUP * element_bytes(config) / group


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one batch size: medians over its rounds; latencies over all tokens of all rounds.

    Decoding is measured while the whole batch decodes: from the last first token to the first last one.
    """

    batch: int
    tokens_per_second: float  # decoded, of all sequences together
    lowest_tokens_per_second: float
    highest_tokens_per_second: float
    prompt_tokens_per_second: float  # until the last request's first token
    first_token_p50: float  # seconds
    first_token_p95: float
    token_p50: float  # seconds from one token to the next
    token_p95: float
    step_bytes: float  # read by a step at least
    bandwidth: float  # bytes per second read at least
    bandwidth_share: float  # of the device's; above 1 where caches serve


def figures(rounds: Sequence[Round], config: DecoderConfig, quantize: str | None, group: int, best: float) -> Figures:
    """Of the rounds of one batch size, on a device that moves `best` bytes per second."""
    batch, prompt_tokens = rounds[0].batch, rounds[0].prompt_tokens
    rates = [_decode_rate(each) for each in rounds]
    firsts = [timings.token_times[0] - timings.submitted for each in rounds for timings in each.requests]
    between = [gap for each in rounds for gap in gaps(each.requests, *_window(each)) or gaps(each.requests)]
    answer_tokens = len(rounds[0].requests[0].token_times)
    step_bytes = weight_bytes_per_step(config, batch, quantize, group)
    step_bytes += cache_bytes_per_step(config, batch, prompt_tokens + answer_tokens / 2)
    rate = statistics.median(rates)
    return Figures(
        batch=batch,
        tokens_per_second=rate,
        lowest_tokens_per_second=min(rates),
        highest_tokens_per_second=max(rates),
        prompt_tokens_per_second=statistics.median(_prompt_rate(each) for each in rounds),
        first_token_p50=percentile(firsts, 50),
        first_token_p95=percentile(firsts, 95),
        token_p50=percentile(between, 50),
        token_p95=percentile(between, 95),
        step_bytes=step_bytes,
        bandwidth=rate / batch * step_bytes,
        bandwidth_share=rate / batch * step_bytes / best,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """One of the values, in any order."""
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]


def _window(measured: Round) -> tuple[float, float]:
    """When the whole batch decodes; where there is no such time (short answers to many prompts), when any sequence
    does."""
    begins, ends = zip(*((each.token_times[0], each.token_times[-1]) for each in measured.requests), strict=True)
    return (max(begins), min(ends)) if max(begins) < min(ends) else (min(begins), max(ends))


def _decode_rate(measured: Round) -> float:
    begin, end = _window(measured)
    tokens = sum(begin < at <= end for timings in measured.requests for at in timings.token_times)
    return tokens / (end - begin)


def _prompt_rate(measured: Round) -> float:
    begin = min(timings.submitted for timings in measured.requests)
    return measured.batch * measured.prompt_tokens / (max(h.token_times[0] for h in measured.requests) - begin)
