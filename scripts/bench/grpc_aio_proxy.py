"""A generic proxy on grpcio.aio, the fastest that the library allows: bytes in, bytes out, no message is decoded.

Runs as a process of its own: `python -m bench.grpc_aio_proxy --port P --upstream 127.0.0.1:Q [--port ... --upstream
...]`, where each port leads to the upstream after it.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from bench.grpc_messages import STREAM_PATH
from bench.processes import raise_file_limit

OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
    ("grpc.max_concurrent_streams", 10_000),
)

Metadata = tuple[tuple[str, str | bytes], ...]


class Relay(grpc.GenericRpcHandler):
    """Forwards every call under its own path, with its metadata and the rest of its deadline."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._handlers: dict[str, grpc.RpcMethodHandler] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        path = handler_call_details.method
        handler = self._handlers.get(path)
        if handler is None:
            handler = self._handlers[path] = self._stream(path) if path == STREAM_PATH else self._unary(path)
        return handler

    def _unary(self, path: str) -> grpc.RpcMethodHandler:
        ask = self._channel.unary_unary(path)

        async def relay(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            call = ask(request, metadata=_told(context), timeout=context.time_remaining())
            try:
                reply: bytes = await call
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "", error.trailing_metadata())
            context.set_trailing_metadata(await call.trailing_metadata())
            return reply

        return grpc.unary_unary_rpc_method_handler(relay)

    def _stream(self, path: str) -> grpc.RpcMethodHandler:
        ask = self._channel.stream_stream(path)

        async def relay(
            requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
        ) -> AsyncIterator[bytes]:
            call = ask(requests, metadata=_told(context), timeout=context.time_remaining())
            try:
                async for message in call:
                    yield message
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "", error.trailing_metadata())

        return grpc.stream_stream_rpc_method_handler(relay)


def _told(context: grpc.aio.ServicerContext[bytes, bytes]) -> Metadata:
    """The client's metadata without user-agent, which the library sends itself."""
    return tuple(pair for pair in context.invocation_metadata() or () if pair[0] != "user-agent")


async def serve(ways: Sequence[tuple[int, str]]) -> None:
    servers: list[Any] = []
    for port, upstream in ways:
        server = grpc.aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers([Relay(grpc.aio.insecure_channel(upstream, options=OPTIONS))])
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        servers.append(server)
    await asyncio.gather(*(server.wait_for_termination() for server in servers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, action="append", required=True)
    parser.add_argument("--upstream", action="append", required=True)
    options = parser.parse_args()
    raise_file_limit()
    asyncio.run(serve(list(zip(options.port, options.upstream, strict=True))))


if __name__ == "__main__":
    main()
