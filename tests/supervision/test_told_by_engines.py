"""Models and load that engines report, on their way to the workers and to operators."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.support import plain_http
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

StartGateway = Callable[..., GatewayProcess]


class Telling:
    """An engine that reports its models and its number of running requests, and counts the requests it gets."""

    def __init__(self, running: int) -> None:
        self.running = running
        self.num_requests = 0
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                pages = {
                    "/v1/models": json.dumps({"data": [{"id": "llama"}]}),
                    "/metrics": f'vllm:num_requests_running{{engine="0"}} {engine.running}\n'
                    "vllm:kv_cache_usage_perc 0.5\n",
                }
                self.answer(pages.get(self.path, "{}"))

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                engine.num_requests += self.path != "/v2/repository/index"  # which probes read
                self.answer("{}")

            def answer(self, text: str) -> None:
                self.send_response(200)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


@pytest.fixture
def engines() -> Iterator[tuple[Telling, Telling]]:
    """A busy one and an idle one."""
    both = Telling(running=50), Telling(running=0)
    yield both
    for engine in both:
        engine.server.shutdown()
        engine.server.server_close()


def test_load_and_models_are_known_everywhere(start_gateway: StartGateway, engines: tuple[Telling, Telling]) -> None:
    """/engines and /metrics show both, and the workers avoid a busy endpoint."""
    busy, idle = engines
    both = (
        f"endpoints: ['{busy.url}', '{idle.url}'], load: {{source: metrics}}, health: {{interval: 100ms, timeout: 60s}}"
    )
    gateway = start_gateway(
        f"version: 1\nengines:\n  it: {{{both}, balance: least_outstanding}}\n  chat: {{{both}, protocol: openai}}\n"
        "routes:\n  - {name: chat, match: {protocol: openai}, engine: chat}\n  - {name: all, engine: it}\n",
        workers=2,
    )

    def told(engine: str) -> list[tuple[Any, Any]]:
        listed = plain_http.get(gateway.admin_url + "/engines").json()["engines"]
        (found,) = [each for each in listed if each["name"] == engine]
        return [(endpoint["models"], endpoint["load"]) for endpoint in found["endpoints"]]

    loads = [{"running": 50, "waiting": 0, "kv_use": 0.5}, {"running": 0, "waiting": 0, "kv_use": 0.5}]
    eventually(lambda: told("it") == [([], load) for load in loads])
    eventually(lambda: told("chat") == [(["llama"], load) for load in loads])
    metrics = plain_http.get(gateway.admin_url + "/metrics").text.splitlines()
    assert f'pointsman_engine_running{{endpoint="{busy.url}",engine="it"}} 50.0' in metrics
    assert f'pointsman_engine_kv_use{{endpoint="{idle.url}",engine="chat"}} 0.5' in metrics

    def all_go_past_the_busy_one() -> bool:
        before = busy.num_requests
        for _ in range(10):  # over new connections, so that both workers have some
            assert plain_http.post(gateway.http_url + "/v2/models/m/infer", content=b"{}").status_code == 200
        return busy.num_requests == before

    eventually(all_go_past_the_busy_one)
    assert idle.num_requests >= 10
