"""What is traced, and where the spans go: options of `pointsman serve`, and OpenTelemetry's standard variables.

    --otlp-endpoint   OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT
    --trace-sample    OTEL_TRACES_SAMPLER, OTEL_TRACES_SAMPLER_ARG

An option takes precedence; whether a caller's decision holds, OTEL_TRACES_SAMPLER says alone (`traceidratio`: it does
not). The exporter itself reads the other variables of OTLP (headers, timeout, certificate,
compression), the SDK OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and OTEL_BSP_*.
Source: OpenTelemetry, Environment Variable Specification and OTLP Exporter Configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

DEFAULT_SHARE = 0.01
DEFAULT_SLOW_SECONDS = 1.0
DEFAULT_RATE = 200

_PATH = "/v1/traces"
_SAMPLERS = {  # whether a caller's decision holds, and the share of the others; None: the argument's
    "always_on": (False, 1.0),
    "always_off": (False, 0.0),
    "traceidratio": (False, None),
    "parentbased_always_on": (True, 1.0),
    "parentbased_always_off": (True, 0.0),
    "parentbased_traceidratio": (True, None),
}


@dataclass(frozen=True, slots=True)
class Tracing:
    """`share` of the requests are sampled when they begin; where `follows_caller`, those with a trace context are if
    their caller samples them. Of the others, those that fail, need another attempt or take `slow` seconds are sampled
    when they end; `slow` 0: none for their time. A worker reports at most `rate` requests a second."""

    endpoint: str = field(repr=False)  # a URL, which may contain a password
    share: float = DEFAULT_SHARE
    follows_caller: bool = True
    slow: float = DEFAULT_SLOW_SECONDS
    ends_decide: bool = True  # on requests that were not sampled when they began
    rate: int = DEFAULT_RATE


def read_tracing(
    endpoint: str | None, share: float | None, slow: float, rate: int, environ: Mapping[str, str]
) -> Tracing | None:
    """The tracing of a gateway; None where it traces nothing.

    Raises: ValueError.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    url = traces_url(endpoint, environ)
    if url is None:
        return None
    follows_caller, sampled = _sampler(environ)
    return Tracing(url, sampled if share is None else share, follows_caller, slow, rate=rate)


def traces_url(endpoint: str | None, environ: Mapping[str, str]) -> str | None:
    """Where spans go; None where neither the option nor a variable says so.

    Raises: ValueError.
    """
    if endpoint:
        name, url = "--otlp-endpoint", endpoint if urlsplit(endpoint).path.endswith(_PATH) else _below(endpoint)
    elif environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() not in ("otlp", ""):
        return None
    elif url := environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""):
        name = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
    elif base := environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", ""):
        name, url = "OTEL_EXPORTER_OTLP_ENDPOINT", _below(base)
    else:
        return None
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{name} is not a URL such as http://127.0.0.1:4318 (OTLP over HTTP)")
    return url


def _below(base: str) -> str:
    return base.rstrip("/") + _PATH


def _sampler(environ: Mapping[str, str]) -> tuple[bool, float]:
    """Raises: ValueError."""
    name = environ.get("OTEL_TRACES_SAMPLER", "").strip().lower()
    if not name:
        return True, DEFAULT_SHARE
    if name not in _SAMPLERS:
        raise ValueError(f"OTEL_TRACES_SAMPLER {name!r} is none of {', '.join(_SAMPLERS)}")
    follows_caller, share = _SAMPLERS[name]
    if share is not None:
        return follows_caller, share
    text = environ.get("OTEL_TRACES_SAMPLER_ARG", "") or "1.0"
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ValueError(f"OTEL_TRACES_SAMPLER_ARG {text!r} is not a share from 0 to 1")
    return follows_caller, share
