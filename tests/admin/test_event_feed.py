"""The admin API's event feed."""

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.admin.api_keys import Role
from gateway.admin.event_feed import Feed
from gateway.observability.exposition_state import ExpositionState
from tests.admin.test_app import State
from tests.admin.test_auth import bearer, write_keys
from tests.support import plain_http
from tests.support.canned_engine import CannedEngine
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually


class Counted(State):
    """A state that counts how often it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0

    async def exposition(self) -> ExpositionState:
        self.num_calls += 1
        return await super().exposition()


def read(events: bytes) -> list[tuple[str, Any]]:
    """The kind and data of each event."""
    found = []
    for event in events.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in event.split("\n") if line and not line.startswith(":"))
        if fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


def without_fleet(events: bytes | None) -> list[str]:
    return [kind for kind, _ in read(events or b"") if kind != "fleet"]


def test_all_listeners_are_told_by_one_look() -> None:
    """All subscribers share one snapshot, and no snapshot is taken without subscribers."""

    async def play() -> None:
        state = Counted()
        feed = Feed(state, seconds=0.02)
        with feed.subscription() as one, feed.subscription() as other:
            received: tuple[list[Any], list[Any]] = [], []
            while min(map(len, received)) < 5:
                for each, events in zip((one, other), received, strict=True):
                    events += read(await each.next(5) or b"")
            num_both = min(map(len, received))  # one of them may have got the next event, too
            assert received[0][:num_both] == received[1][:num_both]
            with feed.subscription() as late:
                assert read(await late.next(0) or b"")[0][0] == "fleet"  # at once
            seen = state.num_calls
            while waiting := read(await one.next(0) or b""):  # a busy machine may have taken more
                received[0].extend(waiting)
            assert 5 <= seen <= len(received[0]) + 1
            seen = state.num_calls
        await asyncio.sleep(0.1)
        assert state.num_calls <= seen + 1

    asyncio.run(play())


def test_a_fleet_is_told_as_the_page_wants_it() -> None:
    """The fleet event has engines as in /engines, with recent traffic, and routes with their engines."""

    async def play() -> Any:
        with Feed(State()).subscription() as listener:
            return read(await listener.next(5) or b"")

    [(kind, fleet)] = asyncio.run(play())
    assert kind == "fleet"
    cuda = fleet["engines"][0]
    assert (cuda["name"], cuda["rate"], cuda["p50"], cuda["endpoints"][0]["condition"]) == ("cuda", 0.0, None, "ready")
    assert {"rate", "error_rate", "p50", "p95", "requests", "errors"} <= cuda["endpoints"][0].keys()
    assert [(route["name"], route["engines"]) for route in fleet["routes"]] == [
        ("images", ["mac"]),
        ("texts", ["mac"]),
        ("split", ["cuda", "mac"]),
    ]
    assert (fleet["connections"], fleet["workers"], fleet["rules_number"]) == (7, 4, 3)


def test_new_rules_are_told() -> None:
    """New rules are published with their number and digest."""

    async def play() -> list[tuple[str, Any]]:
        state, received = State(), []
        with Feed(state, seconds=0.01).subscription() as listener:
            received += read(await listener.next(5) or b"")
            state.number = 4
            while not any(kind == "rules" for kind, _ in received):
                received += read(await listener.next(5) or b"")
        return received

    assert ("rules", {"number": 4, "digest": "d1"}) in asyncio.run(play())


def test_decisions_are_told_to_who_asks_for_them() -> None:
    """Decisions are sent only to subscribers that want them, and their source is switched off without one."""

    async def play() -> None:
        state = State()
        feed = Feed(state)
        with feed.subscription() as deaf:
            with feed.subscription(wants_decisions=True) as one, feed.subscription(wants_decisions=True):
                assert state.watched == [10.0]
                feed.publish_decisions([{"route": "a"}], 0)
                feed.publish("experiment", {"experiments": []})
                assert without_fleet(await one.next(5)) == ["decision", "experiment"]
            assert state.watched == [10.0, 0.0]
            assert without_fleet(await deaf.next(5)) == ["experiment"]

    asyncio.run(play())


def test_viewers_read_no_names_of_sessions() -> None:
    """Conversations go on by the names of sessions: whoever may not change anything sees their digests in decisions."""
    facts = {"header": {"x-session-id": " support-1", "x-tier": "gold"}, "parameter": {"user": "support-1", "n": 1}}
    decision = {"route": "a", "session": "support-1", "facts": facts}

    async def play() -> list[bytes]:
        feed = Feed(State())
        with (
            feed.subscription(wants_decisions=True, sees_sessions=True) as operator,
            feed.subscription(wants_decisions=True) as viewer,
        ):
            feed.publish_decisions([decision], 0)
            return [await each.next(5) or b"" for each in (operator, viewer)]

    for_operator, for_viewer = asyncio.run(play())
    assert ("decision", decision) in read(for_operator)
    assert b"support" not in for_viewer
    seen = dict(read(for_viewer))["decision"]
    assert seen["facts"]["header"]["x-tier"] == "gold" and seen["facts"]["parameter"]["n"] == 1
    assert seen["session"] == seen["facts"]["parameter"]["user"] == State.digests.of("support-1")


def test_who_reads_slowly_misses_the_oldest() -> None:
    """A slow subscriber's queue is bounded: it loses the oldest events and does not delay others."""

    async def play() -> list[int]:
        feed = Feed(State(), seconds=100)
        with feed.subscription() as slow:
            for number in range(1000):
                feed.publish("experiment", {"number": number})
            return [reply["number"] for kind, reply in read(await slow.next(0) or b"") if kind == "experiment"]

    numbers = asyncio.run(play())
    assert 200 < len(numbers) <= 256 and numbers[-1] == 999


