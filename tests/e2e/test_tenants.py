"""Tenants on a real gateway of two workers, with and without Redis: no worker gives one tenant what is another's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dataplane.authenticated import Keys, bearer
from tests.support import plain_http
from tests.support.canned_engine import CannedEngine
from tests.support.redis_server import RedisServer
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually
from tests.support.wire import send

RULES = """
version: 1
auth: {{keys: keys.yaml}}
engines:
  it: {{endpoints: [{urls}], balance: session, health: {{interval: 10s, timeout: 10s}}}}
routes:
  - {{name: rated, match: {{model: rated}}, experiment: x}}
  - {{name: all, engine: it}}
experiments:
  x: {{unit: session, arms: [{{name: a, engine: it, weight: 1}}, {{name: b, engine: it, weight: 1}}]}}
"""


class Scene:
    def __init__(self, gateway: GatewayProcess, keys: Keys, urls: list[str]) -> None:
        self.gateway = gateway
        self.acme, self.zen = bearer(keys.of["acme"]), bearer(keys.of["zen"])
        self.urls = urls

    def infer(self, headers: dict[str, str], session: str, model: str = "m", id: str = "") -> str:
        """The engine that answers, over a new connection, so that any worker may accept it."""
        fields = {**headers, "x-session-id": session} | ({"x-request-id": id} if id else {})
        reply = send(self.gateway.http_port, "POST", f"/v2/models/{model}/infer", b'{"inputs": []}', fields)
        assert reply.status == 200, reply.body
        return str(json.loads(reply.body)["served_by"])

    def rate(self, headers: dict[str, str], **rating: object) -> int:
        body = json.dumps({"value": 1, **rating}).encode()
        return send(self.gateway.http_port, "POST", "/feedback", body, headers).status


@pytest.fixture(scope="module", params=["redis", "no redis"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder: Path = tmp_path_factory.mktemp("tenants")
    keys = Keys(folder)
    keys.add("acme")
    keys.add("zen")
    with CannedEngine("a") as a, CannedEngine("b") as b, RedisServer(tmp_path_factory.mktemp("redis")) as redis:
        rules = RULES.format(urls=f"'{a.url}', '{b.url}'")
        options = {"redis": redis.url} if request.param == "redis" else {}
        extra = ["--redis-deadline", "10s"]
        gateway = GatewayProcess.start(rules, folder, workers=2, extra_args=extra, **options).wait_ready()
        yield Scene(gateway, keys, [a.url, b.url])
        gateway.stop()


def test_ratings_count_for_their_tenant_at_any_worker(scene: Scene) -> None:
    """Each worker takes the tenant's own ratings, by request and by session, and no other tenant's."""
    scene.infer(scene.acme, "s", "rated", "r-1")
    for _ in range(4):
        assert scene.rate(scene.zen, request_id="r-1") == 404
        assert scene.rate(scene.zen, session="s") == 404
    for _ in range(4):
        assert scene.rate(scene.acme, request_id="r-1") == 200
        assert scene.rate(scene.acme, session="s") == 200
    text = plain_http.get(f"{scene.gateway.admin_url}/metrics").text
    lines = [line for line in text.splitlines() if line.startswith("pointsman_arm_feedback_values_total")]
    assert sum(float(line.rpartition(" ")[2]) for line in lines) == 5  # a request's once, a session's each time


@pytest.mark.parametrize("scene", ["redis"], indirect=True)
def test_an_operator_moves_one_tenants_session(scene: Scene) -> None:
    """A session that is moved by the admin API is that of the tenant named, in all workers."""
    path = f"{scene.gateway.admin_url}/sessions/moved"
    homes = {name: scene.infer(headers, "moved") for name, headers in (("acme", scene.acme), ("zen", scene.zen))}
    eventually(lambda: plain_http.get(path, params={"tenant": "acme"}).status_code == 200)
    assert plain_http.get(path).status_code == 404  # no anonymous caller has used it
    url = scene.urls[homes["acme"] == "a"]
    reply = plain_http.post(f"{path}/move", params={"tenant": "acme"}, json={"engine": "it", "url": url})
    assert (reply.status_code, reply.json()["tenant"], reply.json()["places"]) == (200, "acme", {"it": url})
    other = "b" if homes["acme"] == "a" else "a"
    eventually(lambda: [scene.infer(scene.acme, "moved") for _ in range(4)] == [other] * 4)
    assert [scene.infer(scene.zen, "moved") for _ in range(4)] == [homes["zen"]] * 4
    assert plain_http.delete(path, params={"tenant": "zen"}).json()["forgotten"] is True
    assert scene.infer(scene.acme, "moved") == other
