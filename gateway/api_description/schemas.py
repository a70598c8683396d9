"""The bodies of the inference API as JSON schemas (2020-12, as OpenAPI 3.1 has them).

Schemas say what the gateway and V2 need; what OpenAI and Anthropic define beyond that, and what engines add, may stand
beside it. Source: KServe V2 with Triton's extensions; the OpenAI and Anthropic API references.
"""

from __future__ import annotations

from typing import Any

from gateway.protocol.datatypes import DATATYPES
from gateway.protocol.errors import ErrorKind

Json = dict[str, Any]

_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_FREE: Json = {"type": "object", "additionalProperties": True}


def _object(required: tuple[str, ...] = (), /, **properties: Json) -> Json:
    made: Json = {"type": "object", "properties": properties, "additionalProperties": True}
    if required:
        made["required"] = list(required)
    return made


def _list(of: Json) -> Json:
    return {"type": "array", "items": of}


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


_PARAMETERS: Json = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean"]},
    "description": "Extensions of V2: priority, timeout, sequence_id, shared memory, and those of the model's backend.",
}
# Generators of clients want to know what lists hold.
_TEXT_OR_LIST: Json = {"anyOf": [_TEXT, _list({}), {"type": "null"}]}
_SHAPE = _list({"type": "integer", "minimum": -1})
_DATATYPE: Json = {"type": "string", "examples": sorted(DATATYPES)}
_MESSAGE = _object(("role",), role=_TEXT, content=_TEXT_OR_LIST)
_SAMPLING: dict[str, Json] = {
    "stream": {"type": ["boolean", "null"], "description": "Whether the reply is a stream of events."},
    "temperature": {"type": ["number", "null"]},
    "max_tokens": {"type": ["integer", "null"]},
}
_LIMITED = _SAMPLING | {"max_tokens": _COUNT}
_NULLABLE: Json = {"type": ["string", "null"]}
_USAGE: Json = {"type": ["object", "null"], "additionalProperties": True}
_REASONS = sorted(kind.value for kind in ErrorKind)

