"""A small V2 engine in a thread: it describes its model, answers inferences with known numbers, loads and unloads."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

MODELS = ("plain", "ranker")


class TensorEngine:
    """Answers each inference with [1, 2 + `delta`]; a request's `x-sleep` delays the answer by this many seconds."""

    def __init__(self, delta: float = 0.0) -> None:
        self.delta = delta
        self.loaded = set(MODELS)
        self.refuses = False  # to load anything
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.engine = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True
    engine: TensorEngine


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        if self.path.startswith("/v2/models/"):
            name = self.path.split("/")[3]
            tensor = {"datatype": "FP32", "shape": [-1, 2]}
            inputs, outputs = [{"name": "INPUT0", **tensor}], [{"name": "SCORES", **tensor}]
            self._answer({"name": name, "versions": ["1"], "platform": "x", "inputs": inputs, "outputs": outputs})
        else:
            self._answer({})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        engine, parts = self.server.engine, self.path.split("/")
        if self.path.endswith("/infer"):
            time.sleep(float(self.headers.get("x-sleep", 0)))
            output = {"name": "SCORES", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.0 + engine.delta]}
            self._answer({"model_name": parts[3], "model_version": "1", "outputs": [output]})
        elif self.path.endswith("/index"):
            states = [(name, "READY" if name in engine.loaded else "UNAVAILABLE") for name in MODELS]
            self._answer([{"name": name, "version": "1", "state": state, "reason": ""} for name, state in states])
        elif parts[-1] == "load" and engine.refuses:
            self._answer({"error": "no room"}, 500)
        elif parts[-1] in ("load", "unload"):
            (engine.loaded.add if parts[-1] == "load" else engine.loaded.discard)(parts[-2])
            self._answer({})
        else:
            self._answer({"error": "not here"}, 404)

    def _answer(self, report: Any, status: int = 200) -> None:
        body = json.dumps(report).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""
