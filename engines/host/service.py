"""The service behind the fronts: inferences, and the control RPCs of either protocol.

CUDA shared memory is device memory of another process. The host's process uses no CUDA, so it registers none, like a
Triton without a GPU.
Source: Triton server `src/grpc/grpc_server.cc`, `src/shared_memory_manager.cc`; core `src/tritonserver.cc`,
`src/server.cc`; the statistics, model repository, trace and logging extensions.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, ErrorCode, invalid, unavailable
from engines.host.logs import LogSettings
from engines.host.model import HostedModel
from engines.host.request_fields import read_version
from engines.host.shared_memory import SharedMemoryRegions
from engines.host.tracing import Tracer
from engines.repository import Repository
from gateway.protocol.datatypes import config_datatype
from gateway.protocol.protobuf import Message, message
from gateway.protocol.restricted_apis import RestrictedApis

_log = logging.getLogger(__name__)

# In Triton's order.
EXTENSIONS = (
    *("classification", "sequence", "model_repository", "model_repository(unload_dependents)"),
    *("schedule_policy", "model_configuration", "system_shared_memory", "cuda_shared_memory"),
    *("binary_tensor_data", "parameters", "statistics", "trace", "logging"),
)

# Answered before the models are loaded, and while the host stops.
_ALWAYS_ANSWERED = frozenset({"ServerLive", "ServerReady", "ServerMetadata", "LogSettings", "TraceSetting"})


@dataclass(eq=False)
class Service:
    """The host as its clients see it. `infer` is a `Submit`; instances use it for requests between models too.

    `regions` is the shared memory that clients have registered; `restrictions` are those of "rest" and of "grpc";
    `is_leaving` is true when the stop is near, and `is_serving` is false from the stop on.
    """

    models: Repository
    regions: SharedMemoryRegions
    tracer: Tracer
    logs: LogSettings
    name: str
    version: str
    restrictions: Mapping[str, RestrictedApis]
    is_strict: bool = True
    is_leaving: bool = False
    is_serving: bool = True
    # The version for a request, by name and version; "" leaves the choice to the model's version policy.
    # Raises: EngineError with Triton's text where there is none.
    model: Callable[[str, str], HostedModel] = field(init=False)

    def __post_init__(self) -> None:
        # The host's Loader creates everything that the repository loads.
        self.model = cast("Callable[[str, str], HostedModel]", self.models.get)

    @property
    def is_ready(self) -> bool:
        return self.is_serving and not self.is_leaving and (not self.is_strict or self.models.is_ready)

    def ready_models(self) -> Sequence[HostedModel]:
        """All ready versions, by name and version."""
        return cast("Sequence[HostedModel]", self.models.ready_models())

    def infer(self, call: InferenceCall) -> None:
        """Take a call. It may end at once with an error: then it was never queued. Never raises."""
        request = call.request
        if self.logs.log_verbose_level:
            _log.debug("inference of %s %s, request %r", request.model, request.version or "(any)", request.id)
        if self.regions.has_resolved:
            self.regions.hold(call)
        try:
            self.model(request.model, request.version).submit(call)
        except EngineError as error:
            call.fail(error)

    async def rpc(self, name: str, request: Message) -> Message:
        """Answer a control RPC: from its request message its response message. Raises: EngineError."""
        _log.debug("%s: %s", name, request)
        if not self.is_serving:
            if name == "ServerReady":
                raise unavailable("Server exiting")
            if name not in _ALWAYS_ANSWERED:
                raise unavailable("Server not ready")
        rpc = RPCS.get(name)
        if rpc is None:
            raise EngineError(ErrorCode.UNSUPPORTED, f"there is no RPC {name}")
        response = message(f"inference.{name}Response")()
        if (waiting := rpc(self, request, response)) is not None:
            await waiting
        return response

    def metadata(self, name: str, version: str) -> Message:
        """A ModelMetadataResponse. Raises: EngineError."""
        response = message("inference.ModelMetadataResponse")()
        model_metadata(self, message("inference.ModelMetadataRequest")(name=name, version=version), response)
        return response


# Fills in the response message of a control RPC.
Rpc = Callable[[Service, Message, Message], Awaitable[None] | None]


def server_live(service: Service, request: Message, response: Message) -> None:
    response.live = True


def server_ready(service: Service, request: Message, response: Message) -> None:
    response.ready = service.is_ready


def model_ready(service: Service, request: Message, response: Message) -> None:
    """Whether a version is ready; an unknown model is not. Raises: EngineError where the version is no number."""
    version = read_version(request.version)
    try:
        service.model(request.name, version)
    except EngineError:
        return
    response.ready = service.is_serving


def server_metadata(service: Service, request: Message, response: Message) -> None:
    response.name, response.version = service.name, service.version
    response.extensions.extend(EXTENSIONS)


def model_metadata(service: Service, request: Message, response: Message) -> None:
    """A model's tensors and ready versions. Raises: EngineError for an unknown model."""
    version = read_version(request.version)
    config = service.model(request.name, version).config
    response.name, response.platform = request.name, config.platform or config.backend
    response.versions.extend([version] if version else map(str, service.models.ready_versions(request.name)))
    batch = [-1] if config.max_batch_size else []
    for tensors, declared in ((response.inputs, config.input), (response.outputs, config.output)):
        for io in declared:
            tensors.add(name=io.name, datatype=config_datatype(io.data_type), shape=[*batch, *io.dims])


