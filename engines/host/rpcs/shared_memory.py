"""SystemSharedMemory- and CudaSharedMemory-: Status, Register, Unregister.

CUDA's regions are device memory of another process. The host's own process knows no CUDA, so it takes none, as a
Triton without a GPU.
Source: Triton server `src/shared_memory_manager.cc`, `src/grpc/grpc_server.cc`.
"""

from __future__ import annotations

from engines.core.errors import EngineError, ErrorCode, invalid
from engines.host.rpcs.context import Context, new
from gateway.protocol.protobuf import Message


def system_status(context: Context, request: Message) -> Message:
    """Raises: EngineError, NOT_FOUND."""
    response = new("SystemSharedMemoryStatusResponse")
    for region in context.regions.status(request.name):
        told = response.regions[region.name]
        told.name, told.key, told.offset, told.byte_size = region.name, region.key, region.offset, region.byte_size
    return response


def system_register(context: Context, request: Message) -> Message:
    """Raises: EngineError."""
    context.regions.register(request.name, request.key, request.offset, request.byte_size)
    return new("SystemSharedMemoryRegisterResponse")


def system_unregister(context: Context, request: Message) -> Message:
    """All of them where none is named."""
    if request.name:
        context.regions.unregister(request.name)
    else:
        context.regions.unregister_all()
    return new("SystemSharedMemoryUnregisterResponse")


def cuda_status(context: Context, request: Message) -> Message:
    """Raises: EngineError, NOT_FOUND."""
    if request.name:
        raise EngineError(ErrorCode.NOT_FOUND, f"Unable to find cuda shared memory region: '{request.name}'")
    return new("CudaSharedMemoryStatusResponse")


def cuda_register(context: Context, request: Message) -> Message:
    """Raises: EngineError, INVALID_ARG."""
    raise invalid("failed to register shared memory region: invalid args")


def cuda_unregister(context: Context, request: Message) -> Message:
    """There are none: nothing is left to do."""
    return new("CudaSharedMemoryUnregisterResponse")
