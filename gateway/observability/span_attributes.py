"""What a request is called in traces and in the access log: attributes by OpenTelemetry's semantic conventions.

`http.*`, `url.*`, `client.*`, `error.type` and `rpc.*` are of the conventions 1.40, `gen_ai.*` of those for generative
AI, `event.*` of ECS; what none of them has is `pointsman.*`. What a request does not have is left out.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

from gateway.protocol.grpc_methods import RPCS, SERVICE

Attributes = dict[str, Any]

# Of gRPC, by number
STATUS_NAMES = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)
# Those that say nothing against the server
_FAULTS_OF_CLIENTS = frozenset({0, 1, 3, 5, 6, 7, 8, 9, 10, 11, 16})
GENERATIONS = {
    "chat": "chat",
    "completion": "text_completion",
    "embedding": "embeddings",
    "generate": "text_completion",
    "stream": "text_completion",
}
_PATH_OF_MODEL = re.compile(r"(/v2/(?:repository/)?models/)[^/]+(/versions/[^/]+)?((?:/[a-z_/]+)?)")
_METHODS = {rpc.operation.value: f"{SERVICE}/{rpc.name}" for rpc in reversed(RPCS.values())}


class RequestFacts(Protocol):
    """A `RequestSpan` or an `AccessLogEntry`."""

    @property
    def peer(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def request_id(self) -> str: ...
    @property
    def status(self) -> int: ...
    @property
    def code(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def protocol(self) -> str: ...
    @property
    def operation(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def engine_model(self) -> str: ...
    @property
    def route(self) -> str: ...
    @property
    def arm(self) -> str: ...
    @property
    def engine(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def session(self) -> str: ...
    @property
    def fallback(self) -> str: ...
    @property
    def hedge(self) -> str: ...
    @property
    def request_bytes(self) -> int: ...
    @property
    def response_bytes(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def completion_tokens(self) -> int: ...
    @property
    def finish_reason(self) -> str: ...


def request_attributes(facts: RequestFacts) -> Attributes:
    """Those of a request at the gateway."""
    status, reason, operation, model = facts.status, facts.reason, facts.operation, facts.model
    found: Attributes = {"client.address": facts.peer}
    if facts.protocol == "grpc":
        found["rpc.system.name"] = "grpc"
        found["rpc.method"] = rpc_method(facts)
        if 0 <= facts.code < len(STATUS_NAMES):
            found["rpc.response.status_code"] = STATUS_NAMES[facts.code]
    else:
        path, mark, query = facts.target.partition("?")
        found["http.request.method"] = facts.method
        found["url.path"] = path
        if mark:
            found["url.query"] = query  # without values: see `PreparedHead.request_line`
    if status:
        found["http.response.status_code"] = status
    if reason:
        found["error.type"] = found["pointsman.reason"] = reason
    elif status >= 500:
        found["error.type"] = str(status)
    if facts.request_id:
        found["http.request.header.x-request-id"] = facts.request_id
    if facts.request_bytes:
        found["http.request.body.size"] = facts.request_bytes
    if facts.response_bytes:
        found["http.response.body.size"] = facts.response_bytes
    if facts.protocol:
        found["pointsman.protocol"] = facts.protocol
    if operation:
        found["pointsman.operation"] = operation
    if model:
        found["pointsman.model"] = model
    if facts.version:
        found["pointsman.model.version"] = facts.version
    if facts.route:
        found["pointsman.route"], found["pointsman.engine"] = facts.route, facts.engine
    if facts.arm:
        found["pointsman.arm"] = facts.arm
    if facts.engine_model:
        found["pointsman.engine.model"] = facts.engine_model
    if facts.tenant:
        found["pointsman.tenant"], found["user.id"] = facts.tenant, facts.key
    if facts.session:
        found["pointsman.session.hash"] = facts.session
    if facts.fallback:
        found["pointsman.fallback"] = facts.fallback
    if facts.hedge:
        found["pointsman.hedge"] = facts.hedge
    if is_generation(facts):
        found["gen_ai.operation.name"] = GENERATIONS[operation]
        found["gen_ai.request.model"] = model
        found["gen_ai.usage.input_tokens"] = facts.prompt_tokens
        found["gen_ai.usage.output_tokens"] = facts.completion_tokens
        if facts.engine_model:
            found["gen_ai.response.model"] = facts.engine_model
        if facts.cached_tokens:
            found["gen_ai.usage.cache_read.input_tokens"] = facts.cached_tokens
        if facts.finish_reason:
            found["gen_ai.response.finish_reasons"] = [facts.finish_reason]
    return found


def is_generation(facts: RequestFacts) -> bool:
    """Whether it is one by a language model; what a stream of gRPC brings is not known."""
    return facts.operation in GENERATIONS and (facts.protocol != "grpc" or facts.completion_tokens > 0)


def rpc_method(facts: RequestFacts) -> str:
    """The full name of the client's method: of a call that was converted, by what it asks for."""
    path = facts.target
    if path.startswith(("/v2", "/v1")):
        return _METHODS.get(facts.operation, SERVICE)
    return path.removeprefix("/")


def http_route(path: str) -> str:
    """A path without names, as few as there are operations; empty for an unknown one."""
    path = path.partition("?")[0]
    found = _PATH_OF_MODEL.fullmatch(path)
    if found is not None:
        before, version, after = found.groups()
        return f"{before}{{model}}{'/versions/{version}' if version else ''}{after}"
    return path if path.startswith(("/v1/", "/v2", "/feedback")) and "/models/" not in path else ""


def span_name(facts: RequestFacts) -> str:
    """The name of the gateway's span: few names, of which all requests of one kind have the same."""
    if is_generation(facts) and facts.protocol != "grpc":
        return f"{GENERATIONS[facts.operation]} {facts.model}"
    if facts.protocol == "grpc":
        return rpc_method(facts)
    route = http_route(facts.target) if facts.operation else ""
    return f"{facts.method} {route}" if route else facts.method


def is_failure(facts: RequestFacts) -> bool:
    """Whether the gateway or an engine has failed: a client's own error is none of a server's span."""
    if facts.protocol == "grpc" and facts.code >= 0:
        return facts.code not in _FAULTS_OF_CLIENTS
    return facts.status >= 500 or bool(facts.reason and 200 <= facts.status < 400)
