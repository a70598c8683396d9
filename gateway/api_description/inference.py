"""The OpenAPI document of the inference ports: paths, operations and errors are those of the tables in
`gateway.protocol`, so that it cannot say what the gateway does not do.

Which paths have an engine behind them is the rules' business: a gateway for language models alone answers 404
(`no_route`) or 501 (`unsupported`) to the others.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from itertools import groupby
from typing import Any, NamedTuple

from gateway.api_description.schemas import SCHEMAS, ref
from gateway.protocol.errors import ErrorKind
from gateway.protocol.operations import OF_V2, ApiCall, LlmApi, Operation, path_templates
from gateway.sessions.client_pin import PIN_FIELD

Json = dict[str, Any]


class Bodies(NamedTuple):
    """What an operation takes and gives: names of schemas; "" where there is no JSON."""

    summary: str
    request: str = ""
    reply: str = ""
    is_optional: bool = False  # the request's body
    streams: bool = False  # events, where the request asks for them or always


# By operation, and by API where several have one.
_BODIES: dict[Operation | LlmApi, Bodies] = {
    Operation.INFER: Bodies("Infer on tensors.", "InferRequest", "InferResponse"),
    Operation.GENERATE: Bodies("Generate text.", "GenerateRequest", "GenerateResponse"),
    Operation.GENERATE_STREAM: Bodies("Generate a stream of responses.", "GenerateRequest", streams=True),
    LlmApi.CHAT: Bodies("Complete a chat, as OpenAI.", "ChatRequest", "ChatCompletion", streams=True),
    LlmApi.COMPLETIONS: Bodies("Complete a text, as OpenAI.", "CompletionRequest", "Completion", streams=True),
    LlmApi.EMBEDDINGS: Bodies("Embed texts, as OpenAI.", "EmbeddingRequest", "Embeddings"),
    LlmApi.RESPONSES: Bodies("Create a response, as OpenAI.", "ResponseRequest", "Response", streams=True),
    LlmApi.MESSAGES: Bodies("Create a message, as Anthropic.", "MessagesRequest", "Message", streams=True),
    Operation.COUNT_TOKENS: Bodies("Count the tokens of a message, as Anthropic.", "CountRequest", "TokenCount"),
    Operation.MODEL_METADATA: Bodies("Describe a model.", reply="ModelMetadata"),
    Operation.MODEL_READY: Bodies("Whether a model is ready: 200 or 400."),
    Operation.MODEL_CONFIG: Bodies("A model's configuration.", reply="ModelConfig"),
    Operation.MODEL_STATS: Bodies("A model's statistics, of all endpoints.", reply="Statistics"),
    Operation.MODEL_TRACE: Bodies("A model's trace settings.", "Settings", "Settings", is_optional=True),
    Operation.LOAD: Bodies("Load a model on every endpoint (--allow-control).", "RepositoryRequest", is_optional=True),
    Operation.UNLOAD: Bodies("Unload a model on every endpoint.", "RepositoryRequest", is_optional=True),
    Operation.SERVER_METADATA: Bodies("Describe the server.", reply="ServerMetadata"),
    Operation.SERVER_LIVE: Bodies("Whether the gateway lives."),
    Operation.SERVER_READY: Bodies("Whether the gateway has a healthy engine: 200 or 400."),
    Operation.SERVER_STATS: Bodies("All models' statistics.", reply="Statistics"),
    Operation.REPOSITORY_INDEX: Bodies("List models.", "RepositoryRequest", "RepositoryIndex", is_optional=True),
    Operation.SHARED_MEMORY: Bodies(
        "Shared memory regions of this client.", "SharedMemoryRegion", "SharedMemory", is_optional=True
    ),
    Operation.TRACE: Bodies("Trace settings of all engines.", "Settings", "Settings", is_optional=True),
    Operation.LOGGING: Bodies("Log settings of all engines.", "Settings", "Settings", is_optional=True),
    Operation.MODEL_LIST: Bodies("List models, as OpenAI.", reply="ModelList"),
    Operation.FLAGS: Bodies("Evaluate all experiments as flags, by OpenFeature's protocol.", "FlagRequest", "Flags"),
    Operation.FEEDBACK: Bodies("Say how good an answer was.", "Feedback", "FeedbackResult"),
}
_JSON, _EVENTS, _BINARY = "application/json", "text/event-stream", "application/octet-stream"
_TENSORS: Json = {
    "type": "string",
    "format": "binary",
    "description": "JSON, then tensors: Inference-Header-Content-Length.",
}
_PIN = PIN_FIELD.decode()

# Fields of replies: what each says; with `is_error`, of failures of the gateway alone.
REPLY_HEADERS = {
    "x-request-id": "The request's id: that of the client, or a random one. Feedback names it.",
    "x-pointsman-route": "The route by which the rules sent the request (not with --no-name-decision).",
    "x-pointsman-engine": "The engine.",
    "x-pointsman-arm": "The arm, in an experiment.",
    "x-pointsman-fallback": "Why another engine than the route's first has answered.",
    "x-pointsman-hedge": "What became of a second attempt.",
    "x-pointsman-history": "What was done with the conversation.",
    "x-pointsman-dropped": "Options of the request that the engine does not know.",
    _PIN: "The arm of the session, signed: a client without cookies may send it back.",
    "set-cookie": "The same for clients with cookies.",
    "etag": "Of all flags: If-None-Match asks whether they have changed.",
    "server-timing": "Where the time went, if x-pointsman-timing asks for it.",
}
ERROR_HEADERS = {
    "x-request-id": REPLY_HEADERS["x-request-id"],
    "x-pointsman-reason": "The kind of the failure.",
    "retry-after": "Seconds after which to ask again.",
}
_REQUEST_HEADERS = {
    "x-request-id": "The request's id, as it stands in logs and traces.",
    "x-session-id": "The session (identity.session_header of the rules may name another header).",
    _PIN: "What an earlier reply has said of the session's arm.",
    "x-pointsman-timing": "Any value: the reply has a server-timing.",
}
_SUMMARY_OF_ENGINE = "An error of the engine, as it sent it."


def inference_document() -> Json:
    """The document, OpenAPI 3.1."""
    paths: Json = {}
    for template, call in sorted(path_templates().items()):
        paths[template] = {"parameters": _path_parameters(template)} | {
            verb.lower(): _operation(template, verb, call) for verb in call.verbs
        }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Pointsman inference",
            "version": version("pointsman"),
            "summary": "One inference URL in front of every engine.",
            "description": "KServe V2 with Triton's extensions, the OpenAI and Anthropic APIs, flags and feedback.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://localhost:8000"}],
        "security": [{}, {"bearer": []}, {"apiKey": []}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "responses": {f"{api}{status}": _error(api, status) for api in _ERRORS for status in _statuses()},
            "headers": {name: _header(name, text) for name, text in (REPLY_HEADERS | ERROR_HEADERS).items()},
            "parameters": {
                name: {"name": name, "in": "header", "description": text, "schema": {"type": "string"}}
                for name, text in _REQUEST_HEADERS.items()
            },
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "An API key or a token, with `auth:`."},
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


# Operations


def _operation(template: str, verb: str, call: ApiCall) -> Json:
    bodies = _bodies(template, call)
    made: Json = {
        "operationId": _operation_id(template, verb),
        "summary": bodies.summary,
        "tags": [_tag(template)],
        "parameters": [{"$ref": f"#/components/parameters/{name}"} for name in _REQUEST_HEADERS],
        "responses": {"200": _success(bodies, call)} | _failures(template),
    }
    if verb == "POST" and bodies.request:
        content = {_JSON: {"schema": ref(bodies.request)}}
        if call.operation is Operation.INFER:
            content[_BINARY] = {"schema": _TENSORS}
        made["requestBody"] = {"required": not bodies.is_optional, "content": content}
    return made


def _bodies(template: str, call: ApiCall) -> Bodies:
    if call.operation is Operation.MODEL_LIST and "{model}" in template:
        return Bodies("Describe a model, as OpenAI.", reply="Model")
    if call.operation is Operation.FLAGS and "{key}" in template:
        return Bodies("Evaluate one experiment as a flag.", "FlagRequest", "Flag")
    if call.api is not None and call.api in _BODIES and call.operation not in _BODIES:
        return _BODIES[call.api]
    return _BODIES[call.operation]


def _operation_id(template: str, verb: str) -> str:
    """`post_v2_models_model_infer`: unique, and a name in any language."""
    return re.sub(r"\W+", "_", f"{verb.lower()}{template}").strip("_")


def _tag(template: str) -> str:
    if template.startswith("/v2"):
        return "V2"
    if template.startswith("/v1/messages"):
        return "Anthropic"
    if template.startswith("/ofrep"):
        return "Flags"
    return "OpenAI" if template.startswith("/v1") else "Feedback"


def _path_parameters(template: str) -> list[Json]:
    numbers = {"version": {"type": "string", "pattern": "^[0-9]+$"}}
    return [
        {"name": name, "in": "path", "required": True, "schema": numbers.get(name, {"type": "string", "minLength": 1})}
        for name in re.findall(r"{(\w+)}", template)
    ]


# Replies


def _success(bodies: Bodies, call: ApiCall) -> Json:
    content: Json = {}
    if bodies.reply:
        content[_JSON] = {"schema": ref(bodies.reply)}
    if bodies.streams:
        content[_EVENTS] = {"schema": {"description": "Server-sent events, of the API's own form."}}
    if call.operation is Operation.INFER:
        content[_BINARY] = {"schema": _TENSORS}
    headers = {name: {"$ref": f"#/components/headers/{name}"} for name in REPLY_HEADERS}
    return {"description": "Success.", "headers": headers} | ({"content": content} if content else {})


_ERRORS = {"V2": "V2Error", "OpenAI": "OpenAIError", "Anthropic": "AnthropicError", "Flags": "FlagFailure"}


def _statuses() -> dict[int, list[str]]:
    """The reasons of each HTTP status."""
    kinds = sorted(ErrorKind, key=lambda kind: kind.status.http)
    return {status: [kind.value for kind in of] for status, of in groupby(kinds, lambda kind: kind.status.http)}


def _failures(template: str) -> Json:
    tag = _tag(template)
    api = tag if tag in _ERRORS else "V2"
    made: Json = {str(status): {"$ref": f"#/components/responses/{api}{status}"} for status in _statuses()}
    if tag == "Flags" and "{" not in template:
        made["304"] = {"description": "The client has the flags, as If-None-Match says."}
    return made | {"4XX": {"description": _SUMMARY_OF_ENGINE}, "5XX": {"description": _SUMMARY_OF_ENGINE}}


def _error(api: str, status: int) -> Json:
    reasons = ", ".join(_statuses()[status])
    headers = {name: {"$ref": f"#/components/headers/{name}"} for name in ERROR_HEADERS}
    return {
        "description": f"x-pointsman-reason: {reasons}. An engine's own error has none, and the engine's form.",
        "headers": headers,
        "content": {_JSON: {"schema": ref(_ERRORS[api])}},
    }


def _header(name: str, description: str) -> Json:
    schema = ref("Reason") if name == "x-pointsman-reason" else {"type": "string"}
    return {"description": description, "schema": schema}


assert not set(OF_V2) & _BODIES.keys()  # those are operations
