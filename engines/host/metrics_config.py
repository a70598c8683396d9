"""Which latencies the metrics have: the options of `--metrics-config`.

Source: Triton server `command_line_parser.cc` (ParseMetricsConfigOption); core `metric_model_reporter.cc`; Triton's
metrics documentation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_OPTION = "--metrics-config"
_BOOLEANS = {"true": True, "false": False}
_SETTINGS = "it is counter_latencies, summary_latencies or summary_quantiles"
# Of the pool that Triton has by default.
PINNED_POOL_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """Latencies as counters of microseconds, as summaries with these quantiles, or both. `pinned_pool_bytes` is only
    reported: the host pins no memory."""

    counter_latencies: bool = True
    summary_latencies: bool = False
    quantiles: tuple[float, ...] = (0.5, 0.9, 0.95, 0.99, 0.999)
    pinned_pool_bytes: int = PINNED_POOL_BYTES


def read_metrics_options(texts: Iterable[str], pinned_pool_bytes: int = PINNED_POOL_BYTES) -> MetricsConfig:
    """`<setting>=<value>`, the last of each setting. Raises: ValueError."""
    values: dict[str, str] = {}
    for text in texts:
        setting, equals, value = text.partition("=")
        if not equals or not setting or not value or "," in setting:
            raise ValueError(f"{_OPTION} is '<setting>=<value>', not '{text}'")
        values[setting] = value
    default = MetricsConfig()
    config = MetricsConfig(
        _flag(values, "counter_latencies", default.counter_latencies),
        _flag(values, "summary_latencies", default.summary_latencies),
        _read_quantiles(values.pop("summary_quantiles")) if "summary_quantiles" in values else default.quantiles,
        pinned_pool_bytes,
    )
    if values:
        raise ValueError(f"{_OPTION} has no setting '{next(iter(values))}': {_SETTINGS}")
    return config


def _flag(values: dict[str, str], setting: str, default: bool) -> bool:
    """Raises: ValueError."""
    text = values.pop(setting, None)
    if text is None:
        return default
    if text not in _BOOLEANS:
        raise ValueError(f"{_OPTION} {setting} is true or false, not '{text}'")
    return _BOOLEANS[text]


def _read_quantiles(text: str) -> tuple[float, ...]:
    """`0.5:0.05,0.9:0.01`: quantiles with their errors, which the host's summaries do not need. Raises: ValueError."""
    quantiles = []
    for pair in text.split(","):
        try:
            quantile, error = map(float, pair.split(":"))
        except ValueError:
            quantile = error = -1.0
        if not (0 <= quantile <= 1 and 0 <= error <= 1):
            raise ValueError(
                f"{_OPTION} summary_quantiles is '<quantile>:<error>,...' with numbers from 0 to 1, not '{text}'"
            )
        quantiles.append(quantile)
    return tuple(quantiles)
