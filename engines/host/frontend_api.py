"""What the fronts, REST and gRPC, ask of the service behind them, and what both of them are limited to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, ErrorCode, invalid
from engines.core.messages import InferRequest, SharedMemory
from gateway.protocol.datatypes import DATATYPES
from gateway.protocol.operations import Operation
from gateway.protocol.protobuf import Message

_MEBIBYTE = 1024 * 1024


class Regions(Protocol):
    """The shared memory that clients have registered."""

    def resolve(self, region: str, offset: int, byte_size: int) -> SharedMemory:
        """So many bytes of a region, from `offset` on.

        Raises: EngineError, NOT_FOUND for a region that is not registered, INVALID_ARG for what lies outside of it.
        """
        ...


class ServedModel(Protocol):
    """A version of a model that serves."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """Digits, as replies tell it."""
        ...

    @property
    def is_decoupled(self) -> bool: ...

    @property
    def stream_input(self) -> str:
        """Of a decoupled model: the input without which, or with which as false, it answers once; "" where it has none
        such."""
        ...

    @property
    def has_batches(self) -> bool:
        """Whether the first axis of its tensors is the batch's (max_batch_size is not 0)."""
        ...

    @property
    def config(self) -> Message:
        """An `inference.ModelConfig`, completed."""
        ...

    def labels(self, output: str) -> Sequence[str]:
        """An output's labels by class, none where it has none."""
        ...


class FrontService(Protocol):
    """What answers. A restriction is a header's name and the value that it must have."""

    @property
    def regions(self) -> Regions: ...

    def model(self, name: str, version: str) -> ServedModel:
        """The version that a request goes to; "" leaves the choice to the model's policy.

        Raises: EngineError, as Triton tells that there is none.
        """
        ...

    def ready_models(self) -> Sequence[ServedModel]:
        """All versions that serve, by name and version."""
        ...

    def infer(self, call: InferenceCall) -> None:
        """Take a call. It may end at once, with an error: then it was never queued. Never raises."""
        ...

    async def rpc(self, name: str, request: Message) -> Message:
        """Answer a control RPC, `ModelConfig` say: from its request message its response message.

        Raises: EngineError.
        """
        ...

    def metadata(self, name: str, version: str) -> Message:
        """A ModelMetadataResponse.

        Raises: EngineError.
        """
        ...

    def restriction(self, front: str, category: str) -> tuple[str, str] | None:
        """What guards a category of CATEGORIES on "rest" or "grpc"; None where nothing does. Fixed from the start."""
        ...


