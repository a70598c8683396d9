"""Each control RPC in Triton's REST: its path, filled in from the message's fields and read back, its verbs, body and
reply.

Source: Triton's `grpc_service.proto`; server `src/http_server.cc`: a version is digits only, and a missing member
leaves no slash behind.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import unquote

from gateway.protocol.conversion.control_messages import FIELDS, NOTHING, Form, read_fields, write_fields
from gateway.protocol.conversion.control_repository import (
    CUDA_BODY,
    INDEX_BODY,
    INDEX_REPLY,
    LOAD_BODY,
    REGIONS_REPLY,
    SYSTEM_BODY,
    UNLOAD_BODY,
)
from gateway.protocol.conversion.control_settings import LOG_BODY, LOG_REPLY, TRACE_BODY, TRACE_REPLY
from gateway.protocol.operations import path_segment

_INNERMOST = re.compile(r"\[([^\[\]]*)\]")
_FIELD = re.compile(r"\{(\w+)\}")


class Path:
    """`/v2/models/{name}[/versions/{version}]/ready`: a path with fields; what stands in brackets may be missing."""

    __slots__ = ("_pattern", "_template")

    def __init__(self, template: str) -> None:
        self._template = template
        pattern = template.replace("[", "(?:").replace("]", ")?").replace("{version}", "(?P<version>[0-9]+)")
        self._pattern = re.compile(_FIELD.sub(r"(?P<\1>[^/]+)", pattern))

    def fill(self, field: Callable[[str], str]) -> str | None:
        """The path with percent-encoded fields; None where a field is empty that it cannot do without."""

        def is_whole(part: str) -> bool:
            return all(field(name) for name in _FIELD.findall(part))

        path, num_left = self._template, 1
        while num_left:
            path, num_left = _INNERMOST.subn(lambda found: found[1] if is_whole(found[1]) else "", path)
        return _FIELD.sub(lambda found: path_segment(field(found[1])), path) if is_whole(path) else None

    def read(self, path: str) -> dict[str, str] | None:
        """The fields that a path (without its query) tells, decoded; None where it is another path."""
        found = self._pattern.fullmatch(path)
        return None if found is None else {name: unquote(text) for name, text in found.groupdict("").items()}


_GET, _POST, _BOTH = ("GET",), ("POST",), ("GET", "POST")


class ControlRpc:
    """One RPC as REST. Of two verbs the first goes without a body; None is written as an empty body. `health`: the
    reply is no more than its status, and this field of the response. `memory`: REST needs the name of a region of this
    memory."""

    def __init__(
        self,
        rpc: str,
        path: str,
        verbs: tuple[str, ...] = _GET,
        body: Form = NOTHING,
        reply: Form = FIELDS,
        health: str = "",
        memory: str = "",
    ) -> None:
        self.rpc = rpc
        self.path = Path(path)
        self.verbs = verbs
        self.body = body
        self.reply = reply
        self.health = health
        self.memory = memory


_CONFIG = Form(lambda message: write_fields(message.config), lambda message, reply: read_fields(message.config, reply))
_MODEL = "/v2/models/{name}[/versions/{version}]"
_REPOSITORY = "/v2/repository[/{repository_name}]"
_SYSTEM_MEMORY, _CUDA_MEMORY = "/v2/systemsharedmemory[/region/{name}]", "/v2/cudasharedmemory[/region/{name}]"
CONTROLS: dict[str, ControlRpc] = {
    control.rpc: control
    for control in (
        ControlRpc("ServerLive", "/v2/health/live", health="live"),
        ControlRpc("ServerReady", "/v2/health/ready", health="ready"),
        ControlRpc("ServerMetadata", "/v2"),
        ControlRpc("ModelReady", f"{_MODEL}/ready", health="ready"),
        # Before the metadata of a model: "stats" is read as a model's name last of all.
        ControlRpc("ModelStatistics", "/v2/models[/{name}[/versions/{version}]]/stats"),
        ControlRpc("ModelMetadata", _MODEL),
        ControlRpc("ModelConfig", f"{_MODEL}/config", reply=_CONFIG),
        ControlRpc("RepositoryIndex", f"{_REPOSITORY}/index", _POST, INDEX_BODY, INDEX_REPLY),
        ControlRpc("RepositoryModelLoad", f"{_REPOSITORY}/models/{{model_name}}/load", _POST, LOAD_BODY, NOTHING),
        ControlRpc("RepositoryModelUnload", f"{_REPOSITORY}/models/{{model_name}}/unload", _POST, UNLOAD_BODY, NOTHING),
        ControlRpc("SystemSharedMemoryStatus", f"{_SYSTEM_MEMORY}/status", reply=REGIONS_REPLY),
        ControlRpc(
            "SystemSharedMemoryRegister", f"{_SYSTEM_MEMORY}/register", _POST, SYSTEM_BODY, NOTHING, memory="system"
        ),
        ControlRpc("SystemSharedMemoryUnregister", f"{_SYSTEM_MEMORY}/unregister", _POST, reply=NOTHING),
        ControlRpc("CudaSharedMemoryStatus", f"{_CUDA_MEMORY}/status", reply=REGIONS_REPLY),
        ControlRpc("CudaSharedMemoryRegister", f"{_CUDA_MEMORY}/register", _POST, CUDA_BODY, NOTHING, memory="cuda"),
        ControlRpc("CudaSharedMemoryUnregister", f"{_CUDA_MEMORY}/unregister", _POST, reply=NOTHING),
        ControlRpc("TraceSetting", "/v2[/models/{model_name}]/trace/setting", _BOTH, TRACE_BODY, TRACE_REPLY),
        ControlRpc("LogSettings", "/v2/logging", _BOTH, LOG_BODY, LOG_REPLY),
    )
}
