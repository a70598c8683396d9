"""Trace settings of the host and of models; a model without a value of its own has the host's.

Source: Triton server `src/tracer.cc` (UpdateTraceSettingInternal), `src/grpc/grpc_server.cc` RegisterTrace; the trace
extension.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from engines.core.errors import EngineError, ErrorCode, invalid

LEVELS = ("TIMESTAMPS", "TENSORS")
MODES = ("triton", "opentelemetry")
_TRACES_PATH = "/v1/traces"

# Field and range of each number, in Triton's order.
_NUMBERS = {
    "trace_rate": ("rate", 0, 2**32 - 1),
    "trace_count": ("count", -1, 2**31 - 1),
    "log_frequency": ("log_frequency", 0, 2**32 - 1),
}


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """What to trace: `levels` of LEVELS, off where empty; every `rate`th request; `count` requests, -1 for any number.

    Each `log_frequency` traces have a file, 0: all have one.
    """

    levels: tuple[str, ...] = ()
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0
    file: str = ""
    mode: str = "triton"
    options: Mapping[str, str] = field(default_factory=dict)  # of the opentelemetry mode, as --trace-config has them

    @property
    def problem(self) -> str | None:
        """The reason why these settings do not trace, if any."""
        if not self.levels:
            return "tracing is disabled"
        if not self.rate:
            return "sample rate must be non-zero"
        if self.mode == "triton" and not self.file:
            return "trace file name is not given"
        return None

    def write(self, settings: Any) -> None:
        """Set the map of a TraceSettingResponse."""
        settings["trace_level"].value.extend(self.levels or ("OFF",))
        settings["trace_rate"].value.append(str(self.rate))
        settings["trace_count"].value.append(str(self.count))
        if self.mode == "triton":
            settings["log_frequency"].value.append(str(self.log_frequency))
            settings["trace_file"].value.append(self.file)
        settings["trace_mode"].value.append(self.mode)
        for name, value in self.options.items():
            settings[name].value.append(value)


class TraceSettingsBook:
    """The settings in force, by model; "" is the host.

    `changed` is called with the model whose settings are new, with "" for all.
    """

    def __init__(self, default: TraceSettings, changed: Callable[[str], None]) -> None:
        self._default = default
        self._changed = changed
        self._own: dict[str, dict[str, Any]] = {"": {}}  # by model, values by field

    def of(self, model: str) -> TraceSettings:
        """The settings of a model, of the host for ""."""
        return replace(self._default, **{**self._own[""], **self._own.get(model, {})})

    def has_own(self, model: str) -> bool:
        """Whether a model has a value of its own."""
        return bool(self._own.get(model))

    def update(self, model: str, settings: Mapping[str, Sequence[str]]) -> None:
        """Apply the settings of a TraceSetting request; one without values is cleared.

        Raises: EngineError; then nothing has changed.
        """
        own = {**self._own.get(model, {}), **_read(settings)}
        own = {name: value for name, value in own.items() if value is not None}
        merged = replace(self._default, **({**self._own[""], **own} if model else own))
        if merged.levels and (problem := merged.problem):
            raise invalid(f"Attempting to set invalid trace setting :{problem}")
        self._own[model] = own
        self._changed(model)


def _read(settings: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The new values of fields; None clears one."""
    if "trace_file" in settings:
        raise EngineError(ErrorCode.UNSUPPORTED, "trace file location can not be updated through network protocol")
    read: dict[str, Any] = {}
    if (values := settings.get("trace_level")) is not None:
        if "OFF" in values and len(values) > 1:
            raise invalid("Expect only one trace level 'OFF' is specified")
        levels = tuple(level for level in LEVELS if level in values)
        if levels or "OFF" in values or not values:  # Triton ignores an unknown level
            read["levels"] = levels if values else None
    for name, (attribute, least, most) in _NUMBERS.items():
        if (values := settings.get(name)) is not None:
            if len(values) > 1:
                raise invalid(f"expect only 1 value for '{name}'")
            read[attribute] = _number(name, values[0], least, most) if values else None
    return read


def _number(name: str, text: str, least: int, most: int) -> int:
    """Parse like C's stoi, which ignores what follows the digits."""
    match = re.match(r"\s*[+-]?[0-9]+", text)
    if match is None:
        raise invalid(f"Unable to parse '{name}', got: {text}")
    value = int(match[0])
    if not -(2**31) <= value < 2**31:
        raise invalid(f"Unable to parse '{name}', value is out of range [ {least}, {most} ], got: {text}")
    if value < least:
        raise invalid(f"Unable to parse '{name}'. Expecting value >= {least}, got: {text}")
    return value


def read_trace_options(options: Sequence[str]) -> TraceSettings:
    """Parse `--trace-config`: `<mode>,<setting>=<value>`, or `<setting>=<value>` for all modes. Raises: ValueError."""
    fields: dict[str, Any] = {}
    levels: list[str] = []
    others: dict[str, dict[str, str]] = {mode: {} for mode in MODES}
    for option in options:
        mode, comma, setting = option.partition(",") if "," in option.partition("=")[0] else ("", "", option)
        name, equals, value = setting.partition("=")
        if not equals or not name or (comma and mode not in MODES):
            raise ValueError(f"--trace-config is '<setting>=<value>' or '<mode>,<setting>=<value>', not '{option}'")
        if mode:
            others[mode][name] = value
        elif name == "level":
            levels.append(value)
        elif name == "mode" and value in MODES:
            fields["mode"] = value
        elif name in ("rate", "count"):
            fields[name] = _option_number(name, value)
        else:
            raise ValueError(f"--trace-config does not know '{option}'")
    fields["file"] = others["triton"].pop("file", "")
    if (frequency := others["triton"].pop("log-frequency", None)) is not None:
        fields["log_frequency"] = _option_number("log-frequency", frequency)
    if unknown := others["triton"]:
        raise ValueError(f"--trace-config triton does not know {', '.join(unknown)}; there are file, log-frequency")
    for level in levels:
        if level not in (*LEVELS, "OFF"):
            raise ValueError(f"--trace-config level is OFF, TIMESTAMPS or TENSORS, not '{level}'")
    fields["levels"] = tuple(level for level in LEVELS if level in levels)
    mode = fields.get("mode", "triton")
    return TraceSettings(**fields, options=others["opentelemetry"] if mode == "opentelemetry" else {})


def with_otlp_endpoint(settings: TraceSettings, endpoint: str) -> TraceSettings:
    """The same, as spans to a receiver of OTLP over HTTP at this URL.

    Raises: ValueError.
    """
    if not endpoint.startswith(("http://", "https://")):
        raise ValueError(f"--otlp-endpoint is a URL such as http://127.0.0.1:4318, not '{endpoint}'")
    url = endpoint if endpoint.endswith(_TRACES_PATH) else endpoint.rstrip("/") + _TRACES_PATH
    options = {**settings.options, "url": url}
    return replace(settings, levels=settings.levels or ("TIMESTAMPS",), mode="opentelemetry", options=options)


def _option_number(name: str, text: str) -> int:
    try:
        number = int(text)
        if number < 0 and name != "count":  # -1: any number
            raise ValueError("negative")
        return number
    except ValueError:
        raise ValueError(f"--trace-config {name} is a whole number, not '{text}'") from None
