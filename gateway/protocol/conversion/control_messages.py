"""Messages and JSON: the fields of the one as the values of the other, in the forms that Triton gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gateway.protocol import protobuf
from gateway.protocol.protobuf import Message

Json = Any


class Form(NamedTuple):
    """How a message stands in JSON, or a part of it."""

    write: Callable[[Message], Json]
    read: Callable[[Message, Json], None]


# Protobuf writes 64-bit numbers as texts into JSON, and Triton turns them back (core `src/model_config_utils.cc`
# ModelConfigToJson): all but these.
_LEFT_AS_TEXTS = {
    "inference.ModelOptimizationPolicy.Cuda.GraphSpec.Shape.dim",
    "inference.ModelSequenceBatching.InitialState.dims",
    "inference.ModelInstanceGroup.SecondaryDevice.device_id",
}


def read_fields(message: Message, fields: Json) -> None:
    """Set a message's fields from a JSON object of their names; what the schema does not know is left out. Raises:
    ValueError where a value does not fit its field."""
    from google.protobuf.json_format import ParseDict, ParseError

    if not isinstance(fields, dict):
        raise ValueError("it is no JSON object")
    try:
        ParseDict(fields, message, ignore_unknown_fields=True, descriptor_pool=protobuf.pool())
    except (ParseError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error


def write_fields(message: Message) -> dict[str, Json]:
    """A message's fields by name: defaults too where they cannot be told from unset, numbers as numbers."""
    from google.protobuf.json_format import MessageToDict

    members: dict[str, Json] = MessageToDict(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        descriptor_pool=protobuf.pool(),
    )
    return _with_numbers(members, message.DESCRIPTOR)


FIELDS = Form(write_fields, read_fields)
NOTHING = Form(lambda message: None, lambda message, value: None)


def _with_numbers(members: dict[str, Json], schema: Any) -> dict[str, Json]:
    """In the schema's order too: protobuf tells defaults last."""
    return {field.name: _numbers(members[field.name], field) for field in schema.fields if field.name in members}


def _numbers(value: Json, field: Any) -> Json:
    if isinstance(value, list):
        return [_numbers(element, field) for element in value]
    if field.message_type is None:
        is_wide = field.cpp_type in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64)
        return int(value) if is_wide and field.full_name not in _LEFT_AS_TEXTS else value
    if field.message_type.GetOptions().map_entry:
        of_value = field.message_type.fields_by_name["value"]
        return {key: _numbers(element, of_value) for key, element in value.items()}
    return _with_numbers(value, field.message_type)