def model_config(service: Service, request: Message, response: Message) -> None:
    """Raises: EngineError for an unknown model."""
    response.config.CopyFrom(service.model(request.name, read_version(request.version)).config)


def model_statistics(service: Service, request: Message, response: Message) -> None:
    """The statistics of one version, of all versions of a model, or of all models.

    Raises: EngineError(INVALID_ARG) where the model or version is not ready.
    """
    version = read_version(request.version)
    models = [model for model in service.ready_models() if request.name in ("", model.name)]
    if request.name and not models:
        raise invalid(f"requested model '{request.name}' is not available")
    if request.name and version:
        models = [model for model in models if model.version == version]
        if not models:
            raise invalid(f"requested model version is not available for model '{request.name}'")
    for model in models:
        model.statistics.write(response.model_stats.add(name=model.name, version=model.version))


def repository_index(service: Service, request: Message, response: Message) -> None:
    """Raises: EngineError(UNSUPPORTED) where the request names a repository."""
    _check_repository(request)
    for entry in service.models.index(request.ready):
        response.models.add(
            name=entry.name,
            version=entry.version or "",
            state="" if entry.state == "UNKNOWN" else entry.state,
            reason=entry.reason or "",
        )


async def repository_model_load(service: Service, request: Message, response: Message) -> None:
    """Load a model, with the configuration and the files of the request, if any. Raises: EngineError."""
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
    await service.models.load(request.model_name, config, files)


async def repository_model_unload(service: Service, request: Message, response: Message) -> None:
    """Raises: EngineError."""
    _check_repository(request)
    unload_dependents = False
    for name, parameter in request.parameters.items():
        if name == "unload_dependents":
            if parameter.WhichOneof("parameter_choice") != "bool_param":
                raise invalid("invalid value type for 'unload_dependents' parameter, expected bool_param.")
            unload_dependents = parameter.bool_param
    await service.models.unload(request.model_name, unload_dependents)


def _check_repository(request: Message) -> None:
    if request.repository_name:
        raise EngineError(ErrorCode.UNSUPPORTED, "'repository_name' specification is not supported")


def system_status(service: Service, request: Message, response: Message) -> None:
    """Raises: EngineError, NOT_FOUND."""
    for region in service.regions.status(request.name):
        status = response.regions[region.name]
        status.name, status.key = region.name, region.key
        status.offset, status.byte_size = region.offset, region.byte_size


def cuda_status(service: Service, request: Message, response: Message) -> None:
    """Raises: EngineError, NOT_FOUND."""
    if request.name:
        raise EngineError(ErrorCode.NOT_FOUND, f"Unable to find cuda shared memory region: '{request.name}'")


def cuda_register(service: Service, request: Message, response: Message) -> None:
    """Raises: EngineError, INVALID_ARG."""
    raise invalid("failed to register shared memory region: invalid args")


def trace_setting(service: Service, request: Message, response: Message) -> None:
    """Apply settings, if any, and answer with all in force for a model or for the host. Raises: EngineError."""
    model = request.model_name
    if model:
        try:
            service.model(model, "")
        except EngineError as error:
            raise invalid(f"Request for unknown model : {model}") from error
    if request.settings:
        service.tracer.settings.update(model, {name: list(it.value) for name, it in request.settings.items()})
    service.tracer.settings.of(model).write(response.settings)


def log_settings(service: Service, request: Message, response: Message) -> None:
    """Raises: EngineError."""
    if request.settings:
        service.logs.update(request.settings)
    service.logs.write(response.settings)


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
    "SystemSharedMemoryRegister": lambda service, request, _: service.regions.register(
        request.name, request.key, request.offset, request.byte_size
    ),
    "SystemSharedMemoryUnregister": lambda service, request, _: service.regions.unregister(request.name),
    "CudaSharedMemoryStatus": cuda_status,
    "CudaSharedMemoryRegister": cuda_register,
    "CudaSharedMemoryUnregister": lambda *_: None,  # there is none
    "TraceSetting": trace_setting,
    "LogSettings": log_settings,
}