SCHEMAS: dict[str, Json] = {
    # V2
    "ServerMetadata": _object(("name", "version"), name=_TEXT, version=_TEXT, extensions=_list(_TEXT)),
    "ModelMetadata": _object(
        ("name",), name=_TEXT, versions=_list(_TEXT), platform=_TEXT, inputs=_list(_FREE), outputs=_list(_FREE)
    ),
    "ModelConfig": _FREE | {"description": "Triton's ModelConfig, as JSON."},
    "Statistics": _object(model_stats=_list(_FREE)),
    "Settings": _FREE | {"description": "Triton's log or trace settings by name; null clears one."},
    "RepositoryIndex": _list(_object(("name",), name=_TEXT, version=_TEXT, state=_TEXT, reason=_TEXT)),
    "RepositoryRequest": _object(parameters=_FREE, ready={"type": "boolean"}),
    "SharedMemory": {"anyOf": [_list(_FREE), _FREE], "description": "Regions of this client."},
    "SharedMemoryRegion": _object(key=_TEXT, offset=_COUNT, byte_size=_COUNT, device_id=_COUNT, raw_handle=_FREE),
    "Tensor": _object(
        ("name", "shape", "datatype"),
        name=_TEXT,
        shape=_SHAPE,
        datatype=_DATATYPE,
        parameters=_PARAMETERS,
        data={
            "type": "array",
            "items": {},
            "description": "Flat or nested, row-major; absent where it is binary.",
        },
    ),
    "RequestedOutput": _object(("name",), name=_TEXT, parameters=_PARAMETERS),
    "InferRequest": _object(
        ("inputs",),
        id=_TEXT,
        parameters=_PARAMETERS,
        inputs=_list(ref("Tensor")),
        outputs=_list(ref("RequestedOutput")),
    ),
    "InferResponse": _object(
        ("outputs",),
        model_name=_TEXT,
        model_version=_TEXT,
        id=_TEXT,
        parameters=_PARAMETERS,
        outputs=_list(ref("Tensor")),
    ),
    "GenerateRequest": _FREE | {"description": "Inputs of the model by name (text_input), and parameters."},
    "GenerateResponse": _FREE | {"description": "Outputs of the model by name (text_output)."},
    "V2Error": _object(("error",), error=_TEXT),
    # OpenAI
    "ChatRequest": _object(("model", "messages"), model=_TEXT, messages=_list(_MESSAGE), **_SAMPLING),
    "ChatCompletion": _object(("choices",), id=_TEXT, model=_TEXT, choices=_list(_FREE), usage=_USAGE),
    "CompletionRequest": _object(("model", "prompt"), model=_TEXT, prompt=_TEXT_OR_LIST, **_SAMPLING),
    "Completion": _object(("choices",), id=_TEXT, model=_TEXT, choices=_list(_FREE), usage=_USAGE),
    "EmbeddingRequest": _object(("model", "input"), model=_TEXT, input=_TEXT_OR_LIST),
    "Embeddings": _object(("data",), data=_list(_FREE), model=_TEXT, usage=_USAGE),
    "ResponseRequest": _object(("model", "input"), model=_TEXT, input=_TEXT_OR_LIST, **_SAMPLING),
    "Response": _object(("output",), id=_TEXT, model=_TEXT, output=_list(_FREE), usage=_USAGE),
    "ModelList": _object(("data",), object=_TEXT, data=_list(ref("Model"))),
    "Model": _object(("id",), id=_TEXT, object=_TEXT, created={"type": "integer"}, owned_by=_TEXT),
    "OpenAIError": _object(
        ("error",),
        error=_object(
            ("message",),
            message=_TEXT,
            type=_TEXT,
            param={"type": ["string", "null"]},
            code={"type": ["string", "null"]},
        ),
    ),
    # Anthropic
    "MessagesRequest": _object(
        ("model", "messages", "max_tokens"),
        model=_TEXT,
        messages=_list(_MESSAGE),
        **_LIMITED,
    ),
    "Message": _object(("content",), id=_TEXT, role=_TEXT, model=_TEXT, content=_list(_FREE), usage=_USAGE),
    "CountRequest": _object(("model", "messages"), model=_TEXT, messages=_list(_MESSAGE)),
    "TokenCount": _object(("input_tokens",), input_tokens=_COUNT),
    "AnthropicError": _object(
        ("type", "error"), type=_TEXT, error=_object(("type", "message"), type=_TEXT, message=_TEXT)
    ),
    # The gateway's own
    "Feedback": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "request_id": _TEXT | {"maxLength": 128, "description": "The reply's x-request-id."},
            "session": _TEXT,
            "experiment": _TEXT,
            "name": _TEXT | {"default": "rating", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"},
            "value": {"type": "number"},
            "label": _TEXT | {"minLength": 1, "maxLength": 100},
        },
        "description": "A request_id or a session, and a value, a label or both.",
    },
    # OpenFeature's remote evaluation protocol
    "FlagRequest": _object(
        context=_object(
            targetingKey=_TEXT | {"description": "The unit: a session, or the value of the experiment's header."}
        )
    ),
    "Flag": _object(
        ("key", "value", "variant", "reason", "metadata"),
        key=_TEXT,
        value=_TEXT | {"description": "The arm."},
        variant=_TEXT,
        reason={"type": "string", "enum": ["STATIC", "SPLIT", "TARGETING_MATCH"]},
        metadata=_object(),
    ),
    "Flags": _object(("flags",), flags={"type": "array", "items": {"anyOf": [ref("Flag"), ref("FlagFailure")]}}),
    "FlagFailure": _object(
        key=_TEXT,
        errorCode={
            "type": "string",
            "enum": ["PARSE_ERROR", "TARGETING_KEY_MISSING", "INVALID_CONTEXT", "FLAG_NOT_FOUND", "GENERAL"],
        },
        errorDetails=_TEXT,
    ),
    "FeedbackResult": _object(("counted",), counted={"type": "boolean"}),
    "Reason": {"type": "string", "enum": _REASONS, "description": "The kind of a failure of the gateway itself."},
}
