"""The examples of TF Serving's documentation as a server, because TF Serving itself is not available here.

    python -m tests.support.tfserving --port 0 --grpc-port 0 --ready-file READY.json

REPLAYED FROM DOCUMENTATION, not TF Serving. By REST it serves the documentation's models in version 123, labelled
`stable`, in its formats and with its errors: half_plus_two (y = x / 2 + 2) and half_plus_three (y = x / 2 + 3), which
it computes; `tests/protocol/tfserving/test_replaying_server.py` compares it with the documentation. By gRPC it accepts
exactly the requests in `tests.protocol.tfserving.vectors` and replies with the recorded bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn, Self
from urllib.parse import unquote

import grpc

from tests.protocol.tfserving import vectors
from tests.protocol.tfserving.exchanges import HALF_PLUS_THREE, HALF_PLUS_TWO, STATUS
from tests.support.child import Child

VERSION, LABEL = "123", "stable"
SUMMANDS = {"half_plus_two": 2.0, "half_plus_three": 3.0}
METADATA = {"half_plus_two": HALF_PLUS_TWO, "half_plus_three": HALF_PLUS_THREE}

_REQUEST = re.compile(r"(?i)/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?:(classify|regress|predict)")
_REPLY = re.compile(r"(?i)/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?(/metadata)?")


class TfServing(Child):
    """The server, for use in a test."""

    what = "tfserving"

    @classmethod
    def start(cls, directory: Path) -> Self:
        """Start it on free ports."""
        return cls.start_module(["tests.support.tfserving", "--port", "0", "--grpc-port", "0"], directory)


class _RefusedError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def answer(method: str, path: str, body: bytes) -> tuple[int, bytes]:
    """The status and body of a REST reply."""
    try:
        if method == "GET" and (found := _REPLY.fullmatch(path)):
            name, version, label, metadata = found.groups()
            name = _find(unquote(name), version, label, is_status=not metadata)
            return 200, METADATA[name] if metadata else STATUS
        if method == "POST" and (found := _REQUEST.fullmatch(path)):
            name, version, label, requested = found.groups()
            name = _find(unquote(name), version, label)
            return 200, json.dumps(_infer(name, requested, body), indent=4).encode()
        raise _RefusedError(400, f"Malformed request: {method} {path}")
    except _RefusedError as refused:
        return refused.status, json.dumps({"error": str(refused)}).encode()


def _find(name: str, version: str | None, label: str | None, *, is_status: bool = False) -> str:
    if label is not None and unquote(label) != LABEL:
        raise _RefusedError(400, f"Unrecognized servable version label: {unquote(label)}")
    if name in SUMMANDS and version in (None, VERSION):
        return name
    if is_status:
        what = f"version {version}" if version else "any versions"
        raise _RefusedError(404, f"Could not find {what} of model {name}")
    requested = f"Specific({name}, {version})" if version else f"Latest({name})"
    raise _RefusedError(404, f"Servable not found for request: {requested}")


def _infer(name: str, method: str, body: bytes) -> dict[str, Any]:
    try:
        requested = json.loads(body)
    except ValueError:
        raise _RefusedError(400, "JSON Parse error: Invalid value. at offset: 0") from None
    summand = SUMMANDS[name]
    signatures = json.loads(METADATA[name])["metadata"]["signature_def"]["signature_def"]
    signature = requested.get("signature_name") or "serving_default"
    if signature not in signatures:
        raise _RefusedError(400, f'Serving signature name: "{signature}" not found in signature def')
    if method == "predict":
        return _predict(requested, summand)
    expected = f"tensorflow/serving/{method}"
    if signatures[signature]["method_name"] != expected:
        word = {"classify": "classification", "regress": "regression"}[method]
        found = signatures[signature]["method_name"]
        raise _RefusedError(400, f"Expected {word} signature method_name to be {expected}. Was: {found}")
    if "examples" not in requested:
        raise _RefusedError(400, "When method is classify, key 'examples' is expected and was not found")
    values = [_half(_only(example["x"]), summand) for example in requested["examples"]]
    return {"results": [[["", value]] for value in values] if method == "classify" else values}


def _predict(body: dict[str, Any], summand: float) -> dict[str, Any]:
    if "instances" in body:
        rows = body["instances"]
        if not rows:
            raise _RefusedError(400, "No values in 'instances' array")
        return {"predictions": _half([row["x"] if isinstance(row, dict) else row for row in rows], summand)}
    if "inputs" not in body:
        raise _RefusedError(400, "Missing 'inputs' or 'instances' key")
    columns = body["inputs"]
    if isinstance(columns, dict):
        if "x" not in columns:
            raise _RefusedError(400, "Missing named input: x in 'inputs' object.")
        columns = columns["x"]
    return {"outputs": _half(columns, summand)}


def _half(value: Any, summand: float) -> Any:
    if isinstance(value, list):
        return [_half(each, summand) for each in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        kind = "String" if isinstance(value, str) else "Object"
        raise _RefusedError(400, f"JSON Value: {json.dumps(value)} Type: {kind} is not of expected type: float")
    return value / 2 + summand


def _only(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers.get("content-length", 0))))

    def _answer(self, body: bytes) -> None:
        status, reply = answer(self.command, self.path, body)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


_PREDICTION, _MODEL = "/tensorflow.serving.PredictionService/", "/tensorflow.serving.ModelService/"
_RPCS = {"predict": "Predict", "classify": "Classify", "regress": "Regress", "metadata": "GetModelMetadata"}
PATHS = {name: f"{_PREDICTION}{_RPCS[name.partition(' ')[0]]}" for name in vectors.REQUESTS if name != "status"}
PATHS["status"] = f"{_MODEL}GetModelStatus"
RECORDED = {(PATHS[name], request): vectors.RESPONSES[name] for name, request in vectors.REQUESTS.items()}


class _Recorded(grpc.GenericRpcHandler):
    """Answers every RPC, as bytes."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        path = handler_call_details.method

        def respond(request: bytes, context: grpc.ServicerContext) -> bytes:
            known = RECORDED.get((path, request))
            if known is None:
                _refuse(path, request, context)
            return known

        return grpc.unary_unary_rpc_method_handler(respond)


def _refuse(path: str, request: bytes, context: grpc.ServicerContext) -> NoReturn:
    if path not in PATHS.values():
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "")
    elif b"half_plus_two" not in request:
        context.abort(grpc.StatusCode.NOT_FOUND, "Servable not found for request: Latest(half)")
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not recorded: {path} {request!r}")
    raise AssertionError


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8501)
    parser.add_argument("--grpc-port", type=int, default=8500)
    parser.add_argument("--ready-file", type=Path)
    options = parser.parse_args()
    rest = _Server(("127.0.0.1", options.port), _Handler)
    rpcs = grpc.server(ThreadPoolExecutor(8), handlers=[_Recorded()])
    grpc_port = rpcs.add_insecure_port(f"127.0.0.1:{options.grpc_port}")
    rpcs.start()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    threading.Thread(target=rest.serve_forever, daemon=True).start()
    if options.ready_file:
        aside = options.ready_file.with_suffix(".new")
        aside.write_text(json.dumps({"http": rest.server_address[1], "grpc": grpc_port, "pid": os.getpid()}))
        aside.rename(options.ready_file)
    ended.wait()
    rest.shutdown()
    rpcs.stop(None).wait()


if __name__ == "__main__":
    sys.exit(main())
