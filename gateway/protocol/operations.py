"""What a request asks for: the operations of Triton's V2 protocol and of OpenAI's API, and the path that names each.

Source: Triton server `src/http_server.cc` (RE2 FullMatch on the path: no trailing slash, a version is digits only);
OpenAI API reference; Anthropic API reference (`/v1/messages`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from urllib.parse import quote, unquote

from gateway.protocol.errors import GatewayError, bad_request

# The version of Triton whose protocol this is, which clients of V2 read in `/v2`.
TRITON_VERSION = "2.51.0"


class LlmApi(Enum):
    """The API that a client or an engine speaks, in the words of rule files (`dialects:`)."""

    CHAT = "chat"  # OpenAI chat completions
    COMPLETIONS = "completions"  # OpenAI completions
    EMBEDDINGS = "embeddings"  # OpenAI embeddings
    RESPONSES = "responses"  # OpenAI responses
    MESSAGES = "messages"  # Anthropic messages
    GENERATE = "generate"  # V2 generate and generate_stream
    INFER = "infer"  # V2 infer on a BYTES tensor `text_input`
    INFER_STREAM = "infer_stream"  # the same, streamed, as MLServer has it


OF_V2 = (LlmApi.GENERATE, LlmApi.INFER, LlmApi.INFER_STREAM)
# What a conversation may be held in.
OF_TEXT = frozenset(
    {
        *(LlmApi.CHAT, LlmApi.COMPLETIONS, LlmApi.RESPONSES, LlmApi.MESSAGES),
        *(LlmApi.GENERATE, LlmApi.INFER),
    }
)


class Operation(Enum):
    """An operation, named as `match: {operation: ...}` names it."""

    INFER = "infer"
    GENERATE = "generate"
    GENERATE_STREAM = "stream"
    CHAT = "chat"
    COMPLETION = "completion"
    EMBEDDING = "embedding"
    COUNT_TOKENS = "count_tokens"
    MODEL_METADATA = "metadata"
    MODEL_READY = "ready"
    MODEL_CONFIG = "config"
    MODEL_STATS = "stats"
    MODEL_TRACE = "trace"
    LOAD = "load"
    UNLOAD = "unload"
    SERVER_METADATA = "server_metadata"
    SERVER_LIVE = "server_live"
    SERVER_READY = "server_ready"
    SERVER_STATS = "server_stats"
    REPOSITORY_INDEX = "index"
    SHARED_MEMORY = "shared_memory"
    TRACE = "server_trace"
    LOGGING = "logging"
    MODEL_LIST = "models"
    FEEDBACK = "feedback"  # the gateway's own
    FLAGS = "flags"  # the same, in OpenFeature's protocol

    @property
    def names_a_model(self) -> bool:
        """Whether the operation concerns one model, so that the rules decide where it goes."""
        return self in MODEL_OPERATIONS


INFERENCE_OPERATIONS = frozenset(
    {
        Operation.INFER,
        Operation.GENERATE,
        Operation.GENERATE_STREAM,
        Operation.CHAT,
        Operation.COMPLETION,
        Operation.EMBEDDING,
    }
)
MODEL_OPERATIONS = INFERENCE_OPERATIONS | {
    Operation.COUNT_TOKENS,
    Operation.MODEL_METADATA,
    Operation.MODEL_READY,
    Operation.MODEL_CONFIG,
    Operation.MODEL_STATS,
    Operation.MODEL_TRACE,
    Operation.LOAD,
    Operation.UNLOAD,
}

# Operations that concern a whole fleet, or every endpoint that has a model: one server's answer would not be the truth.
FLEET_OPERATIONS = (
    frozenset(Operation)
    - INFERENCE_OPERATIONS
    - {
        Operation.COUNT_TOKENS,
        Operation.MODEL_METADATA,
        Operation.MODEL_READY,
        Operation.MODEL_CONFIG,
    }
)


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A path read as Triton reads it.

    `model` and `version` are decoded from percent escapes; `model_span` is where the model's name stands in the path,
    so that a rename replaces just these bytes. `verbs` are the HTTP methods that the operation answers to. `api` is
    what a language model is asked in; where it is OpenAI's or Anthropic's, the body names the model.
    `routed_as`: rules see this operation instead, so that a count goes where the request itself goes.
    """

    operation: Operation
    verbs: tuple[str, ...]
    model: str | None = None
    version: str | None = None
    model_span: tuple[int, int] | None = None
    api: LlmApi | None = None
    names_its_model_in_the_body: bool = False
    routed_as: Operation | None = None

    @property
    def named_model(self) -> tuple[str, str] | None:
        """The model and its version, which may be empty; None: the path names none."""
        return (self.model, self.version or "") if self.model else None


