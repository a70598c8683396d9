"""What is traced, by options and by the variables of OpenTelemetry."""

import pytest

from gateway.config.tracing import Tracing, read_tracing

BASE = "http://collector:4318"
URL = f"{BASE}/v1/traces"


@pytest.mark.parametrize(
    "endpoint, share, environ, expected",
    [
        (None, None, {}, None),
        (BASE, None, {}, Tracing(URL)),
        (f"{BASE}/", 0.5, {}, Tracing(URL, 0.5)),
        (URL, None, {}, Tracing(URL)),
        ("https://c/otlp", None, {}, Tracing("https://c/otlp/v1/traces")),
        (None, None, {"OTEL_EXPORTER_OTLP_ENDPOINT": BASE}, Tracing(URL)),
        (None, None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/as-it-is"}, Tracing("http://c/as-it-is")),
        (None, None, {"OTEL_EXPORTER_OTLP_ENDPOINT": BASE, "OTEL_TRACES_EXPORTER": "none"}, None),
        (BASE, None, {"OTEL_TRACES_EXPORTER": "none"}, Tracing(URL)),
        (BASE, None, {"OTEL_SDK_DISABLED": "true"}, None),
        (BASE, None, {"OTEL_TRACES_SAMPLER": "always_on"}, Tracing(URL, 1.0, follows_caller=False)),
        (BASE, None, {"OTEL_TRACES_SAMPLER": "parentbased_always_off"}, Tracing(URL, 0.0)),
        (
            BASE,
            None,
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"},
            Tracing(URL, 0.25, follows_caller=False),
        ),
        (BASE, 0.01, {"OTEL_TRACES_SAMPLER": "traceidratio"}, Tracing(URL, 0.01, follows_caller=False)),
    ],
)
def test_tracing(endpoint: str | None, share: float | None, environ: dict[str, str], expected: Tracing | None) -> None:
    """An option has precedence over a variable; without a receiver nothing is traced."""
    assert read_tracing(endpoint, share, 1.0, 200, environ) == expected


@pytest.mark.parametrize(
    "endpoint, environ, text",
    [
        ("collector:4318", {}, "--otlp-endpoint is not a URL"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "grpc://x"}, "OTEL_EXPORTER_OTLP_ENDPOINT is not a URL"),
        (BASE, {"OTEL_TRACES_SAMPLER": "jaeger_remote"}, "OTEL_TRACES_SAMPLER 'jaeger_remote' is none of always_on"),
        (BASE, {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"}, "not a share from 0 to 1"),
    ],
)
def test_what_is_wrong_is_named(endpoint: str | None, environ: dict[str, str], text: str) -> None:
    """The error names the option or the variable."""
    with pytest.raises(ValueError, match=text):
        read_tracing(endpoint, None, 1.0, 200, environ)


def test_a_password_is_not_shown() -> None:
    """A URL may contain one."""
    assert "secret" not in repr(Tracing("http://user:secret@collector"))
