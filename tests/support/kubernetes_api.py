"""An API server of Kubernetes that has EndpointSlices alone: lists in pages, watches, bookmarks, versions that expire,
bearer tokens."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]


def endpoint(
    address: str,
    *,
    ready: bool | None = True,
    serving: bool | None = None,
    terminating: bool | None = None,
    zone: str = "",
) -> Json:
    conditions = {"ready": ready, "serving": serving, "terminating": terminating}
    found: Json = {
        "addresses": [address],
        "conditions": {name: value for name, value in conditions.items() if value is not None},
    }
    return found | ({"zone": zone} if zone else {})


class KubernetesApi:
    """Serves the slices of service `service` in `namespace`; `url` is that of the API."""

    def __init__(self, *, token: str = "", tls: ssl.SSLContext | None = None) -> None:
        self.tokens = {token} if token else set[str]()
        self.requests: list[tuple[str, str, int]] = []  # "list" or "watch", resourceVersion, status
        self.page_size = 0  # of lists; 0: as requested
        self.changed = threading.Condition()
        self.slices: dict[str, Json] = {}
        self.version = 100
        self.history: list[tuple[int, Json]] = []
        self.compacted = 0  # versions up to this one are gone
        self.expires_by_event = False  # a watch of such a version gets an event, else status 410
        self.is_away = False  # connections break
        self._watches: set[socket.socket] = set()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.api = self
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.break_watches()
        self._server.shutdown()
        self._server.server_close()

    def put(
        self, name: str, endpoints: Sequence[Json], *, port: int = 8000, kind: str = "IPv4", **more_ports: int
    ) -> None:
        """Create a slice, or replace it."""
        ports = [
            {"name": name, "port": number, "protocol": "TCP"} for name, number in ({"http": port} | more_ports).items()
        ]
        with self.changed:
            self.version += 1
            item = {
                "metadata": {
                    "name": name,
                    "namespace": "models",
                    "resourceVersion": str(self.version),
                    "labels": {"kubernetes.io/service-name": "triton"},
                },
                "addressType": kind,
                "endpoints": list(endpoints),
                "ports": ports,
            }
            event = "MODIFIED" if name in self.slices else "ADDED"
            self.slices[name] = item
            self._publish({"type": event, "object": item})

    def delete(self, name: str) -> None:
        with self.changed:
            self.version += 1
            item = self.slices.pop(name)
            item = item | {"metadata": item["metadata"] | {"resourceVersion": str(self.version)}}
            self._publish({"type": "DELETED", "object": item})

    def bookmark(self) -> None:
        """Tell watches the version, without a change."""
        with self.changed:
            self.version += 1
            item = {"metadata": {"resourceVersion": str(self.version)}}
            self._publish({"type": "BOOKMARK", "object": item})

    def _publish(self, event: Json) -> None:
        self.history.append((self.version, event))
        self.changed.notify_all()

    def compact(self) -> None:
        """Forget all versions but the latest."""
        with self.changed:
            self.version += 1
            self.compacted = self.version - 1

    def break_watches(self) -> None:
        with self.changed:
            watches, self._watches = self._watches, set()
            for watch in watches:
                try:
                    watch.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue
            self.changed.notify_all()

    def num_of(self, kind: str, status: int = 200) -> int:
        return sum((each[0], each[2]) == (kind, status) for each in self.requests)

    def events(self, since: int, connection: socket.socket) -> Iterator[Json]:
        """Until the connection is broken."""
        with self.changed:
            self._watches.add(connection)
        at = 0
        while True:
            with self.changed:
                while len(self.history) == at and connection in self._watches:
                    self.changed.wait()
                if connection not in self._watches:
                    return
                batch, at = self.history[at:], len(self.history)
            yield from (event for version, event in batch if version > since)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    api: KubernetesApi

    def handle_error(self, *_: object) -> None:
        """Clients leave."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        api = self.server.api
        target = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(target.query).items()}
        kind, version = "watch" if query.get("watch") else "list", query.get("resourceVersion", "")
        assert target.path == "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices", self.path
        assert query["labelSelector"] == "kubernetes.io/service-name=triton", self.path
        if api.is_away:
            self.close_connection = True
            return
        token = self.headers.get("authorization", "").removeprefix("Bearer ")
        if api.tokens and token not in api.tokens:
            status, reply = 401, {"kind": "Status", "code": 401, "message": "Unauthorized"}
        elif kind == "watch" and int(version) < api.compacted and not api.expires_by_event:
            status, reply = 410, {"kind": "Status", "code": 410, "message": "too old resource version"}
        else:
            status, reply = 200, {}
        api.requests.append((kind, version, status))
        if status != 200:
            self._reply(status, reply)
        elif kind == "list":
            self._reply(200, self._page(query))
        else:
            self._watch(int(version))

    def _page(self, query: dict[str, str]) -> Json:
        api = self.server.api
        with api.changed:
            items, size = list(api.slices.values()), api.page_size or int(query["limit"])
            start = int(query.get("continue", "0"))
            metadata: Json = {"resourceVersion": str(api.version)}
            if start + size < len(items):
                metadata["continue"] = str(start + size)
            return {"kind": "EndpointSliceList", "metadata": metadata, "items": items[start : start + size]}

    def _watch(self, since: int) -> None:
        api = self.server.api
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        if since < api.compacted:
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
            self._chunk(json.dumps({"type": "ERROR", "object": status}) + "\n")
            self._chunk("")
            return
        for event in api.events(since, self.connection):
            text = json.dumps(event) + "\n"
            half = len(text) // 2
            self._chunk(text[:half])  # events are not cut as chunks are
            self._chunk(text[half:])
        self.close_connection = True

    def _chunk(self, text: str) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(text), text.encode()))
        self.wfile.flush()

    def _reply(self, status: int, reply: Json) -> None:
        body = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""
