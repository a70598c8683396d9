"""Triton's errors for sequence batching and its control inputs.

Source: Triton core `model_config_utils.cc` ValidateModelConfig, GetBooleanSequenceControlProperties,
GetTypedSequenceControlProperties.
"""

from __future__ import annotations

from collections.abc import Iterator

from engines.repository.config.parser import require
from gateway.protocol.protobuf import Message, message

BOOLEAN_KINDS = ("CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_READY")
CORRELATION_KIND = "CONTROL_SEQUENCE_CORRID"
VALUE_FIELDS = ("int32_false_true", "fp32_false_true", "bool_false_true")
CORRELATION_DATATYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")


def check_sequence_batching(config: Message) -> None:
    """Raises: ConfigError."""
    name, batching = config.name, config.sequence_batching
    require(
        not config.response_cache.enable,
        f"Response Cache does not currently support model {name} with sequence batching scheduler. "
        "Please disable the response cache.",
        "response_cache",
    )
    seen: set[str] = set()
    for control_input in batching.control_input:
        _require(control_input.name, f"control tensor must have a name for {name}", "control_input")
        text = f"control tensor '{control_input.name}' is specified for multiple control kinds for {name}"
        _require(control_input.name not in seen, text, control_input.name)
        seen.add(control_input.name)
    for kind in BOOLEAN_KINDS:
        for control in _only_one(config, kind):
            _check_boolean(control, kind, name)
    for control in _only_one(config, CORRELATION_KIND):
        _check_correlation(control, name)
    for size in batching.oldest.preferred_batch_size if batching.HasField("oldest") else ():
        _require(size > 0, f"preferred batch size must be positive for {name}", "oldest")
        _require(size <= config.max_batch_size, f"preferred batch size must be <= max batch size for {name}", "oldest")
    is_in_range = not batching.HasField("direct") or 0.0 <= batching.direct.minimum_slot_utilization <= 1.0
    text = f"minimum slot utilization must be in range (0.0, 1.0] for {name}"
    _require(is_in_range, text, "minimum_slot_utilization")


def _require(holds: object, text: str, word: str) -> None:
    require(holds, f"sequence batching {text}", "sequence_batching", word)


def _only_one(config: Message, kind: str) -> Iterator[Message]:
    """The control of a kind, if there is one. Raises: ConfigError at the second."""
    schema = message("inference.ModelSequenceBatching").DESCRIPTOR.nested_types_by_name["Control"]
    number = schema.enum_types_by_name["Kind"].values_by_name[kind].number
    controls = [
        control
        for control_input in config.sequence_batching.control_input
        for control in control_input.control
        if control.kind == number
    ]
    yield from controls[:1]
    _require(len(controls) < 2, f"specifies multiple {kind} tensors for {config.name}", kind)


def _check_boolean(control: Message, kind: str, model: str) -> None:
    fields = [field for field in VALUE_FIELDS if getattr(control, field)]
    text = "must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for"
    _require(fields, f"{text} {kind} for {model}", kind)
    text = "specifies more than one from 'int32_false_true', 'fp32_false_true' and 'bool_false_true' for"
    _require(len(fields) == 1, f"{text} {kind} for {model}", kind)
    text = f"control '{fields[0]}' must have exactly 2 entries for {kind} for {model}"
    _require(len(getattr(control, fields[0])) == 2, text, kind)


def _check_correlation(control: Message, model: str) -> None:
    text = "must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for"
    has_values = any(getattr(control, field) for field in VALUE_FIELDS)
    _require(not has_values, f"{text} {CORRELATION_KIND} for {model}", CORRELATION_KIND)
    datatypes = message("inference.ModelConfig").DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_number
    require(
        datatypes[control.data_type].name in CORRELATION_DATATYPES,
        f"unexpected data type for control {CORRELATION_KIND} for {model}. Allowed data types are TYPE_UINT64, "
        "TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
        "sequence_batching",
        CORRELATION_KIND,
    )
