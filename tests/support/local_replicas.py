"""Small V2 engines in this process, on addresses of the loopback network and one port, as pods have them."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class LocalReplica:
    """One engine, which says its address."""

    def __init__(self, address: str, port: int = 0) -> None:
        self._server = _Server((address, port), _Handler)
        self.address = address
        self.port: int = self._server.server_address[1]
        self.num_requests = 0
        self._server.replica = self
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Close all connections, as a killed process does."""
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self._server.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128
    replica: LocalReplica

    def __init__(self, *arguments: Any) -> None:
        self.connections: set[socket.socket] = set()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def handle_error(self, *_: object) -> None:
        """Its connections break when it stops."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.replica.num_requests += 1
        self._answer({"served_by": self.server.replica.address, "host": self.headers["host"], "outputs": []})

    def _answer(self, reply: dict[str, Any]) -> None:
        body = json.dumps(reply).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.wfile.write(head + body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""
