"""ServerMetadata, ModelMetadata, ModelConfig.

Source: Triton core `src/tritonserver.cc` TRITONSERVER_ServerModelMetadata; the model configuration extension.
"""

from __future__ import annotations

from typing import Any

from engines.host.rpcs.context import Context, check_version, new
from gateway.protocol.datatypes import config_datatype
from gateway.protocol.protobuf import Message

# As Triton lists them.
EXTENSIONS = (
    *("classification", "sequence", "model_repository", "model_repository(unload_dependents)"),
    *("schedule_policy", "model_configuration", "system_shared_memory", "cuda_shared_memory"),
    *("binary_tensor_data", "parameters", "statistics", "trace", "logging"),
)


def server_metadata(context: Context, request: Message) -> Message:
    response = new("ServerMetadataResponse")
    response.name = context.name
    response.version = context.version
    response.extensions.extend(EXTENSIONS)
    return response


def model_metadata(context: Context, request: Message) -> Message:
    """A model's tensors, and those of its versions that are ready.

    Raises: EngineError where it is not known.
    """
    version = check_version(request.version)
    model = context.models.get(request.name, version)
    config = model.config
    response = new("ModelMetadataResponse")
    response.name = request.name
    if version:
        response.versions.append(version)
    else:
        response.versions.extend(str(number) for number in context.models.ready_versions(request.name))
    response.platform = config.platform or config.backend
    for io in config.input:
        _describe(response.inputs.add(), io, config.max_batch_size)
    for io in config.output:
        _describe(response.outputs.add(), io, config.max_batch_size)
    return response


def model_config(context: Context, request: Message) -> Message:
    """Raises: EngineError where the model is not known."""
    model = context.models.get(request.name, check_version(request.version))
    response = new("ModelConfigResponse")
    response.config.CopyFrom(model.config)
    return response


def _describe(made: Any, io: Any, max_batch_size: int) -> None:
    made.name = io.name
    made.datatype = config_datatype(io.data_type)
    if max_batch_size:
        made.shape.append(-1)
    made.shape.extend(io.dims)