_MODEL = re.compile(
    r"/v2/models/([^/]+)(?:/versions/([0-9]+))?(?:/(infer|infer_stream|generate|generate_stream|ready|config|stats|trace/setting))?"
)
_REPOSITORY = re.compile(r"/v2/repository(?:/([^/]+))?/(?:(index)|models/([^/]+)/(load|unload))")
_SHARED_MEMORY = re.compile(r"/v2/(?:system|cuda)sharedmemory(?:/region/([^/]+))?/(status|register|unregister)")

_GET = ("GET",)
_POST = ("POST",)
_BOTH = ("GET", "POST")

_MODEL_ACTIONS: dict[str | None, tuple[Operation, tuple[str, ...]]] = {
    None: (Operation.MODEL_METADATA, _GET),
    "infer": (Operation.INFER, _POST),
    "infer_stream": (Operation.GENERATE_STREAM, _POST),
    "generate": (Operation.GENERATE, _POST),
    "generate_stream": (Operation.GENERATE_STREAM, _POST),
    "ready": (Operation.MODEL_READY, _GET),
    "config": (Operation.MODEL_CONFIG, _GET),
    "stats": (Operation.MODEL_STATS, _GET),
    "trace/setting": (Operation.MODEL_TRACE, _BOTH),
}
# OpenFeature Remote Evaluation Protocol 0.3, `service/openapi.yaml`: a flag's key is one more segment.
FLAGS_PATH = "/ofrep/v1/evaluate/flags"
_FIXED: dict[str, ApiCall] = {
    "/v2": ApiCall(Operation.SERVER_METADATA, _GET),
    "/v2/health/live": ApiCall(Operation.SERVER_LIVE, _GET),
    "/v2/health/ready": ApiCall(Operation.SERVER_READY, _GET),
    "/v2/models/stats": ApiCall(Operation.SERVER_STATS, _GET),
    "/v2/trace/setting": ApiCall(Operation.TRACE, _BOTH),
    "/v2/logging": ApiCall(Operation.LOGGING, _BOTH),
    "/v1/chat/completions": ApiCall(Operation.CHAT, _POST, api=LlmApi.CHAT, names_its_model_in_the_body=True),
    "/v1/completions": ApiCall(Operation.COMPLETION, _POST, api=LlmApi.COMPLETIONS, names_its_model_in_the_body=True),
    "/v1/embeddings": ApiCall(Operation.EMBEDDING, _POST, api=LlmApi.EMBEDDINGS, names_its_model_in_the_body=True),
    "/v1/responses": ApiCall(Operation.CHAT, _POST, api=LlmApi.RESPONSES, names_its_model_in_the_body=True),
    "/v1/messages": ApiCall(Operation.CHAT, _POST, api=LlmApi.MESSAGES, names_its_model_in_the_body=True),
    "/v1/messages/count_tokens": ApiCall(
        Operation.COUNT_TOKENS,
        _POST,
        api=LlmApi.MESSAGES,
        names_its_model_in_the_body=True,
        routed_as=Operation.CHAT,
    ),
    "/feedback": ApiCall(Operation.FEEDBACK, _POST),
    FLAGS_PATH: ApiCall(Operation.FLAGS, _POST),
    "/v1/models": ApiCall(Operation.MODEL_LIST, _GET, api=LlmApi.CHAT),
}
_OPENAI_MODEL = "/v1/models/"
_APIS = {
    Operation.INFER: LlmApi.INFER,
    Operation.GENERATE: LlmApi.GENERATE,
    Operation.GENERATE_STREAM: LlmApi.GENERATE,
}


_WITHOUT_BRACES = str.maketrans("", "", "{}")


