"""Control RPCs on a real repository, whose models run on instances that the test plays."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from engines.core.errors import EngineError, ErrorCode
from engines.core.messages import InferRequest
from engines.host.logs import LogSettings
from engines.host.service import RPCS, Service
from engines.host.shared_memory import SharedMemoryRegions
from engines.host.trace_settings import TraceSettings
from engines.host.tracing import Tracer
from engines.repository import Mode, Repository
from engines.repository.states import ModelSpec
from gateway.protocol.grpc_methods import RPCS as ALL_RPCS
from gateway.protocol.operations import Operation
from gateway.protocol.protobuf import message
from gateway.protocol.restricted_apis import RestrictedApis
from tests.engines.host.parts import ObservedRequest, ints
from tests.engines.host.test_model import ECHO, Stage


def on_service(tmp_path: Path, scenario: Callable[[Service], Awaitable[None]], mode: Mode = Mode.NONE) -> None:
    """Run a scenario on a service with one model, `echo`."""
    (tmp_path / "echo" / "1").mkdir(parents=True)
    (tmp_path / "echo" / "config.pbtxt").write_text(f'{ECHO} backend: "python"')
    (tmp_path / "echo" / "1" / "model.py").touch()

    async def load(spec: ModelSpec) -> Any:
        return Stage(spec.config).model

    async def run() -> None:
        repository = Repository([tmp_path], load, mode=mode)
        service = Service(
            models=repository,
            regions=SharedMemoryRegions(),
            tracer=Tracer(TraceSettings(file=str(tmp_path / "trace"))),
            logs=LogSettings(),
            name="host",
            version="1.2",
            restrictions={"rest": RestrictedApis({"trace": ("key", "value")}), "grpc": RestrictedApis({})},
        )
        assert not await repository.start()
        await scenario(service)
        await repository.close()

    asyncio.run(run())


def sent(rpc: str, **fields: Any) -> Any:
    return message(f"inference.{rpc}Request")(**fields)


async def refused(service: Service, rpc: str, **fields: Any) -> tuple[ErrorCode, str]:
    with pytest.raises(EngineError) as raised:
        await service.rpc(rpc, sent(rpc, **fields))
    return raised.value.code, raised.value.message


def test_every_control_rpc_is_there() -> None:
    """The service has every RPC of Triton's except the inferences."""
    assert RPCS.keys() == ALL_RPCS.keys() - {"ModelInfer", "ModelStreamInfer"}


def test_models_are_reported(tmp_path: Path) -> None:
    """Metadata with the batch's axis, the configuration as completed, readiness, the index."""

    async def scenario(service: Service) -> None:
        metadata = service.metadata("echo", "")
        assert (metadata.platform, list(metadata.versions), list(metadata.inputs[0].shape)) == (
            "python",
            ["1"],
            [-1, -1],
        )
        assert metadata == await service.rpc("ModelMetadata", sent("ModelMetadata", name="echo", version="01x"))
        config = (await service.rpc("ModelConfig", sent("ModelConfig", name="echo"))).config
        assert (config.max_batch_size, config.default_model_filename) == (4, "model.py")
        for version, ready in (("", True), ("1", True), ("2", False)):
            response = await service.rpc("ModelReady", sent("ModelReady", name="echo", version=version))
            assert response.ready is ready
        (model,) = (await service.rpc("RepositoryIndex", sent("RepositoryIndex"))).models
        assert (model.name, model.version, model.state) == ("echo", "1", "READY")
        server = await service.rpc("ServerMetadata", sent("ServerMetadata"))
        assert (server.name, server.version, server.extensions[0]) == ("host", "1.2", "classification")

    on_service(tmp_path, scenario)


def test_a_host_that_stops_soon_is_not_ready(tmp_path: Path) -> None:
    """Within --drain-delay the server's readiness says no, models are ready, and all else is answered."""

    async def scenario(service: Service) -> None:
        assert (await service.rpc("ServerReady", sent("ServerReady"))).ready
        service.is_leaving = True
        assert not (await service.rpc("ServerReady", sent("ServerReady"))).ready
        assert (await service.rpc("ServerLive", sent("ServerLive"))).live
        assert (await service.rpc("ModelReady", sent("ModelReady", name="echo"))).ready

    on_service(tmp_path, scenario)


