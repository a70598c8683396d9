"""Each control RPC in Triton's REST: its path, filled in from the message's fields and read back, its verbs, body and
reply.

Source: Triton's `grpc_service.proto`; server `src/http_server.cc`: a version is digits only, and a missing member
leaves no slash behind.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote

from gateway.protocol.conversion import control_repository as memory
from gateway.protocol.conversion import control_repository as repository
from gateway.protocol.conversion import control_settings as settings
from gateway.protocol.conversion.control_messages import Json, read_fields, write_fields
from gateway.protocol.operations import path_segment
from gateway.protocol.protobuf import Message

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

Write = Callable[[Message], Json]
Read = Callable[[Message, Json], None]


def _nothing(message: Message) -> Json:
    return None


def _ignore(message: Message, body: Json) -> None:
    pass


def _write_config(message: Message) -> Json:
    return write_fields(message.config)


def _read_config(message: Message, reply: Json) -> None:
    read_fields(message.config, reply)


@dataclass(frozen=True, slots=True)
class ControlRpc:
    """One RPC as REST. Of two verbs the first goes without a body; None is written as an empty body.

    `health`: the reply is no more than its status, and this field of the response.
    """

    rpc: str
    path: Path
    verbs: tuple[str, ...] = _GET
    write_body: Write = _nothing
    read_body: Read = _ignore
    write_reply: Write = write_fields
    read_reply: Read = read_fields
    health: str = ""


def _act(rpc: str, path: str, write_body: Write = _nothing, read_body: Read = _ignore) -> ControlRpc:
    """An RPC that changes something, and answers with an empty reply."""
    return ControlRpc(rpc, Path(path), _POST, write_body, read_body, _nothing, _ignore)


CONTROLS: dict[str, ControlRpc] = {
    control.rpc: control
    for control in (
        ControlRpc("ServerLive", Path("/v2/health/live"), health="live"),
        ControlRpc("ServerReady", Path("/v2/health/ready"), health="ready"),
        ControlRpc("ServerMetadata", Path("/v2")),
        ControlRpc("ModelReady", Path("/v2/models/{name}[/versions/{version}]/ready"), health="ready"),
        # Before the metadata of a model: "stats" is read as a model's name last of all.
        ControlRpc("ModelStatistics", Path("/v2/models[/{name}[/versions/{version}]]/stats")),
        ControlRpc("ModelMetadata", Path("/v2/models/{name}[/versions/{version}]")),
        ControlRpc(
            "ModelConfig",
            Path("/v2/models/{name}[/versions/{version}]/config"),
            write_reply=_write_config,
            read_reply=_read_config,
        ),
        ControlRpc(
            "RepositoryIndex",
            Path("/v2/repository[/{repository_name}]/index"),
            _POST,
            repository.write_index_body,
            repository.read_index_body,
            repository.write_index_reply,
            repository.read_index_reply,
        ),
        _act(
            "RepositoryModelLoad",
            "/v2/repository[/{repository_name}]/models/{model_name}/load",
            repository.write_load_body,
            repository.read_load_body,
        ),
        _act(
            "RepositoryModelUnload",
            "/v2/repository[/{repository_name}]/models/{model_name}/unload",
            repository.write_unload_body,
            repository.read_unload_body,
        ),
        ControlRpc(
            "SystemSharedMemoryStatus",
            Path("/v2/systemsharedmemory[/region/{name}]/status"),
            write_reply=memory.write_status_reply,
            read_reply=memory.read_status_reply,
        ),
        _act(
            "SystemSharedMemoryRegister",
            "/v2/systemsharedmemory[/region/{name}]/register",
            memory.write_system_body,
            memory.read_system_body,
        ),
        _act("SystemSharedMemoryUnregister", "/v2/systemsharedmemory[/region/{name}]/unregister"),
        ControlRpc(
            "CudaSharedMemoryStatus",
            Path("/v2/cudasharedmemory[/region/{name}]/status"),
            write_reply=memory.write_status_reply,
            read_reply=memory.read_status_reply,
        ),
        _act(
            "CudaSharedMemoryRegister",
            "/v2/cudasharedmemory[/region/{name}]/register",
            memory.write_cuda_body,
            memory.read_cuda_body,
        ),
        _act("CudaSharedMemoryUnregister", "/v2/cudasharedmemory[/region/{name}]/unregister"),
        ControlRpc(
            "TraceSetting",
            Path("/v2[/models/{model_name}]/trace/setting"),
            _BOTH,
            settings.write_trace_body,
            settings.read_trace_body,
            settings.write_trace_reply,
            settings.read_trace_reply,
        ),
        ControlRpc(
            "LogSettings",
            Path("/v2/logging"),
            _BOTH,
            settings.write_log_body,
            settings.read_log_body,
            settings.write_log_reply,
            settings.read_log_reply,
        ),
    )
}
