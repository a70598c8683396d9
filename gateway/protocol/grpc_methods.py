"""The RPCs of Triton's `inference.GRPCInferenceService`, by their paths.

Source: Triton common `protobuf/grpc_service.proto`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.protocol.operations import Operation

SERVICE = "inference.GRPCInferenceService"


@dataclass(frozen=True, slots=True)
class Rpc:
    """One RPC. `is_relayed`: its request names the model in field 1 and the version in field 2, and goes on to an
    engine as it came."""

    name: str
    operation: Operation
    is_relayed: bool = False
    is_stream: bool = False

    @property
    def path(self) -> str:
        return f"/{SERVICE}/{self.name}"


RPCS: dict[str, Rpc] = {
    rpc.name: rpc
    for rpc in (
        Rpc("ServerLive", Operation.SERVER_LIVE),
        Rpc("ServerReady", Operation.SERVER_READY),
        Rpc("ServerMetadata", Operation.SERVER_METADATA),
        Rpc("ModelReady", Operation.MODEL_READY, is_relayed=True),
        Rpc("ModelMetadata", Operation.MODEL_METADATA, is_relayed=True),
        Rpc("ModelConfig", Operation.MODEL_CONFIG, is_relayed=True),
        Rpc("ModelInfer", Operation.INFER, is_relayed=True),
        Rpc("ModelStreamInfer", Operation.GENERATE_STREAM, is_stream=True),
        Rpc("ModelStatistics", Operation.MODEL_STATS),
        Rpc("RepositoryIndex", Operation.REPOSITORY_INDEX),
        Rpc("RepositoryModelLoad", Operation.LOAD),
        Rpc("RepositoryModelUnload", Operation.UNLOAD),
        Rpc("SystemSharedMemoryStatus", Operation.SHARED_MEMORY),
        Rpc("SystemSharedMemoryRegister", Operation.SHARED_MEMORY),
        Rpc("SystemSharedMemoryUnregister", Operation.SHARED_MEMORY),
        Rpc("CudaSharedMemoryStatus", Operation.SHARED_MEMORY),
        Rpc("CudaSharedMemoryRegister", Operation.SHARED_MEMORY),
        Rpc("CudaSharedMemoryUnregister", Operation.SHARED_MEMORY),
        Rpc("TraceSetting", Operation.TRACE),
        Rpc("LogSettings", Operation.LOGGING),
    )
}
RPCS_BY_PATH: dict[bytes, Rpc] = {rpc.path.encode("ascii"): rpc for rpc in RPCS.values()}
