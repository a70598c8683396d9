"""RepositoryIndex, RepositoryModelLoad, RepositoryModelUnload.

Source: Triton server `src/grpc/grpc_server.cc` (RegisterRepositoryModelLoad), core `src/tritonserver.cc`; the model
repository extension.
"""

from __future__ import annotations

from engines.core.errors import EngineError, ErrorCode, invalid
from engines.host.rpcs.context import Context, new, state_name
from gateway.protocol.protobuf import Message


def repository_index(context: Context, request: Message) -> Message:
    """Raises: EngineError, UNSUPPORTED where one repository of several is asked for."""
    _check_repository(request)
    response = new("RepositoryIndexResponse")
    for entry in context.models.index(request.ready):
        version = "" if entry.version is None else str(entry.version)
        response.models.add(name=entry.name, version=version, state=state_name(entry.state), reason=entry.reason or "")
    return response


async def repository_model_load(context: Context, request: Message) -> Message:
    """Load a model, with the configuration and the files that the request brings, if any.

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
    return new("RepositoryModelLoadResponse")


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
    return new("RepositoryModelUnloadResponse")


def _check_repository(request: Message) -> None:
    if request.repository_name:
        raise EngineError(ErrorCode.UNSUPPORTED, "'repository_name' specification is not supported")
