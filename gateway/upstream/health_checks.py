"""What tells that a server is ready, by the protocol that it speaks: paths over REST, an RPC over gRPC.

Sources: KServe's V2 protocol; vLLM, SGLang, llama.cpp, TGI and mlx-lm answer /health, Ollama and LM Studio their models
alone; TF Serving has no health check, and answers for a model that it has not got; TorchServe's Inference API, "Health
check API".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gateway.config.specs import EngineProtocol, EngineSpec
from gateway.protocol.grpc_methods import RPCS
from gateway.protocol.infer_message_head import fields
from gateway.protocol.torchserve.predictions import PING
from gateway.upstream.grpc_request import Answered

_UNAVAILABLE = 14

# A server that answers so has no such path: another one may tell.
NOT_THERE = frozenset({404, 405})


@dataclass(frozen=True, slots=True)
class RestCheck:
    """Paths to GET: the first, or where it is not there the next. Ready is who answers with a status below."""

    paths: tuple[str, ...]
    ready_below: int = 300


@dataclass(frozen=True, slots=True)
class GrpcCheck:
    """A method to call with an empty message, and whether an answer says that the server is ready.

    Raises: GatewayError of `is_ready` where the answer's message is malformed.
    """

    path: str
    is_ready: Callable[[Answered], bool]


def rest_check(engine: EngineSpec) -> RestCheck:
    """What to ask over REST: the path that the rules name, else the protocol's own."""
    if engine.health.path is not None:
        return RestCheck((engine.health.path,))
    match engine.protocol:
        case EngineProtocol.KSERVE | EngineProtocol.MLSERVER:
            return RestCheck(("/v2/health/ready",))
        case EngineProtocol.OPENAI:
            return RestCheck(("/health", f"{engine.base_path}/models"))
        case EngineProtocol.TFSERVING:
            return RestCheck(("/v1/models/_",), ready_below=500)
        case EngineProtocol.TORCHSERVE:
            return RestCheck(("/ping",))


def grpc_check(engine: EngineSpec) -> GrpcCheck:
    """What to ask over gRPC, where there is no REST."""
    match engine.protocol:
        case EngineProtocol.TFSERVING:
            return GrpcCheck("/tensorflow.serving.ModelService/GetModelStatus", _is_there)
        case EngineProtocol.TORCHSERVE:
            return GrpcCheck(PING, _is_healthy)
        case _:
            return GrpcCheck(RPCS["ServerReady"].path, _says_ready)


def _says_ready(answered: Answered) -> bool:
    return answered.is_good and any(number == 1 and bool(value) for number, _, value in fields(answered.message))


def _is_there(answered: Answered) -> bool:
    return answered.status != _UNAVAILABLE


def _is_healthy(answered: Answered) -> bool:
    """`{"status": "Healthy"}` in a text; the other word is "Unhealthy"."""
    return answered.is_good and b'"Healthy"' in answered.message