def path_templates() -> dict[str, ApiCall]:
    """All paths, with `{model}`, `{version}`, `{region}` and `{key}` for what clients choose; what each asks for."""
    templates = [*_FIXED]
    for action in _MODEL_ACTIONS:
        end = f"/{action}" if action else ""
        templates.append(f"/v2/models/{{model}}{end}")
        if action != "trace/setting":
            templates.append(f"/v2/models/{{model}}/versions/{{version}}{end}")
    templates += ["/v2/repository/index", "/v2/repository/models/{model}/load", "/v2/repository/models/{model}/unload"]
    for memory in ("/v2/systemsharedmemory", "/v2/cudasharedmemory"):
        templates += [f"{memory}/status", f"{memory}/unregister"]
        templates += [f"{memory}/region/{{region}}/{action}" for action in ("status", "register", "unregister")]
    templates += [_OPENAI_MODEL + "{model}", FLAGS_PATH + "/{key}"]
    found: dict[str, ApiCall] = {}
    for template in templates:
        call = read_path(template.replace("{version}", "1").translate(_WITHOUT_BRACES))
        assert call is not None, template
        found[template] = call
    return found


# What servers that decode a path before they split it read as other segments, or as the path's end: encoded slashes,
# backslashes and NULs, dot segments (RFC 3986 section 5.2.4), and a fragment, which no request target has.
_AMBIGUOUS = re.compile(r"%(?:2f|5c|00)|[\\#]|/(?:\.|%2e){1,2}(?:/|\Z)", re.IGNORECASE)


def ambiguous_path(path: str) -> GatewayError | None:
    """Why a path with a model's name is refused: servers disagree about the name. None where all read the same. Only
    servers that split a path before they decode it, or never decode it, as Triton, can have such names."""
    found = _AMBIGUOUS.search(path)
    if found is None:
        return None
    what = f"a name in the path has {found[0].strip('/')!r}, which servers read in different ways"
    return bad_request(f"{what}; --encoded-slashes accepts it")


def path_segment(name: str) -> str:
    """A model's name as it stands in a path. Triton does not resolve escapes, so only what must be is escaped (RFC 3986
    section 3.3)."""
    return quote(name, safe="!$&'()*+,;=:@")


def model_path(model: str, version: str) -> str:
    """Where REST has a model; of its default version where that is empty.

    Raises: GatewayError(BAD_REQUEST) where the version is no number: a path takes no other.
    """
    if version and not (version.isascii() and version.isdigit()):
        raise bad_request(f"model_version {version[:80]!r} is no number")
    path = f"/v2/models/{path_segment(model)}"
    return f"{path}/versions/{version}" if version else path


def flag_key(path: str) -> str:
    """The key of the flag that a path (without its query) names; empty where it names none."""
    key = path.removeprefix(FLAGS_PATH + "/")
    return unquote(key) if key != path and "/" not in key else ""


def read_path(path: str) -> ApiCall | None:
    """Name the operation that a path (without its query) asks for; None where there is nothing."""
    return _cached_path(path) if len(path) <= _LONGEST_CACHED_PATH else _read_path(path)


def _read_path(path: str) -> ApiCall | None:
    fixed = _FIXED.get(path)
    if fixed is not None:
        return fixed
    if found := _MODEL.fullmatch(path):
        model, version, action = found.groups()
        if action == "trace/setting" and version is not None:
            return None
        operation, verbs = _MODEL_ACTIONS[action]
        api = LlmApi.INFER_STREAM if action == "infer_stream" else _APIS.get(operation)
        return ApiCall(operation, verbs, unquote(model), version, found.span(1), api)
    if found := _REPOSITORY.fullmatch(path):
        _, index, model, action = found.groups()
        if index:
            return ApiCall(Operation.REPOSITORY_INDEX, _POST)
        operation = Operation.LOAD if action == "load" else Operation.UNLOAD
        return ApiCall(operation, _POST, unquote(model), None, found.span(3))
    if found := _SHARED_MEMORY.fullmatch(path):
        _, action = found.groups()  # a `register` that names no region is refused by who would map it
        return ApiCall(Operation.SHARED_MEMORY, _GET if action == "status" else _POST)
    if path.startswith(_OPENAI_MODEL) and len(path) > len(_OPENAI_MODEL):  # a name may have slashes
        name = unquote(path[len(_OPENAI_MODEL) :])
        return ApiCall(Operation.MODEL_LIST, _GET, name, api=LlmApi.CHAT)
    if flag_key(path):
        return _FIXED[FLAGS_PATH]
    return None


# Clients choose paths: there are few, and they are short, but for hostile ones.
_LONGEST_CACHED_PATH = 256
_cached_path = lru_cache(4096)(_read_path)
