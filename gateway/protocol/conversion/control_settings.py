"""Trace and log settings: gRPC's maps of values and the JSON objects of Triton's REST.

Source: Triton's trace and logging extensions; server `src/http_server.cc` HandleTrace, HandleLogging,
`src/grpc/grpc_server.cc` RegisterTrace, RegisterLogging.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.protocol.conversion.control_messages import Form, Json
from gateway.protocol.errors import bad_request
from gateway.protocol.protobuf import Message

# In the order in which Triton's REST tells them. A level is several values, everything else is one.
_TRACE_ORDER = ("trace_level", "trace_rate", "trace_count", "log_frequency", "trace_file", "trace_mode")
_LEVEL = "trace_level"
_LOG_ORDER = ("log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format")

# Triton's REST calls a value of another type an internal error; its gRPC says what it expects.
_LOG_TYPES = {
    "log_info": ("bool_param", "boolean"),
    "log_warning": ("bool_param", "boolean"),
    "log_error": ("bool_param", "boolean"),
    "log_verbose_level": ("uint32_param", "int32"),
    "log_format": ("string_param", "string"),
}


def _write_trace_body(message: Message) -> Json:
    """None, which only asks, where nothing is to be set; a setting without a value is cleared: null."""
    settings = {name: list(message.settings[name].value) for name in _ordered(message.settings, _TRACE_ORDER)}
    for name, values in settings.items():
        if len(values) > 1 and name != _LEVEL:
            raise bad_request(f"expect only 1 value for '{name}'")
    return {name: _trace_value(name, values) for name, values in settings.items()} or None


def _read_trace_body(message: Message, body: Json) -> None:
    """Null clears a setting. No level at all leaves the level as it is, which gRPC says by not naming it."""
    for name, value in body.items():
        if value == [] and name == _LEVEL:
            continue
        values = _trace_values(value)
        if values is None or (isinstance(value, list) is not (name == _LEVEL) and value is not None):
            form = "an array of strings" if name == _LEVEL else "a string"
            raise bad_request(f"trace setting '{name}' must be {form}, or null to clear it")
        message.settings[name].value.extend(values)


def _write_trace_reply(message: Message) -> Json:
    settings = message.settings
    return {name: _trace_value(name, list(settings[name].value)) for name in _ordered(settings, _TRACE_ORDER)}


def _read_trace_reply(message: Message, reply: Json) -> None:
    for name, value in _settings(reply):
        values = _trace_values(value)
        if values is None:
            raise ValueError(f"setting '{name}' is no string")
        message.settings[name].value.extend(values)


def _write_log_body(message: Message) -> Json:
    """None, which only asks, where nothing is to be set."""
    settings = message.settings
    return {name: _checked_log_value(name, settings[name]) for name in _ordered(settings, _LOG_ORDER)} or None


def _read_log_body(message: Message, body: Json) -> None:
    """Null leaves a setting as it is, which gRPC says by not naming it."""
    for name, value in body.items():
        if value is not None and not _set_log_value(message.settings[name], value):
            raise bad_request(f"log setting '{name}' must be a boolean, a string or a whole number of 32 bits")


def _write_log_reply(message: Message) -> Json:
    return {name: _log_value(message.settings[name]) for name in _ordered(message.settings, _LOG_ORDER)}


def _read_log_reply(message: Message, reply: Json) -> None:
    for name, value in _settings(reply):
        if not _set_log_value(message.settings[name], value):
            raise ValueError(f"setting '{name}' is neither a boolean nor a string nor a whole number of 32 bits")


def _ordered(names: Iterable[str], order: Sequence[str]) -> list[str]:
    known = set(names)
    return [name for name in order if name in known] + sorted(known.difference(order))


def _settings(reply: Json) -> Iterable[tuple[str, Json]]:
    if not isinstance(reply, dict):
        raise ValueError("it is no JSON object")
    return reply.items()


def _trace_value(name: str, values: list[str]) -> Json:
    if not values:
        return None
    return values if name == _LEVEL or len(values) > 1 else values[0]


def _trace_values(value: Json) -> list[str] | None:
    if value is None:
        return []
    values = value if isinstance(value, list) else [value]
    return values if all(isinstance(each, str) for each in values) else None


def _log_value(value: Message) -> Json:
    choice = value.WhichOneof("parameter_choice")
    return None if choice is None else getattr(value, choice)


def _checked_log_value(name: str, value: Message) -> Json:
    choice = value.WhichOneof("parameter_choice")
    expected, called = _LOG_TYPES.get(name, (choice, "value"))
    if choice is None or choice != expected:
        raise bad_request(f"expect {called} for '{name}'")
    return getattr(value, choice)


def _set_log_value(setting: Message, value: Json) -> bool:
    """Whether the value is one that gRPC can say."""
    if isinstance(value, bool):
        setting.bool_param = value
    elif isinstance(value, str):
        setting.string_param = value
    elif isinstance(value, int) and 0 <= value < 1 << 32:
        setting.uint32_param = value
    else:
        return False
    return True


TRACE_BODY = Form(_write_trace_body, _read_trace_body)
TRACE_REPLY = Form(_write_trace_reply, _read_trace_reply)
LOG_BODY = Form(_write_log_body, _read_log_body)
LOG_REPLY = Form(_write_log_reply, _read_log_reply)
