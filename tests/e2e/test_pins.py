"""Sessions keep their arm though Redis is slow, or does not answer: two gateways, whose weights change in between."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.support import plain_http
from tests.support.canned_engine import CannedEngine
from tests.support.redis_server import RedisServer
from tests.support.servers import GatewayProcess
from tests.support.slow_proxy import SlowProxy
from tests.support.waiting import eventually
from tests.support.wire import Reply, send

INFER = "/v2/models/m/infer"


@dataclass
class Pair:
    """Two gateways: `near` has Redis beside it, `far` behind a network that may be slow."""

    near: GatewayProcess
    far: GatewayProcess
    network: SlowProxy
    engines: dict[str, CannedEngine]

    def rules(self, new: int, options: str = "") -> str:
        old_url, new_url = self.engines["old"].url, self.engines["new"].url
        return f"""
version: 1
engines:
  old: {{endpoints: ['{old_url}']}}
  new: {{endpoints: ['{new_url}']}}
routes: [{{name: all, experiment: x}}]
experiments:
  x:
    arms: [{{name: old, engine: old, weight: {100 - new}}}, {{name: new, engine: new, weight: {new}}}]
{options}
"""

    def use(self, new: int, options: str = "") -> None:
        """Put rules in force on both."""
        self.near.use(self.rules(new, options))
        eventually(lambda: metric(self.far, "arm_share", arm="new") == new / 100)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    secret = folder / "secret"
    secret.write_text("0123456789abcdef" * 4)
    secret.chmod(0o600)
    with (
        CannedEngine("old") as old,
        CannedEngine("new") as new,
        RedisServer(folder / "redis") as redis,
        SlowProxy(redis.port) as network,
    ):
        engines = {"old": old, "new": new}
        rules = Pair.rules(Pair(None, None, network, engines), 50)  # type: ignore[arg-type]
        urls = redis.url, f"redis://127.0.0.1:{network.port}/0"
        extra = ("--shared-secret-file", str(secret))
        gateways = [
            GatewayProcess.start(rules, folder / str(number), redis=url, extra_args=extra)
            for number, url in enumerate(urls)
        ]
        yield Pair(gateways[0].wait_ready(), gateways[1].wait_ready(), network, engines)
        for gateway in gateways:
            gateway.stop()


def metric(gateway: GatewayProcess, name: str, **labels: str) -> float:
    """The sum of a metric's series that have these labels."""
    found = 0.0
    for line in plain_http.get(f"{gateway.admin_url}/metrics").text.splitlines():
        if line.startswith(f"pointsman_{name}{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
            found += float(line.rpartition(" ")[2])
    return found


def ask(gateway: GatewayProcess, session: str, **fields: str) -> Reply:
    headers = {"x-session-id": session, **{name.replace("_", "-"): value for name, value in fields.items()}}
    reply = send(gateway.http_port, "POST", INFER, b"{}", headers)
    assert reply.status == 200, reply.body
    assert json.loads(reply.body)["served_by"] == reply.headers["x-pointsman-arm"]
    return reply


def arm_of(reply: Reply) -> str:
    return reply.headers["x-pointsman-arm"]


def evidence(gateway: GatewayProcess) -> float:
    return metric(gateway, "arm_requests_total")


def test_an_experiment_waits_for_redis_longer_than_a_place_does(pair: Pair) -> None:
    """Redis answers later than requests wait for a place: each session keeps its arm all the same, without anything
    from its client, and none is guessed."""
    options = "    pin: redis\n    lookup_timeout: 120s"
    pair.use(50, options)
    arms = {f"slow-{number}": arm_of(ask(pair.near, f"slow-{number}")) for number in range(24)}
    assert min(Counter(arms.values()).values()) > 4
    pair.use(10, options)
    before = evidence(pair.far)
    pair.network.delay = 0.2  # --redis-deadline is 5 ms
    replies = {session: ask(pair.far, session) for session in arms}
    pair.network.delay = 0.0
    assert {session: arm_of(reply) for session, reply in replies.items()} == arms
    assert not any("x-pointsman-pin" in reply.headers or "set-cookie" in reply.headers for reply in replies.values())
    assert metric(pair.far, "arm_guessed_total") == 0
    assert evidence(pair.far) == before + len(arms)


def test_a_session_keeps_its_arm_by_what_its_client_shows(pair: Pair) -> None:
    """Redis answers nothing at all: clients that show the pin that they have been given, as a cookie, a header or gRPC
    metadata, keep their arm; the arms of others are guesses, which are counted one by one, and are no evidence."""
    pair.use(50)
    given = {f"pin-{number}": ask(pair.near, f"pin-{number}") for number in range(24)}
    arms = {session: arm_of(reply) for session, reply in given.items()}
    with grpc.insecure_channel(f"127.0.0.1:{pair.near.port('grpc')}") as channel:
        metadata = {f"rpc-{number}": ask_rpc(channel, f"rpc-{number}") for number in range(8)}
    assert all("set-cookie" not in fields for fields in metadata.values())
    # A session's later replies do not repeat it
    assert "set-cookie" not in ask(pair.near, "pin-0").headers
    pair.use(10)
    before = evidence(pair.far)
    pair.network.delay = 3600.0
    for number, (session, reply) in enumerate(given.items()):
        cookie, _, attributes = reply.headers["set-cookie"].partition("; ")
        assert attributes == "Max-Age=3600; Path=/; HttpOnly; SameSite=Lax"
        assert "pin-" not in cookie.removeprefix("pointsman-pin-") and arm_of(reply) not in cookie
        shown = {"cookie": cookie} if number % 2 else {"x_pointsman_pin": reply.headers["x-pointsman-pin"]}
        assert arm_of(ask(pair.far, session, **shown)) == arms[session]
    with grpc.insecure_channel(f"127.0.0.1:{pair.far.port('grpc')}") as channel:
        for session, fields in metadata.items():
            again = ask_rpc(channel, session, fields["x-pointsman-pin"])
            assert again["x-pointsman-arm"] == fields["x-pointsman-arm"]
    assert metric(pair.far, "arm_guessed_total") == 0
    assert evidence(pair.far) == before + len(given) + len(metadata)

    before = evidence(pair.far)
    pins = [reply.headers["x-pointsman-pin"] for reply in given.values()]
    for number in range(20):
        # Nothing, and what belongs to another session: twice each
        reply = ask(pair.far, f"new-{number}", **({"x_pointsman_pin": pins[number]} if number % 2 else {}))
        assert "x-pointsman-pin" not in reply.headers  # of a guess
        assert arm_of(ask(pair.far, f"new-{number}")) == arm_of(reply)
    eventually(lambda: metric(pair.far, "arm_guessed_total") == 40)
    assert metric(pair.far, "arm_guessed_sessions_total") == 20
    assert evidence(pair.far) == before
    shown = plain_http.get(f"{pair.far.admin_url}/metrics").text
    assert pins[0] not in shown


def ask_rpc(channel: grpc.Channel, session: str, pin: str = "") -> dict[str, str]:
    """One ModelInfer; returns the metadata of its reply."""
    request = service_pb2.ModelInferRequest(model_name="m")
    sent = [("x-session-id", session), *([("x-pointsman-pin", pin)] if pin else [])]
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    _, call = stub.ModelInfer.with_call(request, metadata=sent, timeout=120)
    return dict(call.initial_metadata())
