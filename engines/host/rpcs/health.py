"""ServerLive, ServerReady, ModelReady.

Source: Triton core `src/server.cc` (IsLive, IsReady, ModelIsReady), server `src/grpc/grpc_server.cc`.
"""

from __future__ import annotations

from engines.core.errors import EngineError
from engines.host.rpcs.context import Context, check_version, new
from gateway.protocol.protobuf import Message


def server_live(context: Context, request: Message) -> Message:
    """Triton is live from its start to its end."""
    response = new("ServerLiveResponse")
    response.live = True
    return response


def server_ready(context: Context, request: Message) -> Message:
    response = new("ServerReadyResponse")
    response.ready = context.is_ready
    return response


def model_ready(context: Context, request: Message) -> Message:
    """Whether a version is ready; a model that is not known is not.

    Raises: EngineError where the version is no number.
    """
    response = new("ModelReadyResponse")
    version = check_version(request.version)
    try:
        context.models.get(request.name, version)
    except EngineError:
        return response
    response.ready = context.is_serving
    return response
