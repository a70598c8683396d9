"""Requests and sessions when an engine host stops on SIGTERM in the middle of traffic."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support import plain_http
from tests.support.host import HostProcess
from tests.support.servers import GatewayProcess

MODELS = Path(__file__).parents[1] / "models"
NUM_CLIENTS = 8
SESSIONS_EACH = 5
REQUESTS_EACH = 150
VECTOR = '{"name":"%s","shape":[1,3],"datatype":"INT32","data":[1,2,3]}'
BODY = f'{{"inputs":[{VECTOR % "a"},{VECTOR % "b"}]}}'.encode()


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[HostProcess]]:
    only = ("--model-control-mode", "explicit", "--load-model", "adder")
    started = [HostProcess.start([MODELS], tmp_path / f"host-{number}", extra_args=only) for number in range(2)]
    yield [host.wait_ready() for host in started]
    for host in started:
        host.stop()


def test_a_host_that_stops_hands_its_sessions_over(
    start_gateway: Callable[..., GatewayProcess], hosts: list[HostProcess], tmp_path: Path
) -> None:
    """No request fails, the host's sessions continue at the other host, and the moves are counted."""
    urls = ", ".join(f"'{host.http_url}'" for host in hosts)
    engine = f"it: {{endpoints: [{urls}], balance: session}}"
    rules = f"version: 1\nengines: {{{engine}}}\nroutes: [{{name: all, engine: it}}]\n"
    gateway = start_gateway(rules, workers=2, redis="embedded")
    under_way = threading.Semaphore(0)

    def ask_many(number: int) -> Counter[str]:
        report: Counter[str] = Counter()
        with httpx.Client(base_url=gateway.http_url, timeout=120) as client:
            for turn in range(REQUESTS_EACH):
                headers = {"x-session-id": f"{number}-{turn % SESSIONS_EACH}"}
                reply = client.post("/v2/models/adder/infer", content=BODY, headers=headers)
                report["ok" if reply.status_code == 200 else reply.text] += 1
                under_way.release()
        return report

    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        asking = [clients.submit(ask_many, number) for number in range(NUM_CLIENTS)]
        for _ in range(NUM_CLIENTS * REQUESTS_EACH // 3):
            under_way.acquire()
        hosts[0].process.terminate()
        report = sum((client.result() for client in asking), Counter())
    assert report == {"ok": NUM_CLIENTS * REQUESTS_EACH}
    endpoints = plain_http.get(f"{gateway.admin_url}/engines").json()["engines"][0]["endpoints"]
    moved = {endpoint["url"]: endpoint["sessions_moved"] for endpoint in endpoints}
    assert moved[hosts[0].http_url] > 0
    assert moved[hosts[1].http_url] == 0
