"""TraceSetting and LogSettings.

Source: Triton server `src/grpc/grpc_server.cc` RegisterTrace, RegisterLogging.
"""

from __future__ import annotations

from engines.core.errors import EngineError, invalid
from engines.host.rpcs.context import Context, new
from gateway.protocol.protobuf import Message


def trace_setting(context: Context, request: Message) -> Message:
    """Take over settings, if any, and tell all that are in force, for a model or for the host.

    Raises: EngineError.
    """
    model = request.model_name
    if model:
        try:
            context.models.get(model, "")
        except EngineError as error:
            raise invalid(f"Request for unknown model : {model}") from error
    if request.settings:
        context.tracer.settings.update(model, {name: list(said.value) for name, said in request.settings.items()})
    response = new("TraceSettingResponse")
    context.tracer.settings.of(model).write(response.settings)
    return response


def log_settings(context: Context, request: Message) -> Message:
    """Raises: EngineError."""
    if request.settings:
        context.logs.update(request.settings)
    response = new("LogSettingsResponse")
    context.logs.write(response.settings)
    return response
