"""Triton's errors for sequence batching and its control inputs.

Source: Triton core `model_config_utils.cc` ValidateModelConfig, GetBooleanSequenceControlProperties,
GetTypedSequenceControlProperties.
"""

from __future__ import annotations

from collections.abc import Iterator

from engines.repository.config.parser import ConfigError
from gateway.protocol.protobuf import Message, message

BOOLEAN_KINDS = ("CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_READY")
CORRELATION_KIND = "CONTROL_SEQUENCE_CORRID"
VALUE_FIELDS = ("int32_false_true", "fp32_false_true", "bool_false_true")
CORRELATION_DATATYPES = ("TYPE_UINT64", "TYPE_INT64", "TYPE_UINT32", "TYPE_INT32", "TYPE_STRING")


def check_sequence_batching(config: Message) -> None:
    """Raises: ConfigError."""
    batching = config.sequence_batching
    if config.response_cache.enable:
        raise ConfigError(
            f"Response Cache does not currently support model {config.name} with sequence batching scheduler. "
            "Please disable the response cache.",
            "response_cache",
        )
    _check_control_names(config)
    for kind in BOOLEAN_KINDS:
        for control in _only_one(config, kind):
            _check_boolean(control, kind, config.name)
    for control in _only_one(config, CORRELATION_KIND):
        _check_correlation(control, config.name)
    for size in batching.oldest.preferred_batch_size if batching.HasField("oldest") else ():
        if size <= 0:
            raise _wrong(f"sequence batching preferred batch size must be positive for {config.name}", "oldest")
        if size > config.max_batch_size:
            text = f"sequence batching preferred batch size must be <= max batch size for {config.name}"
            raise _wrong(text, "oldest")
    if batching.HasField("direct") and not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
        text = f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {config.name}"
        raise _wrong(text, "minimum_slot_utilization")


def _check_control_names(config: Message) -> None:
    seen: set[str] = set()
    for control_input in config.sequence_batching.control_input:
        if not control_input.name:
            raise _wrong(f"sequence batching control tensor must have a name for {config.name}", "control_input")
        if control_input.name in seen:
            raise _wrong(
                f"sequence batching control tensor '{control_input.name}' is specified for multiple control kinds for "
                f"{config.name}",
                control_input.name,
            )
        seen.add(control_input.name)


def _only_one(config: Message, kind: str) -> Iterator[Message]:
    """The control of a kind, if there is one. Raises: ConfigError at the second."""
    number = _number(kind)
    controls = [
        control
        for control_input in config.sequence_batching.control_input
        for control in control_input.control
        if control.kind == number
    ]
    yield from controls[:1]
    if len(controls) > 1:
        raise _wrong(f"sequence batching specifies multiple {kind} tensors for {config.name}", kind)


def _number(kind: str) -> int:
    schema = message("inference.ModelSequenceBatching").DESCRIPTOR.nested_types_by_name["Control"]
    return int(schema.enum_types_by_name["Kind"].values_by_name[kind].number)


def _check_boolean(control: Message, kind: str, model: str) -> None:
    fields = [field for field in VALUE_FIELDS if getattr(control, field)]
    if not fields:
        raise _wrong(
            "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
            f"{kind} for {model}",
            kind,
        )
    if len(fields) > 1:
        raise _wrong(
            "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and "
            f"'bool_false_true' for {kind} for {model}",
            kind,
        )
    if len(getattr(control, fields[0])) != 2:
        raise _wrong(
            f"sequence batching control '{fields[0]}' must have exactly 2 entries for {kind} for {model}", kind
        )


def _check_correlation(control: Message, model: str) -> None:
    if any(getattr(control, field) for field in VALUE_FIELDS):
        raise _wrong(
            "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
            f"{CORRELATION_KIND} for {model}",
            CORRELATION_KIND,
        )
    datatypes = message("inference.ModelConfig").DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_number
    if datatypes[control.data_type].name not in CORRELATION_DATATYPES:
        raise _wrong(
            f"unexpected data type for control {CORRELATION_KIND} for {model}. Allowed data types are TYPE_UINT64, "
            "TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
            CORRELATION_KIND,
        )


def _wrong(text: str, word: str) -> ConfigError:
    return ConfigError(text, "sequence_batching", word)
