"""A data plane whose rules have `auth:`, in a thread of its own, with an engine of REST and one of gRPC that remember
what they receive."""

from __future__ import annotations

import asyncio
import io
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import httpx
from tritonclient.grpc import service_pb2

from gateway.auth.api_keys import make_key
from gateway.config.rules import load_rules
from gateway.config.settings import Settings
from gateway.dataplane.context.active_requests import Progress
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.listener import ProtocolDetector
from gateway.observability.access_log import AccessLog

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "chat",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}],
}
RESULT = {
    "model_name": "m",
    "model_version": "1",
    "outputs": [{"name": "o", "datatype": "BYTES", "shape": [1], "data": ["x"]}],
}
INFER = {"inputs": [{"name": "i", "datatype": "BYTES", "shape": [1], "data": ["x"]}]}


class RestEngine:
    """Answers V2 and chat completions, and remembers the fields of each request."""

    def __init__(self) -> None:
        received = self.received = list[dict[str, str]]()
        bodies = self.bodies = list[bytes]()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer({})

            def do_POST(self) -> None:
                received.append({name.lower(): value for name, value in self.headers.items()})
                body = self._read_body()
                if body is None:
                    return
                bodies.append(body)
                index = [{"name": name, "state": "READY"} for name in ("m", "secret", "open")]
                if "/endless/" in self.path:
                    self._begin()
                    return
                is_index = self.path.endswith("/index")
                self._answer(COMPLETION if "chat" in self.path else index if is_index else RESULT)

            def _read_body(self) -> bytes | None:
                """None where it breaks off."""
                if self.headers.get("transfer-encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("content-length", 0)))
                body = b""
                while line := self.rfile.readline():
                    piece = self.rfile.read(int(line, 16) + 2)
                    body += piece[:-2]
                    if piece == b"\r\n":
                        return body
                self.close_connection = True
                return None

            def _answer(self, reply: Any) -> None:
                body = json.dumps(reply).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _begin(self) -> None:
                """Half of a reply, and nothing more until the gateway has closed the connection."""
                self.send_response(200)
                self.send_header("content-length", "100")
                self.end_headers()
                self.wfile.write(b"{")
                self.wfile.flush()
                with suppress(ConnectionError):
                    self.rfile.read()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.address = f"127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class GrpcEngine(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers ModelInfer and ModelStreamInfer, and remembers the metadata of each call."""

    def __init__(self) -> None:
        self.received: list[dict[str, str]] = []
        self._server = grpc.server(ThreadPoolExecutor(4))
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def service(self, details: Any) -> Any:
        if details.method.endswith("ModelConfig"):
            config = service_pb2.ModelConfigResponse()
            config.config.name = "g"
            return grpc.unary_unary_rpc_method_handler(lambda *_: config.SerializeToString())
        self.received.append(dict(details.invocation_metadata))
        response = service_pb2.ModelInferResponse(model_name="g")
        streamed = service_pb2.ModelStreamInferResponse(infer_response=response)
        if details.method.endswith("ModelStreamInfer"):
            return grpc.stream_stream_rpc_method_handler(
                lambda requests, _: (streamed.SerializeToString() for _ in requests)
            )
        return grpc.unary_unary_rpc_method_handler(lambda *_: response.SerializeToString())

    def stop(self) -> None:
        self._server.stop(0).wait()


class Served:
    """The data plane in its thread."""

    def __init__(self, rules: str, folder: Path, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._file = folder / "rules.yaml"
        self._file.write_text(rules)
        self.log = io.StringIO()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.port = self.run(self._start)
        self.url = f"{'https' if tls is not None else 'http'}://127.0.0.1:{self.port}"
        self.address = f"127.0.0.1:{self.port}"

    def run(self, call: Callable[[], Any]) -> Any:
        """Call a function, or a coroutine's, in the loop's thread."""

        async def called() -> Any:
            result = call()
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(120)

    def use(self, rules: str) -> None:
        """Put other rules in force."""
        self._file.write_text(rules)
        self.run(lambda: self.plane.use_rules(self._loaded(), self.plane.snapshot.number + 1))

    def _loaded(self) -> Any:
        loaded = load_rules([self._file])
        assert loaded.rules is not None, loaded.problems
        return loaded.rules

    async def _start(self) -> int:
        self.plane = DataPlane(Settings(), self._loaded(), 1, {})
        self.plane.request_log.access_log = AccessLog("json", self.log)
        self._server = await asyncio.get_running_loop().create_server(
            lambda: ProtocolDetector(self.plane), "127.0.0.1", 0, ssl=self._tls
        )
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def progress(self) -> list[Progress]:
        """The requests under way."""
        return self.run(  # type: ignore[no-any-return]
            lambda: [active.progress for connection in self.plane.connections for active in connection.live()]
        )

    def entries(self) -> list[dict[str, Any]]:
        """The access log."""
        access_log = self.plane.request_log.access_log
        assert access_log is not None
        self.run(access_log.flush)
        return [json.loads(line) for line in self.log.getvalue().splitlines()]

    def stop(self) -> None:
        def close() -> None:
            self._server.close()
            self.plane.close()

        self.run(close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Keys:
    """A file of keys beside the rules; `of` has the keys themselves."""

    def __init__(self, folder: Path, name: str = "keys.yaml") -> None:
        self._file = folder / name
        self.of: dict[str, str] = {}
        self.ids: dict[str, str] = {}
        self._file.write_text("")

    def add(self, tenant: str, label: str = "", **more: str) -> str:
        key, id, digest = make_key()
        fields = {"id": id, "tenant": tenant, "hash": digest, **more}
        lines = "".join(f"  {name}: {value}\n" for name, value in fields.items())
        self._file.write_text(self._file.read_text() + "-" + lines[1:])
        self.of[label or tenant], self.ids[label or tenant] = key, id
        return key

    def remove(self, label: str) -> None:
        entries = self._file.read_text().split("- ")
        self._file.write_text("- ".join(entry for entry in entries if self.ids[label] not in entry))


@contextmanager
def engines() -> Iterator[tuple[RestEngine, GrpcEngine]]:
    rest, by_grpc = RestEngine(), GrpcEngine()
    try:
        yield rest, by_grpc
    finally:
        rest.stop()
        by_grpc.stop()


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def infer(served: Served, headers: dict[str, str], model: str = "m", **client: Any) -> httpx.Response:
    """One inference by REST."""
    return httpx.post(f"{served.url}/v2/models/{model}/infer", json=INFER, headers=headers, timeout=60, **client)
