"""The protocols that engines speak: one descriptor each, which configuration, probes, adapters and dispatch read.

A new protocol is a member of `EngineProtocol`, and a row in `dataplane.translation.translators` and in
`dataplane.translation.model_description` where it is not V2.

Sources: KServe's V2 protocol; vLLM, SGLang, llama.cpp, TGI and mlx-lm answer /health, Ollama and LM Studio only list
their models; TF Serving has no health check, and answers for a model that it does not have; TorchServe's Inference API,
"Health check API".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from gateway.protocol.grpc_methods import RPCS
from gateway.protocol.grpc_status import OK, UNAVAILABLE
from gateway.protocol.operations import ApiCall, LlmApi, path_segment
from gateway.protocol.protobuf_wire import fields

# The path and query at the engine for a call that passes: of the call, the client's target, the model's name at the
# engine (None: unchanged) and the engine's base path.
WriteTarget = Callable[[ApiCall, bytes, str | None, bytes], bytes]


@dataclass(frozen=True, slots=True)
class GrpcCheck:
    """A method to call with an empty message. `is_ready` judges the status and the message of its reply. Raises:
    GatewayError of `is_ready` where the message is malformed."""

    path: str
    is_ready: Callable[[int, bytes], bool]


@dataclass(frozen=True, slots=True)
class ProtocolTraits:
    """What one protocol can do, and how its servers report that they are ready. `ready_paths` and `models_path` may
    begin with `{base}`, the engine's base path."""

    ready_paths: tuple[str, ...]  # to GET: the first, or where it is not there the next
    ready_below: int = 300  # the lowest status that means "not ready"
    grpc_check: GrpcCheck | None = None  # None: the protocol has no gRPC
    speaks_v2: bool = False
    generates_text: bool = True  # whether it has a place for prompts and conversations
    # The APIs that engines understand as clients write them (None: V2's tensors and control); the others are
    # translated. None: those that the engine's `dialects` list.
    passes: frozenset[LlmApi | None] | None = frozenset()
    takes_binary_tensors: bool = True  # behind the JSON of a V2 body
    reports_decoupled: bool = True  # whether a model's configuration says how many responses a request may have
    write_target: WriteTarget | None = None  # None: the path does not matter, nothing passes
    version_mark: str = ""  # in a model's name, before what the engine reads as its version or label
    models_path: str | None = None  # where it lists its models in OpenAI's form
    rule_keys: frozenset[str] = frozenset()  # the keys of an engine in rule files that not every protocol has

    @property
    def has_grpc(self) -> bool:
        return self.grpc_check is not None

    @property
    def has_dialects(self) -> bool:
        """Whether rules list the APIs that an engine has (`dialects:`)."""
        return self.passes is None

    @property
    def has_generate(self) -> bool:
        """Whether it has V2's generate extension; else its infer takes what generate does."""
        return self.passes is not None and LlmApi.GENERATE in self.passes

    @property
    def ready_path(self) -> str | None:
        """The path that any HTTP client can probe; None where a failure means readiness."""
        return self.ready_paths[0] if self.ready_below == 300 else None


def _rename_in_path(call: ApiCall, target: bytes, model: str | None, base: bytes) -> bytes:
    if model is None or call.model_span is None:
        return target
    start, end = call.model_span
    return target[:start] + path_segment(model).encode("ascii") + target[end:]


def _server_is_ready(status: int, message: bytes) -> bool:
    return status == OK and any(number == 1 and bool(value) for number, _, value in fields(message))


def _is_healthy(status: int, message: bytes) -> bool:
    """`{"status": "Healthy"}` in a text; the other word is "Unhealthy"."""
    return status == OK and b'"Healthy"' in message


_SERVER_READY = GrpcCheck(RPCS["ServerReady"].path, _server_is_ready)
_OF_LANGUAGE_MODELS = frozenset({"chat_template", "load", "prefix"})


class EngineProtocol(Enum):
    """What an engine speaks, in the words of rule files (`protocol:`)."""

    KSERVE = (
        "kserve",
        ProtocolTraits(
            ready_paths=("/v2/health/ready",),
            grpc_check=_SERVER_READY,
            speaks_v2=True,
            passes=frozenset({None, LlmApi.GENERATE, LlmApi.INFER}),
            write_target=_rename_in_path,
            rule_keys=_OF_LANGUAGE_MODELS,
        ),
    )
    # V2 whose generation and streams are infer's JSON.
    MLSERVER = (
        "mlserver",
        ProtocolTraits(
            ready_paths=("/v2/health/ready",),
            grpc_check=_SERVER_READY,
            speaks_v2=True,
            passes=frozenset({None, LlmApi.INFER, LlmApi.INFER_STREAM}),
            takes_binary_tensors=False,
            reports_decoupled=False,
            write_target=_rename_in_path,
            rule_keys=_OF_LANGUAGE_MODELS,
        ),
    )
    OPENAI = (
        "openai",
        ProtocolTraits(
            ready_paths=("/health", "{base}/models"),
            passes=None,
            write_target=lambda call, target, model, base: base + target.removeprefix(b"/v1"),
            models_path="{base}/models",
            rule_keys=_OF_LANGUAGE_MODELS | {"base_path", "dialects", "always_stream", "cache_salt"},
        ),
    )
    TFSERVING = (
        "tfserving",
        ProtocolTraits(
            ready_paths=("/v1/models/_",),
            ready_below=500,
            grpc_check=GrpcCheck(
                "/tensorflow.serving.ModelService/GetModelStatus", lambda status, message: status != UNAVAILABLE
            ),
            generates_text=False,
            version_mark=":",
        ),
    )
    TORCHSERVE = (
        "torchserve",
        ProtocolTraits(
            ready_paths=("/ping",),
            grpc_check=GrpcCheck("/org.pytorch.serve.grpc.inference.InferenceAPIsService/Ping", _is_healthy),
            generates_text=False,
            version_mark="/",  # it splits the path once the escapes are decoded
            rule_keys=frozenset({"envelope"}),
        ),
    )

    _value_: str
    traits: ProtocolTraits

    def __new__(cls, word: str, traits: ProtocolTraits | None = None) -> EngineProtocol:
        """`word` is the member's value, so that `EngineProtocol("kserve")` finds it."""
        assert traits is not None
        member = object.__new__(cls)
        member._value_ = word
        member.traits = traits
        return member

    @property
    def is_v2(self) -> bool:
        return self.traits.speaks_v2


def protocols_with(rule_key: str) -> list[EngineProtocol] | None:
    """The protocols whose engines have this key; None where it is of all."""
    return [protocol for protocol in EngineProtocol if rule_key in protocol.traits.rule_keys] or None
