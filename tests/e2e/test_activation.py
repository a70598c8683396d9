"""An engine that is scaled to zero: a request has it started, and is answered."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support import plain_http
from tests.support.ports import free_port
from tests.support.servers import GatewayProcess

NUM_REQUESTS = 6


class _Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, reply: object) -> None:
        body = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def test_requests_start_an_engine(start_gateway: Callable[..., GatewayProcess]) -> None:
    """Requests of two workers wait for an engine that does not run; its activator is called once, with the credential
    of the rules, starts it, and all of them are answered."""
    servers: list[ThreadingHTTPServer] = []
    calls: list[tuple[str, str | None, bytes]] = []
    port = free_port()

    def serve(port: int, handler: type[_Quiet]) -> ThreadingHTTPServer:
        server = ThreadingHTTPServer(("127.0.0.1", port), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    class Engine(_Quiet):
        def do_GET(self) -> None:
            self.answer({})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.answer({"outputs": []})

    class Activator(_Quiet):
        def do_PATCH(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            calls.append((self.path, self.headers["authorization"], body))
            serve(port, Engine)
            self.answer({})

    activator = serve(0, Activator)
    url = f"http://127.0.0.1:{activator.server_address[1]}/scale"
    rules = f"""
version: 1
engines:
  it:
    endpoints: ['http://127.0.0.1:{port}']
    health: {{interval: 100ms, timeout: 60s}}
    wait_for_endpoint: 60s
    activator: {{url: '{url}', method: PATCH, headers: {{authorization: Bearer t}}, body: '{{"replicas": 1}}'}}
routes: [{{name: all, engine: it}}]
"""
    gateway = start_gateway(rules, workers=2)
    statuses: list[int] = []

    def ask() -> None:
        statuses.append(plain_http.post(f"{gateway.http_url}/v2/models/m/infer", content=b'{"inputs": []}').status_code)

    clients = [threading.Thread(target=ask) for _ in range(NUM_REQUESTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert statuses == [200] * NUM_REQUESTS
    assert calls == [("/scale", "Bearer t", b'{"replicas": 1}')]
    assert (
        'pointsman_endpoint_waits_total{engine="it",outcome="went_on"}'
        in plain_http.get(f"{gateway.admin_url}/metrics").text
    )
    for server in servers:
        server.shutdown()
        server.server_close()
