"""The control RPCs by their names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from engines.host.rpcs import health, metadata, repository, settings, shared_memory, statistics
from engines.host.rpcs.context import Context
from gateway.protocol.protobuf import Message

Rpc = Callable[[Context, Message], Message | Awaitable[Message]]

RPCS: dict[str, Rpc] = {
    "ServerLive": health.server_live,
    "ServerReady": health.server_ready,
    "ModelReady": health.model_ready,
    "ServerMetadata": metadata.server_metadata,
    "ModelMetadata": metadata.model_metadata,
    "ModelConfig": metadata.model_config,
    "ModelStatistics": statistics.model_statistics,
    "RepositoryIndex": repository.repository_index,
    "RepositoryModelLoad": repository.repository_model_load,
    "RepositoryModelUnload": repository.repository_model_unload,
    "SystemSharedMemoryStatus": shared_memory.system_status,
    "SystemSharedMemoryRegister": shared_memory.system_register,
    "SystemSharedMemoryUnregister": shared_memory.system_unregister,
    "CudaSharedMemoryStatus": shared_memory.cuda_status,
    "CudaSharedMemoryRegister": shared_memory.cuda_register,
    "CudaSharedMemoryUnregister": shared_memory.cuda_unregister,
    "TraceSetting": settings.trace_setting,
    "LogSettings": settings.log_settings,
}
