"""Trace settings: models have the host's values where they have none."""

import pytest

from engines.core.errors import EngineError
from engines.host.trace_settings import TraceSettings, TraceSettingsBook, read_trace_options

DEFAULT = TraceSettings(file="/tmp/trace", rate=1)


def book(default: TraceSettings = DEFAULT) -> TraceSettingsBook:
    return TraceSettingsBook(default, lambda model: None)


def test_models_follow_the_host() -> None:
    """A model's value overrides the host's; a cleared one falls back."""
    settings = book()
    settings.update("", {"trace_rate": ["5"], "trace_level": ["TIMESTAMPS"]})
    settings.update("m", {"trace_rate": ["7"]})
    assert (settings.of("m").rate, settings.of("m").levels, settings.of("n").rate) == (7, ("TIMESTAMPS",), 5)
    settings.update("m", {"trace_rate": []})
    settings.update("", {"trace_level": []})
    assert settings.of("m") == settings.of("") == TraceSettings(file="/tmp/trace", rate=5)


REFUSED = [
    ({"trace_rate": ["x"]}, "Unable to parse 'trace_rate', got: x"),
    ({"trace_count": ["-2"]}, "Unable to parse 'trace_count'. Expecting value >= -1, got: -2"),
    (
        {"trace_count": ["99999999999"]},
        "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: 99999999999",
    ),
    ({"trace_rate": ["1", "2"]}, "expect only 1 value for 'trace_rate'"),
    ({"trace_level": ["OFF", "TENSORS"]}, "Expect only one trace level 'OFF' is specified"),
    ({"trace_file": ["/x"]}, "trace file location can not be updated through network protocol"),
    (
        {"trace_level": ["TIMESTAMPS"], "trace_rate": ["0"]},
        "Attempting to set invalid trace setting :sample rate must be non-zero",
    ),
]


@pytest.mark.parametrize("output, text", REFUSED)
def test_wrong_settings_change_nothing(output: dict[str, list[str]], text: str) -> None:
    """Wrong settings are refused with Triton's text, and nothing changes."""
    settings = book()
    with pytest.raises(EngineError) as raised:
        settings.update("", output)
    assert raised.value.message == text
    assert settings.of("") == DEFAULT


def test_levels_need_a_file() -> None:
    """Like Triton, traces need a file."""
    with pytest.raises(EngineError, match="trace file name is not given"):
        book(TraceSettings()).update("", {"trace_level": ["TIMESTAMPS"]})


def test_unknown_levels_and_settings_are_passed_over() -> None:
    """Unknown levels and settings are ignored, and a number ends at its last digit, as in Triton."""
    settings = book()
    settings.update("m", {"trace_level": ["WHAT"], "nothing": ["1"], "trace_rate": ["12abc"]})
    assert settings.of("m") == TraceSettings(file="/tmp/trace", rate=12)


def test_options() -> None:
    """--trace-config as Triton reads it."""
    assert read_trace_options(
        ["triton,file=/t", "triton,log-frequency=3", "rate=2", "count=4", "level=TENSORS", "level=TIMESTAMPS"]
    ) == TraceSettings(levels=("TIMESTAMPS", "TENSORS"), rate=2, count=4, log_frequency=3, file="/t")
    otel = read_trace_options(["mode=opentelemetry", "opentelemetry,url=http://127.0.0.1:4318", "level=TIMESTAMPS"])
    assert (otel.mode, otel.options, otel.problem) == ("opentelemetry", {"url": "http://127.0.0.1:4318"}, None)


@pytest.mark.parametrize("option", ["rate", "rate=x", "level=LOUD", "mode=other", "triton,colour=blue", "zipkin,url=x"])
def test_wrong_options_are_reported(option: str) -> None:
    """A mistake is an error of the command line."""
    with pytest.raises(ValueError, match="--trace-config"):
        read_trace_options([option])