UNKNOWN = [
    ("ModelMetadata", {"name": "m"}, ErrorCode.NOT_FOUND, "Request for unknown model: 'm' is not found"),
    (
        "ModelConfig",
        {"name": "echo", "version": "9"},
        ErrorCode.NOT_FOUND,
        "Request for unknown model: 'echo' version 9 is not found",
    ),
    (
        "ModelReady",
        {"name": "echo", "version": "x"},
        ErrorCode.INVALID_ARG,
        "failed to get model version from specified version string 'x' (details: stol), version should be an integral "
        "value > 0",
    ),
    (
        "ModelReady",
        {"name": "echo", "version": "-1"},
        ErrorCode.INVALID_ARG,
        "invalid model version specified '-1' , version should be an integral value > 0",
    ),
    ("ModelStatistics", {"name": "m"}, ErrorCode.INVALID_ARG, "requested model 'm' is not available"),
    (
        "ModelStatistics",
        {"name": "echo", "version": "9"},
        ErrorCode.INVALID_ARG,
        "requested model version is not available for model 'echo'",
    ),
    ("TraceSetting", {"model_name": "m"}, ErrorCode.INVALID_ARG, "Request for unknown model : m"),
    (
        "RepositoryIndex",
        {"repository_name": "r"},
        ErrorCode.UNSUPPORTED,
        "'repository_name' specification is not supported",
    ),
    (
        "SystemSharedMemoryStatus",
        {"name": "r"},
        ErrorCode.NOT_FOUND,
        "Unable to find system shared memory region: 'r'",
    ),
    ("CudaSharedMemoryStatus", {"name": "r"}, ErrorCode.NOT_FOUND, "Unable to find cuda shared memory region: 'r'"),
    (
        "CudaSharedMemoryRegister",
        {"name": "r"},
        ErrorCode.INVALID_ARG,
        "failed to register shared memory region: invalid args",
    ),
]


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    """With Triton's codes and texts."""

    async def scenario(service: Service) -> None:
        for rpc, fields, code, text in UNKNOWN:
            assert await refused(service, rpc, **fields) == (code, text)

    on_service(tmp_path, scenario)


def test_models_are_loaded_and_unloaded(tmp_path: Path) -> None:
    """A loaded model starts with new statistics; invalid load parameters are refused."""

    async def scenario(service: Service) -> None:
        await service.rpc("RepositoryModelLoad", sent("RepositoryModelLoad", model_name="echo"))
        (stats,) = (await service.rpc("ModelStatistics", sent("ModelStatistics", name="echo"))).model_stats
        assert (stats.name, stats.version, stats.inference_count) == ("echo", "1", 0)
        request = sent("RepositoryModelLoad", model_name="echo")
        request.parameters["config"].int64_param = 1
        with pytest.raises(EngineError, match="invalid value type for load parameter 'config', expected string_param"):
            await service.rpc("RepositoryModelLoad", request)
        await service.rpc("RepositoryModelUnload", sent("RepositoryModelUnload", model_name="echo"))
        assert not (await service.rpc("ModelStatistics", sent("ModelStatistics"))).model_stats

    on_service(tmp_path, scenario, Mode.EXPLICIT)


def test_readiness_ends_with_the_host(tmp_path: Path) -> None:
    """A stopping host reports that it is not ready; it is still live, and answers requests in flight."""

    async def scenario(service: Service) -> None:
        assert (await service.rpc("ServerReady", sent("ServerReady"))).ready
        service.is_serving = False
        assert await refused(service, "ServerReady") == (ErrorCode.UNAVAILABLE, "Server exiting")
        assert await refused(service, "ModelConfig", name="echo") == (ErrorCode.UNAVAILABLE, "Server not ready")
        assert (await service.rpc("ServerLive", sent("ServerLive"))).live
        request = ObservedRequest(InferRequest("echo", inputs=(ints("x", 1),)))
        service.infer(request.call)
        assert not request.is_over
        request.call.fail(EngineError(ErrorCode.INTERNAL, ""))

    on_service(tmp_path, scenario)


def test_inferences_go_to_their_model(tmp_path: Path) -> None:
    """A request for an unknown model or version fails at once."""

    async def scenario(service: Service) -> None:
        for request, text in (
            (InferRequest("m"), "Request for unknown model: 'm' is not found"),
            (InferRequest("echo", "9"), "Request for unknown model: 'echo' version 9 is not found"),
        ):
            sent_ = ObservedRequest(request)
            service.infer(sent_.call)
            assert sent_.error == text

    on_service(tmp_path, scenario)


def test_settings_are_taken_and_reported(tmp_path: Path) -> None:
    """Trace settings of a model and log settings of the host can be changed and read; a front has its restrictions."""

    async def scenario(service: Service) -> None:
        request = sent("TraceSetting", model_name="echo")
        request.settings["trace_rate"].value.append("3")
        reported = (await service.rpc("TraceSetting", request)).settings
        assert {name: list(value.value) for name, value in reported.items()} == {
            "trace_level": ["OFF"],
            "trace_rate": ["3"],
            "trace_count": ["-1"],
            "log_frequency": ["0"],
            "trace_file": [str(tmp_path / "trace")],
            "trace_mode": ["triton"],
        }
        logs = sent("LogSettings")
        logs.settings["log_warning"].bool_param = False
        assert not (await service.rpc("LogSettings", logs)).settings["log_warning"].bool_param
        assert service.restrictions["rest"].missing_header(Operation.TRACE, {}) == "key"
        assert not service.restrictions["grpc"]

    on_service(tmp_path, scenario)


def test_strictness_is_an_option() -> None:
    """Without strict readiness a host is ready whatever the state of its models."""
    service = Service(
        models=type("Broken", (), {"is_ready": False, "get": None})(),
        regions=SharedMemoryRegions(),
        tracer=Tracer(TraceSettings()),
        logs=LogSettings(),
        name="",
        version="",
        restrictions={},
    )
    assert not service.is_ready
    service.is_strict = False
    assert service.is_ready
