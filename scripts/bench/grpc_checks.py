"""A check of a proxy's replies before any load: one call by grpcio, as a reference client."""

import time

import grpc

from bench.grpc_messages import EXCHANGES, STREAM_PATH, STREAMED_TIME, TENANT, Exchange, trace
from bench.processes import BenchError
from gateway.wire.grpc import framed

# Health checks must have found the upstream before a proxy can answer.
FIRST_ANSWER_SECONDS = 15.0
CALL_SECONDS = 10.0

OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))


def reply_at(port: int, exchange: Exchange) -> bytes:
    """The framed reply to one call; for a stream all its messages, without their timestamps.

    Raises: BenchError with the status if it is not OK.
    """
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
        options = {"timeout": CALL_SECONDS, "metadata": (TENANT, trace())}
        try:
            if exchange.path != STREAM_PATH:
                return framed(channel.unary_unary(exchange.path)(exchange.request, **options))
            replies = channel.stream_stream(exchange.path)(iter([exchange.request]), **options)
            return b"".join(_timeless(framed(reply)) for reply in replies)
        except grpc.RpcError as error:
            raise BenchError(f"{error.code().name}: {error.details()}") from error


def _timeless(message: bytes) -> bytes:
    return message[: STREAMED_TIME.start] + b"0" * 16 + message[STREAMED_TIME.stop :]


def await_first_reply(port: int) -> None:
    """Wait until a proxy answers a small call.

    Raises: BenchError if it does not in time.
    """
    deadline = time.monotonic() + FIRST_ANSWER_SECONDS
    while True:
        try:
            reply_at(port, EXCHANGES["simple"])
            return
        except BenchError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
