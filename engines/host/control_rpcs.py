"""The control RPCs of Triton's service: a function for each, from its request message to its response message.

CUDA shared memory is device memory of another process. The host's process uses no CUDA, so it registers none, like a
Triton without a GPU.
Source: Triton server `src/grpc/grpc_server.cc`, `src/shared_memory_manager.cc`; core `src/tritonserver.cc`,
`src/server.cc`; the statistics, model repository, trace and logging extensions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from engines.core.errors import EngineError, ErrorCode, invalid
from engines.host.logs import LogSettings
from engines.host.model import HostedModel
from engines.host.request_fields import read_version
from engines.host.shared_memory import SharedMemoryRegions
from engines.host.tracing import Tracer
from engines.repository import Repository
from gateway.protocol.datatypes import config_datatype
from gateway.protocol.protobuf import Message, message

# In Triton's order.
EXTENSIONS = (
    *("classification", "sequence", "model_repository", "model_repository(unload_dependents)"),
    *("schedule_policy", "model_configuration", "system_shared_memory", "cuda_shared_memory"),
    *("binary_tensor_data", "parameters", "statistics", "trace", "logging"),
)


@dataclass(slots=True)
class Context:
    """The state that the control RPCs read and change. `is_serving` is false before the start and from the stop on."""

    models: Repository
    regions: SharedMemoryRegions
    tracer: Tracer
    logs: LogSettings
    name: str
    version: str
    is_strict: bool = True
    is_serving: bool = True

    @property
    def is_ready(self) -> bool:
        return self.is_serving and (not self.is_strict or self.models.is_ready)

    def ready_models(self) -> Sequence[HostedModel]:
        """All ready versions, by name and version."""
        return cast("Sequence[HostedModel]", self.models.ready_models())


def _response(rpc: str, **fields: Any) -> Message:
    return message(f"inference.{rpc}Response")(**fields)


def server_live(context: Context, request: Message) -> Message:
    return _response("ServerLive", live=True)


def server_ready(context: Context, request: Message) -> Message:
    return _response("ServerReady", ready=context.is_ready)


def model_ready(context: Context, request: Message) -> Message:
    """Whether a version is ready; an unknown model is not.

    Raises: EngineError where the version is no number.
    """
    version = read_version(request.version)
    try:
        context.models.get(request.name, version)
    except EngineError:
        return _response("ModelReady")
    return _response("ModelReady", ready=context.is_serving)


def server_metadata(context: Context, request: Message) -> Message:
    return _response("ServerMetadata", name=context.name, version=context.version, extensions=EXTENSIONS)


def model_metadata(context: Context, request: Message) -> Message:
    """A model's tensors and ready versions.

    Raises: EngineError for an unknown model.
    """
    version = read_version(request.version)
    config = context.models.get(request.name, version).config
    versions = [version] if version else [str(number) for number in context.models.ready_versions(request.name)]
    response = _response(
        "ModelMetadata", name=request.name, versions=versions, platform=config.platform or config.backend
    )
    batch = [-1] if config.max_batch_size else []
    for tensors, declared in ((response.inputs, config.input), (response.outputs, config.output)):
        for io in declared:
            tensors.add(name=io.name, datatype=config_datatype(io.data_type), shape=[*batch, *io.dims])
    return response


def model_config(context: Context, request: Message) -> Message:
    """Raises: EngineError for an unknown model."""
    return _response("ModelConfig", config=context.models.get(request.name, read_version(request.version)).config)


def model_statistics(context: Context, request: Message) -> Message:
    """The statistics of one version, of all versions of a model, or of all models.

    Raises: EngineError(INVALID_ARG) where the model or version is not ready.
    """
    version = read_version(request.version)
    models = [model for model in context.ready_models() if request.name in ("", model.name)]
    if request.name and not models:
        raise invalid(f"requested model '{request.name}' is not available")
    if request.name and version:
        models = [model for model in models if model.version == version]
        if not models:
            raise invalid(f"requested model version is not available for model '{request.name}'")
    response = _response("ModelStatistics")
    for model in models:
        model.statistics.write(response.model_stats.add(name=model.name, version=model.version))
    return response


def repository_index(context: Context, request: Message) -> Message:
    """Raises: EngineError(UNSUPPORTED) where the request names a repository."""
    _check_repository(request)
    response = _response("RepositoryIndex")
    for entry in context.models.index(request.ready):
        response.models.add(
            name=entry.name,
            version=entry.version or "",
            state="" if entry.state == "UNKNOWN" else entry.state,
            reason=entry.reason or "",
        )
    return response


async def repository_model_load(context: Context, request: Message) -> Message:
    """Load a model, with the configuration and the files of the request, if any.

    Raises: EngineError.
    """
    _check_repository(request)
    config: str | None = None
    files: dict[str, bytes] = {}
    for name, parameter in request.parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if name == "config":
            if choice != "string_param":
                raise invalid("invalid value type for load parameter 'config', expected string_param.")
            config = parameter.string_param
        elif name.startswith("file:"):
            if choice != "bytes_param":
                raise invalid(f"invalid value type for load parameter '{name}', expected bytes_param.")
            files[name] = parameter.bytes_param
        else:
            raise invalid(f"unrecognized load parameter '{name}'.")
    await context.models.load(request.model_name, config, files)
    return _response("RepositoryModelLoad")


async def repository_model_unload(context: Context, request: Message) -> Message:
    """Raises: EngineError."""
    _check_repository(request)
    unload_dependents = False
    for name, parameter in request.parameters.items():
        if name == "unload_dependents":
            if parameter.WhichOneof("parameter_choice") != "bool_param":
                raise invalid("invalid value type for 'unload_dependents' parameter, expected bool_param.")
            unload_dependents = parameter.bool_param
    await context.models.unload(request.model_name, unload_dependents)
    return _response("RepositoryModelUnload")


def _check_repository(request: Message) -> None:
    if request.repository_name:
        raise EngineError(ErrorCode.UNSUPPORTED, "'repository_name' specification is not supported")


def system_status(context: Context, request: Message) -> Message:
    """Raises: EngineError, NOT_FOUND."""
    response = _response("SystemSharedMemoryStatus")
    for region in context.regions.status(request.name):
        status = response.regions[region.name]
        status.name, status.key = region.name, region.key
        status.offset, status.byte_size = region.offset, region.byte_size
    return response


def system_register(context: Context, request: Message) -> Message:
    """Raises: EngineError."""
    context.regions.register(request.name, request.key, request.offset, request.byte_size)
    return _response("SystemSharedMemoryRegister")


def system_unregister(context: Context, request: Message) -> Message:
    """Unregister the named region, or all of them."""
    if request.name:
        context.regions.unregister(request.name)
    else:
        context.regions.unregister_all()
    return _response("SystemSharedMemoryUnregister")


def cuda_status(context: Context, request: Message) -> Message:
    """Raises: EngineError, NOT_FOUND."""
    if request.name:
        raise EngineError(ErrorCode.NOT_FOUND, f"Unable to find cuda shared memory region: '{request.name}'")
    return _response("CudaSharedMemoryStatus")


def cuda_register(context: Context, request: Message) -> Message:
    """Raises: EngineError, INVALID_ARG."""
    raise invalid("failed to register shared memory region: invalid args")


def cuda_unregister(context: Context, request: Message) -> Message:
    return _response("CudaSharedMemoryUnregister")


def trace_setting(context: Context, request: Message) -> Message:
    """Apply settings, if any, and answer with all in force for a model or for the host.

    Raises: EngineError.
    """
    model = request.model_name
    if model:
        try:
            context.models.get(model, "")
        except EngineError as error:
            raise invalid(f"Request for unknown model : {model}") from error
    if request.settings:
        context.tracer.settings.update(model, {name: list(it.value) for name, it in request.settings.items()})
    response = _response("TraceSetting")
    context.tracer.settings.of(model).write(response.settings)
    return response


def log_settings(context: Context, request: Message) -> Message:
    """Raises: EngineError."""
    if request.settings:
        context.logs.update(request.settings)
    response = _response("LogSettings")
    context.logs.write(response.settings)
    return response


Rpc = Callable[[Context, Message], Message | Awaitable[Message]]

RPCS: dict[str, Rpc] = {
    "ServerLive": server_live,
    "ServerReady": server_ready,
    "ModelReady": model_ready,
    "ServerMetadata": server_metadata,
    "ModelMetadata": model_metadata,
    "ModelConfig": model_config,
    "ModelStatistics": model_statistics,
    "RepositoryIndex": repository_index,
    "RepositoryModelLoad": repository_model_load,
    "RepositoryModelUnload": repository_model_unload,
    "SystemSharedMemoryStatus": system_status,
    "SystemSharedMemoryRegister": system_register,
    "SystemSharedMemoryUnregister": system_unregister,
    "CudaSharedMemoryStatus": cuda_status,
    "CudaSharedMemoryRegister": cuda_register,
    "CudaSharedMemoryUnregister": cuda_unregister,
    "TraceSetting": trace_setting,
    "LogSettings": log_settings,
}