def check_one_answer(model: ServedModel, request: InferRequest) -> None:
    """See that a decoupled model gives the one answer that an infer has.

    Raises: EngineError(UNSUPPORTED) where the request asks it to stream.
    """
    for tensor in request.inputs if model.is_decoupled else ():
        if tensor.name == model.stream_input and not isinstance(tensor.data, SharedMemory) and any(tensor.data):
            raise EngineError(
                ErrorCode.UNSUPPORTED,
                f"input '{tensor.name}' of model '{model.name}' is true, and infer has one answer: ask generate_stream "
                "or ModelStreamInfer",
            )


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What clients may use up, and what of their headers reaches models (both patterns match anywhere in a name).

    Bytes and seconds; None means no limit.
    """

    max_body_bytes: int = 64 * _MEBIBYTE  # REST, decompressed too
    max_message_bytes: int = 2**31 - 1  # gRPC, decompressed too
    rest_header_pattern: str = ""
    grpc_header_pattern: str = ""
    max_streams: int = 1000  # of one HTTP/2 connection, at the same time
    window_bytes: int = _MEBIBYTE  # of one HTTP/2 stream
    max_calls_of_stream: int = 1024  # a ModelStreamInfer that has more under way is not read for the time being
    max_unsent_bytes: int = (
        256 * _MEBIBYTE
    )  # of one stream of answers whose client does not read; then it is broken off
    compression_level: int | None = None  # zlib's, of gRPC replies; None sends them as they are
    keepalive_seconds: float | None = 7200.0  # a silent gRPC connection is pinged after so long
    keepalive_timeout_seconds: float = 20.0  # and given up where nothing comes back
    receive_seconds: float | None = 60.0  # a request that is not whole: without a byte of it, or of its head at all
    send_seconds: float | None = 60.0  # a client that takes nothing of what waits for it
    max_connection_seconds: float | None = None
    max_idle_seconds: float | None = None
    disconnect_seconds: float = 0.05  # a REST call that takes longer watches whether its client is still there

    def __post_init__(self) -> None:
        """Raises: ValueError where a pattern is none."""
        for front in ("rest", "grpc"):
            self.forwards(front)

    def forwards(self, front: str) -> HeaderForward:
        return HeaderForward(self.rest_header_pattern if front == "rest" else self.grpc_header_pattern)


@dataclass(frozen=True, slots=True)
class HeaderForward:
    """Which headers become parameters of an inference. HTTP's names have no case, and come in lower case."""

    pattern: str
    _regex: re.Pattern[str] | None = field(init=False)

    def __post_init__(self) -> None:
        try:
            regex = re.compile(self.pattern, re.IGNORECASE) if self.pattern else None
        except re.error as error:
            raise ValueError(f"'{self.pattern}' is no regular expression: {error}") from error
        object.__setattr__(self, "_regex", regex)

    def __bool__(self) -> bool:
        return self._regex is not None

    def matches(self, name: bytes) -> bool:
        return self._regex is not None and self._regex.search(name.decode("latin-1")) is not None

    def parameters(self, fields: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
        """The fields that are forwarded, by name."""
        if self._regex is None:
            return {}
        return {
            name.decode("latin-1"): value.decode("utf-8", "replace") for name, value in fields if self.matches(name)
        }


# `std::stol` reads so much of a text.
_VERSION = re.compile(r"\s*([+-]?[0-9]+)")
_MAX_INT64 = 2**63 - 1


def read_version(text: str) -> str:
    """A model version in digits, "" where none is named (Triton server `common.cc`, GetModelVersionFromString).

    Raises: EngineError(INVALID_ARG).
    """
    if not text or (text.isdecimal() and text.isascii() and text[0] != "0" and len(text) < 19):
        return text
    found = _VERSION.match(text)
    if found is None or not -_MAX_INT64 - 1 <= int(found[1]) <= _MAX_INT64:
        raise invalid(
            f"failed to get model version from specified version string '{text}' (details: stol), version should be an "
            "integral value > 0"
        )
    if int(found[1]) < 0:
        raise invalid(f"invalid model version specified '{text}' , version should be an integral value > 0")
    return str(int(found[1]))


_KNOWN_DATATYPES = {datatype: datatype for datatype in DATATYPES}


def datatype_named(text: str) -> str:
    """A datatype as the core names it, "<invalid>" where it is none."""
    return _KNOWN_DATATYPES.get(text, "<invalid>")


TRACE_FIELDS = frozenset({b"traceparent", b"tracestate"})


def trace_of(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    """W3C trace context among header fields; tracestate alone means nothing."""
    parent = fields.get(b"traceparent")
    if parent is None:
        return {}
    trace = {"traceparent": parent.decode("latin-1")}
    state = fields.get(b"tracestate")
    if state is not None:
        trace["tracestate"] = state.decode("latin-1")
    return trace


# What --http-restricted-api and --grpc-restricted-protocol name (Triton server `restricted_features.h`).
CATEGORIES: dict[Operation, str] = {
    Operation.SERVER_LIVE: "health",
    Operation.SERVER_READY: "health",
    Operation.MODEL_READY: "health",
    Operation.SERVER_METADATA: "metadata",
    Operation.MODEL_METADATA: "metadata",
    Operation.INFER: "inference",
    Operation.GENERATE: "inference",
    Operation.GENERATE_STREAM: "inference",
    Operation.CHAT: "inference",
    Operation.COMPLETION: "inference",
    Operation.EMBEDDING: "inference",
    Operation.MODEL_LIST: "metadata",
    Operation.SHARED_MEMORY: "shared-memory",
    Operation.MODEL_CONFIG: "model-config",
    Operation.REPOSITORY_INDEX: "model-repository",
    Operation.LOAD: "model-repository",
    Operation.UNLOAD: "model-repository",
    Operation.MODEL_STATS: "statistics",
    Operation.SERVER_STATS: "statistics",
    Operation.MODEL_TRACE: "trace",
    Operation.TRACE: "trace",
    Operation.LOGGING: "logging",
}
