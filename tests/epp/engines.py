"""Small engines in this process: V2 over REST and gRPC, and OpenAI's API. Each says its name in its replies."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from concurrent import futures
from typing import Any, Self

import grpc
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gateway.protocol.protobuf import message
from tests.support.ports import free_port


class Engine:
    """One engine. `seen` are the requests that it has answered: method, path, header fields, body."""

    def __init__(self, name: str, models: tuple[str, ...]) -> None:
        self.name = name
        self.models = models
        self.port, self.grpc_port = free_port(), free_port()
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self.status = 200  # of inferences
        self.hold = threading.Event()  # streams and held inferences go on when it is set
        self.hold.set()
        routes = [
            Route("/health", self._health),
            Route("/v2/health/ready", self._health),
            Route("/v2/repository/index", self._index, methods=["POST"]),
            Route("/v1/models", self._list),
            Route("/{path:path}", self._infer, methods=["GET", "POST"]),
        ]
        config = uvicorn.Config(Starlette(routes=routes), port=self.port, log_config=None, lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._grpc = grpc.server(futures.ThreadPoolExecutor(8))
        self._grpc.add_generic_rpc_handlers((_Service(self),))
        self._grpc.add_insecure_port(f"127.0.0.1:{self.grpc_port}")

    def __enter__(self) -> Self:
        self._thread.start()
        self._grpc.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hold.set()
        self._server.should_exit = True
        self._thread.join(30)
        self._grpc.stop(None)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def grpc_address(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def in_rules(self) -> dict[str, str]:
        return {"url": self.url, "grpc": self.grpc_address}

    async def _health(self, _: Request) -> Response:
        return Response()

    async def _index(self, _: Request) -> Response:
        return JSONResponse([{"name": name, "version": "1", "state": "READY"} for name in self.models])

    async def _list(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]})

    async def _infer(self, request: Request) -> Response:
        body = await request.body()
        self.seen.append((request.method, request.url.path, dict(request.headers), body))
        if self.status != 200:
            return JSONResponse({"error": f"The model does not exist at {self.name}"}, self.status)
        try:
            asked: dict[str, Any] = json.loads(body)
        except ValueError:
            asked = {}
        if asked.get("stream"):
            return StreamingResponse(self._events(), media_type="text/event-stream")
        while not self.hold.is_set():
            await asyncio.sleep(0.01)
        return JSONResponse({"served_by": self.name, "model": asked.get("model"), "bytes": len(body)})

    async def _events(self) -> AsyncIterator[str]:
        yield f"data: {self.name}\n\n"
        while not self.hold.is_set():
            await asyncio.sleep(0.01)
        yield "data: [DONE]\n\n"


class _Service(grpc.GenericRpcHandler):
    """ModelInfer and ModelStreamInfer, which answer with the engine's name as the model's version."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        options = {
            "request_deserializer": message("inference.ModelInferRequest").FromString,
            "response_serializer": lambda response: response.SerializeToString(),
        }
        if call.method.endswith("/ModelInfer"):
            return grpc.unary_unary_rpc_method_handler(self._infer, **options)
        if call.method.endswith("/ModelStreamInfer"):
            return grpc.stream_stream_rpc_method_handler(self._stream, **options)
        return None

    def _infer(self, request: Any, context: grpc.ServicerContext) -> Any:
        if self._engine.status != 200:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        return message("inference.ModelInferResponse")(
            model_name=request.model_name, model_version=self._engine.name, id=request.id
        )

    def _stream(self, requests: Any, context: grpc.ServicerContext) -> Any:
        for request in requests:
            response = message("inference.ModelStreamInferResponse")()
            response.infer_response.CopyFrom(self._infer(request, context))
            yield response
