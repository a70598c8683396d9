"""Sessions on two real gateways of two workers each, which share a Redis: their places, and admin commands."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.support import plain_http
from tests.support.canned_engine import CannedEngine
from tests.support.redis_server import RedisServer
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually
from tests.support.wire import send

NUM_SESSIONS = 24
# A timeout that replies of Redis and of probes meet on a busy machine.
PATIENT = ["--redis-deadline", "10s"]


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[str, CannedEngine]]:
    with CannedEngine("a") as a, CannedEngine("b") as b, CannedEngine("c") as c:
        yield {"a": a, "b": b, "c": c}


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def gateways(
    engines: dict[str, CannedEngine], redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[GatewayProcess]]:
    folder = tmp_path_factory.mktemp("gateways")
    urls = ", ".join(f"'{engine.url}'" for engine in engines.values())
    engine = f"it: {{endpoints: [{urls}], balance: session, health: {{interval: 10s, timeout: 10s}}}}"
    rules = f"version: 1\nengines: {{{engine}}}\nroutes: [{{name: all, engine: it}}]\n"
    started = [
        GatewayProcess.start(rules, folder / str(n), workers=2, redis=redis.url, extra_args=PATIENT) for n in range(2)
    ]
    yield [gateway.wait_ready() for gateway in started]
    for gateway in started:
        gateway.stop()


def served_by(gateway: GatewayProcess, session: str) -> str:
    """The engine that answers a session, over a new connection, so that any worker may accept it."""
    reply = send(gateway.http_port, "POST", "/v2/models/m/infer", b'{"inputs": []}', {"x-session-id": session})
    assert reply.status == 200, reply.body
    return str(json.loads(reply.body)["served_by"])


def admin(gateway: GatewayProcess, method: str, path: str, **body: Any) -> httpx.Response:
    return plain_http.request(method, f"{gateway.admin_url}{path}", json=body or None, timeout=120)


def test_a_session_is_at_one_place_for_all(gateways: list[GatewayProcess]) -> None:
    """Every worker of every gateway sends a session to the same engine, and every engine gets some sessions."""
    names = [f"same-{number}" for number in range(NUM_SESSIONS)]
    places = {name: {served_by(gateway, name) for gateway in gateways for _ in range(3)} for name in names}
    assert {len(found) for found in places.values()} == {1}
    assert len(Counter(next(iter(found)) for found in places.values())) == 3


def test_an_operator_finds_moves_and_forgets_a_session(
    gateways: list[GatewayProcess], engines: dict[str, CannedEngine]
) -> None:
    """Moving and deleting a session by one gateway's admin API takes effect on every worker of both."""
    home = served_by(gateways[0], "chat/7")
    eventually(lambda: admin(gateways[1], "GET", "/sessions/chat/7").status_code == 200)
    reply = admin(gateways[1], "GET", "/sessions/chat/7").json()
    assert (reply["session"], reply["requests"], reply["places"]) == ("chat/7", 1, {})
    other = next(name for name in engines if name != home)
    moved = admin(gateways[1], "POST", "/sessions/chat/7/move", engine="it", url=engines[other].url)
    assert (moved.status_code, moved.json()["places"]) == (200, {"it": engines[other].url})
    eventually(lambda: [served_by(gateway, "chat/7") for gateway in gateways for _ in range(4)] == [other] * 8)
    assert admin(gateways[0], "DELETE", "/sessions/chat/7").json()["forgotten"] is True
    eventually(lambda: [served_by(gateway, "chat/7") for gateway in gateways for _ in range(4)] == [home] * 8)


@pytest.mark.parametrize(
    "method, path, body, status, why",
    [
        ("GET", "/sessions/nobody", {}, 404, "no session 'nobody' is remembered"),
        (
            "POST",
            "/sessions/s/move",
            {"engine": "gpu", "url": "http://a"},
            404,
            "there is no engine 'gpu'; there are it",
        ),
        ("POST", "/sessions/s/move", {"engine": "it", "url": "http://a"}, 404, "has no endpoint http://a; it has http"),
    ],
)
def test_what_is_not_there_is_told(
    gateways: list[GatewayProcess], method: str, path: str, body: dict[str, str], status: int, why: str
) -> None:
    """A wrong name changes nothing, and the error lists the valid ones."""
    reply = admin(gateways[0], method, path, **body)
    assert reply.status_code == status
    assert why in reply.json()["detail"]


def test_operators_find_sessions_of_any_name(gateways: list[GatewayProcess]) -> None:
    """A session name may contain slashes, line ends, NULs and non-ASCII characters, or be long."""
    for name in ("a/b", "a\r\nb", "m\x007", "\u65e5\u672c", "x" * 1000):
        body = json.dumps({"inputs": [], "parameters": {"session_id": name}})
        assert plain_http.post(f"{gateways[0].http_url}/v2/models/m/infer", content=body, timeout=20).status_code == 200
        path = f"/sessions/{quote(name)}"
        eventually(lambda path=path: admin(gateways[1], "GET", path).status_code == 200)


def test_what_no_gateway_has_written_is_told_so(gateways: list[GatewayProcess], redis: RedisServer) -> None:
    """An operator gets an error that describes a corrupt key, and may delete it."""
    redis.client.hset("pointsman:1:session:{broken}", "requests", "many")
    reply = admin(gateways[0], "GET", "/sessions/broken")
    assert reply.status_code == 503
    assert "pointsman:1:session:{broken} holds what no gateway has written" in reply.json()["detail"]
    assert admin(gateways[0], "DELETE", "/sessions/broken").json()["forgotten"] is True


def test_a_drained_engine_hands_its_sessions_over(
    gateways: list[GatewayProcess], engines: dict[str, CannedEngine]
) -> None:
    """A drain at one gateway moves an engine's sessions to the same engines on both and counts them; they stay after
    the drain ends."""
    names = [f"drain-{number}" for number in range(NUM_SESSIONS)]
    homes = {name: served_by(gateways[0], name) for name in names}
    # Stored, so that no worker treats a known session as new.
    eventually(lambda: {admin(gateways[0], "GET", f"/sessions/{name}").status_code for name in names} == {200})
    urls = {name: engine.url for name, engine in engines.items()}
    assert admin(gateways[0], "POST", "/engines/it/endpoints/drain", url=urls["a"]).status_code == 200
    mine = [name for name in names if homes[name] == "a"]

    def without_drained() -> dict[str, set[str]] | None:
        """Where all sessions are, once no worker sends any to the drained engine."""
        places = {name: {served_by(gateway, name) for gateway in gateways for _ in range(2)} for name in names}
        return places if all("a" not in places[name] for name in mine) else None

    moved = eventually(without_drained)
    assert moved is not None
    assert all(moved[name] == {homes[name]} for name in names if homes[name] != "a")
    assert all(len(moved[name]) == 1 for name in mine)
    places = {name: {"it": urls[next(iter(moved[name]))]} for name in mine}
    eventually(lambda: {n: admin(gateways[0], "GET", f"/sessions/{n}").json()["places"] for n in mine} == places)
    assert admin(gateways[0], "POST", "/engines/it/endpoints/undrain", url=urls["a"]).status_code == 200

    def num_moved(gateway: GatewayProcess) -> int:
        endpoints = admin(gateway, "GET", "/engines").json()["engines"][0]["endpoints"]
        return int(next(endpoint["sessions_moved"] for endpoint in endpoints if endpoint["url"] == urls["a"]))

    eventually(lambda: sum(map(num_moved, gateways)) >= len(mine))
    assert {name: {served_by(gateway, name) for gateway in gateways} for name in mine} == {
        name: moved[name] for name in mine
    }
