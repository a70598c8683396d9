"""ModelStatistics.

Source: Triton core `src/tritonserver.cc` TRITONSERVER_ServerModelStatistics; the statistics extension.
"""

from __future__ import annotations

from engines.core.errors import invalid
from engines.host.rpcs.context import Context, check_version, new
from gateway.protocol.protobuf import Message


def model_statistics(context: Context, request: Message) -> Message:
    """Of one version, of a model's, or of all that are ready.

    Raises: EngineError, INVALID_ARG where what is asked for is not ready.
    """
    version = check_version(request.version)
    found = [model for model in context.served() if request.name in ("", model.name)]
    if request.name and not found:
        raise invalid(f"requested model '{request.name}' is not available")
    if request.name and version:
        found = [model for model in found if model.version == version]
        if not found:
            raise invalid(f"requested model version is not available for model '{request.name}'")
    response = new("ModelStatisticsResponse")
    for model in found:
        written = response.model_stats.add(name=model.name, version=model.version)
        model.statistics.write(written)
    return response
