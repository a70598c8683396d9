"""A fleet under load while one of its engines is killed."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.support import plain_http
from tests.support.canned_engine import CannedEngine
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

NUM_CLIENTS = 8
REQUESTS_EACH = 150


@pytest.fixture
def engines() -> Iterator[list[CannedEngine]]:
    with CannedEngine("a") as a, CannedEngine("b") as b:
        yield [a, b]


def rules(engines: list[CannedEngine], idempotent: str) -> str:
    urls = ", ".join(f"'{engine.url}'" for engine in engines)
    options = f"endpoints: [{urls}], retry: {{idempotent: {idempotent}}}, health: {{interval: 200ms, timeout: 60s}}"
    return f"version: 1\nengines: {{it: {{{options}}}}}\nroutes: [{{name: all, engine: it}}]\n"


def load(gateway: GatewayProcess, after_some: Callable[[], None]) -> list[tuple[int, str]]:
    """Send many requests from several clients at once and call `after_some` in the middle. Returns status and text of
    each reply."""
    done = threading.Semaphore(0)

    def ask_many(number: int) -> list[tuple[int, str]]:
        reply = []
        with httpx.Client(base_url=gateway.http_url, timeout=120) as client:
            for _ in range(REQUESTS_EACH):
                answer = client.post("/v2/models/m/infer", content=b'{"inputs": []}', headers={"x-sleep": "0.002"})
                reply.append((answer.status_code, answer.json().get("served_by") or answer.json()["error"]))
                done.release()
        return reply

    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        asking = [clients.submit(ask_many, number) for number in range(NUM_CLIENTS)]
        for _ in range(NUM_CLIENTS * REQUESTS_EACH // 4):
            done.acquire()
        after_some()
        return [reply for client in asking for reply in client.result()]


def test_no_request_that_may_run_twice_is_lost(
    start_gateway: Callable[..., GatewayProcess], engines: list[CannedEngine]
) -> None:
    """Where the rules allow an inference to run twice, killing one of two engines under load fails no request."""
    gateway = start_gateway(rules(engines, "infer"))
    reply = load(gateway, engines[0].kill)
    assert Counter(status for status, _ in reply) == {200: NUM_CLIENTS * REQUESTS_EACH}
    assert reply[-1] == (200, "b")


def test_by_default_only_what_had_reached_the_engine_is_lost(
    start_gateway: Callable[..., GatewayProcess], engines: list[CannedEngine]
) -> None:
    """By default an inference is not sent twice: only requests in flight at the killed engine fail, with the reason,
    and no later request does."""
    gateway = start_gateway(rules(engines, "safe"))
    reply = load(gateway, engines[0].kill)
    lost = [text for status, text in reply if status != 200]
    assert len(lost) <= NUM_CLIENTS
    assert all("the engine closed the connection before it answered" in text for text in lost)

    def in_flight() -> float:
        lines = plain_http.get(gateway.admin_url + "/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("pointsman_in_flight"))

    eventually(lambda: in_flight() == 0)
