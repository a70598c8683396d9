"""A collector of OpenTelemetry in the test's process: OTLP over HTTP, decoded by OpenTelemetry's own protobuf."""

from __future__ import annotations

import gzip
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass
class ReceivedSpan:
    """A span with its ids in hexadecimal digits; `kind` is internal, server or client."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    started_ns: int
    ended_ns: int
    is_error: bool
    resource: dict[str, Any]
    attributes: dict[str, Any]
    links: list[tuple[str, str]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)


class OtlpReceiver:
    """Receives at `url` until it is closed; `headers` are those of the last request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[ReceivedSpan] = []
        self.headers: dict[str, str] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def spans(self) -> list[ReceivedSpan]:
        with self._lock:
            return list(self._spans)

    def of_kind(self, kind: str, service: str = "") -> list[ReceivedSpan]:
        return [
            span
            for span in self.spans
            if span.kind == kind and (not service or span.resource["service.name"] == service)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                spans = _spans(ExportTraceServiceRequest.FromString(body)) if self.path == "/v1/traces" else []
                with receiver._lock:
                    receiver.headers = {name.lower(): value for name, value in self.headers.items()}
                    receiver._spans += spans
                reply = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200 if self.path == "/v1/traces" else 404)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        return Handler


def _spans(request: ExportTraceServiceRequest) -> list[ReceivedSpan]:
    return [
        ReceivedSpan(
            span.name,
            {1: "internal", 2: "server", 3: "client"}.get(span.kind, "other"),
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            span.status.code == 2,
            _values(of_resource.resource.attributes),
            _values(span.attributes),
            [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
            [event.name for event in span.events],
        )
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind is not None else None