def test_a_feed_that_ends_lets_its_listeners_go() -> None:
    """When the feed closes, waiting and new subscribers end."""

    async def play() -> None:
        feed = Feed(State(), seconds=100)
        with feed.subscription() as listener:
            await listener.next(5)
            waiting = asyncio.ensure_future(listener.next(100))
            await asyncio.sleep(0)
            feed.close()
            assert await waiting is None
        with feed.subscription() as late:
            assert await late.next(100) is None

    asyncio.run(play())


RULES = "{{version: 1, engines: {{it: {{endpoints: ['{url}']}}}}, routes: [{{name: all, engine: it}}]}}"


def test_a_real_gateway_tells_its_traffic(start_gateway: Callable[..., GatewayProcess], tmp_path: Path) -> None:
    """The feed shows the traffic of two workers, and ends for a subscriber whose key is removed."""
    keys = write_keys(tmp_path / "keys.yaml", vera=Role.viewer, anna=Role.admin)
    with CannedEngine("one") as engine:
        options = ["--admin-keys", str(tmp_path / "keys.yaml")]
        gateway = start_gateway(RULES.format(url=engine.url), workers=2, extra_args=options)
        assert plain_http.get(f"{gateway.admin_url}/events").status_code == 401
        with plain_http.stream(
            "GET", f"{gateway.admin_url}/events", headers=bearer(keys["vera"]), timeout=120
        ) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            data = (line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: "))
            for event in map(json.loads, data):
                [route] = event["routes"]
                if route["rate"] and event["engines"][0]["endpoints"][0]["requests"] >= 10 and event["workers"] == 2:
                    break
                for _ in range(10):
                    plain_http.post(f"{gateway.http_url}/v2/models/m/infer", json={})
            assert 0 < route["p50"] <= route["p95"]
            write_keys(tmp_path / "keys.yaml", anna=Role.admin)
            for _ in data:
                pass  # until the gateway ends the stream


def test_who_listens_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """The gateway's stop ends the streams of its subscribers and logs no exception."""
    rules = RULES.format(url="http://127.0.0.1:1")
    gateway = GatewayProcess.start(rules, tmp_path).wait_ready()
    received: list[bytes] = []

    def listen() -> None:
        with plain_http.stream("GET", f"{gateway.admin_url}/events") as stream:
            received.extend(stream.iter_raw())

    listeners = [threading.Thread(target=listen) for _ in range(3)]
    for listener in listeners:
        listener.start()
    eventually(lambda: len(received) >= 3)
    gateway.stop()
    for listener in listeners:
        listener.join(120)
        assert not listener.is_alive()
    assert "exceeded" not in gateway.log() and "Cancel" not in gateway.log()
