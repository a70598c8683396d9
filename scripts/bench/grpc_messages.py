"""The messages in the gRPC benchmark: each one byte for byte, and its right reply.

Loaders, the canned upstream and the checks all use this module. Messages are KServe V2's (package `inference`), headers
those of a grpc-core client, which tritonclient uses in Python and C++.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.messages import TENSOR_BYTES
from gateway.protocol.protobuf import message
from gateway.wire.grpc import PREFIX_BYTES, framed

INFER_PATH = "/inference.GRPCInferenceService/ModelInfer"
STREAM_PATH = "/inference.GRPCInferenceService/ModelStreamInfer"

# Long enough never to pass: the benchmark measures that it is read, enforced and forwarded.
DEADLINE_SECONDS = 30

# At 100 a second about 1.3 s a stream: each client has several streams in a run.
MESSAGES_PER_STREAM = 128

# Every id and every trace has this width, so that all requests of a kind have one length.
ID_DIGITS = 16
ID = "0" * ID_DIGITS

HEADERS = (
    ("te", "trailers"),
    ("content-type", "application/grpc"),
    ("user-agent", "grpc-python/1.71.0 grpc-c/46.0.0 (linux; chttp2)"),
    ("grpc-accept-encoding", "identity, deflate, gzip"),
)

# Of every reply, beside `:status`.
REPLY_FIELD = (b"content-type", b"application/grpc")
TRAILER_FIELD = (b"grpc-status", b"0")


# Metadata that a client adds to each of its calls.
TENANT = ("x-tenant", "acme")


def trace(mark: str = ID) -> tuple[str, str]:
    """A call's trace (W3C), whose ids repeat the call's mark."""
    return ("traceparent", f"00-{mark}{mark}-{mark}-01")


def _infer_request(model: str, datatype: str, shape: list[int], raw: list[bytes], mark: str = ID) -> bytes:
    request = message("inference.ModelInferRequest")(model_name=model, id=mark)
    for index, content in enumerate(raw):
        request.inputs.add(name=f"INPUT{index}", datatype=datatype, shape=shape)
        request.raw_input_contents.append(content)
    return bytes(request.SerializeToString())


def _infer_response(model: str, datatype: str, shape: list[int], raw: bytes) -> Any:
    response = message("inference.ModelInferResponse")(model_name=model, model_version="1", id=ID)
    response.outputs.add(name="OUTPUT0", datatype=datatype, shape=shape)
    response.raw_output_contents.append(raw)
    return response


_VECTOR = b"".join(index.to_bytes(4, "little") for index in range(16))
_TENSOR = bytes(range(250)) * (TENSOR_BYTES // 250)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One kind of call: its request, and its right reply; both without gRPC's prefix of five bytes.

    `reply` is None if only a real engine knows it.
    """

    model: str
    request: bytes
    reply: bytes | None
    path: str = INFER_PATH

    @property
    def body_bytes(self) -> int:
        """Message bytes that one call moves, both ways together."""
        return len(self.request) + len(self.reply or self.request)

    def marked(self) -> Callable[[str], bytes]:
        """A function that writes the same request, framed, under another id of ID_DIGITS digits."""
        before, found, after = framed(self.request).partition(ID.encode())
        assert found
        return lambda mark: before + mark.encode() + after


def mixed_model(number: int) -> str:
    return f"mixed-{number:02}"


# The exchange whose messages are those of `mixed_calls`; they have its length.
MIXED = mixed_model(0)


EXCHANGES = {
    exchange.model: exchange
    for exchange in (
        Exchange(
            "simple",
            _infer_request("simple", "INT32", [1, 16], [_VECTOR, _VECTOR]),
            _infer_response("simple", "INT32", [1, 16], _VECTOR).SerializeToString(),
        ),
        Exchange(
            "tensor",
            _infer_request("tensor", "FP32", [1, TENSOR_BYTES // 4], [_TENSOR]),
            _infer_response("tensor", "FP32", [1, TENSOR_BYTES // 4], _TENSOR).SerializeToString(),
        ),
        # A model of tests/models in the real Triton.
        Exchange("identity_fp32", _infer_request("identity_fp32", "FP32", [1, 16], [_VECTOR]), None),
        Exchange(
            MIXED,
            _infer_request(MIXED, "INT32", [1, 16], [_VECTOR, _VECTOR]),
            _infer_response(MIXED, "INT32", [1, 16], _VECTOR).SerializeToString(),
        ),
        Exchange("llm", _infer_request("llm", "INT32", [1, 16], [_VECTOR]), None, path=STREAM_PATH),
    )
}


def _streamed(digits: bytes) -> bytes:
    text = len(digits).to_bytes(4, "little") + digits
    response = message("inference.ModelStreamInferResponse")()
    response.infer_response.CopyFrom(_infer_response("llm", "BYTES", [1], text))
    return framed(response.SerializeToString())


_STREAMED_ZERO = _streamed(b"9" * 16)
STREAMED_BYTES = len(_STREAMED_ZERO)
STREAMED_TIME = slice(_STREAMED_ZERO.index(b"9" * 16), _STREAMED_ZERO.index(b"9" * 16) + 16)
_BEFORE_TIME, _AFTER_TIME = _STREAMED_ZERO[: STREAMED_TIME.start], _STREAMED_ZERO[STREAMED_TIME.stop :]


def streamed(sent_at_microseconds: int) -> bytes:
    """One message of a stream, framed; its text is the time at which it was sent, from which its delay is computed."""
    return b"%b%016d%b" % (_BEFORE_TIME, sent_at_microseconds, _AFTER_TIME)


def framed_bytes(content: bytes) -> int:
    return PREFIX_BYTES + len(content)


@dataclass(frozen=True, slots=True)
class GrpcLoad:
    """One run of load: `connections` clients, each with `calls` calls at a time."""

    exchange: str  # a key of EXCHANGES
    reply_bytes: int  # of a right reply with its prefix, or of the whole stream
    port: int
    connections: int
    calls: int
    seconds: float
    groups: dict[str, list[int]]  # whose CPU time to read: name -> process ids
    inserts_traces: bool = False  # into the header tables of its connections

    @property
    def is_stream(self) -> bool:
        return EXCHANGES[self.exchange].path == STREAM_PATH
