"""Experiments at work: arm assignment, counts, forced arms and feedback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.dataplane.experiments import FORCING, KEY, arm, experiment_rules, filled
from tests.dataplane.stage import Engine, ReceivedRequest, Reply, Stage, get, load, post, run, stage, until

Play = Callable[[Stage, Engine, Engine], Coroutine[Any, Any, None]]
Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter

INFER = "/v2/models/m/infer"


def scene(tmp_path: Path, play: Play, *, keys: str = "unit: 'header:x-user'", more: str = "", **settings: Any) -> None:
    """Play with both arms' engines behind one route."""

    async def whole() -> None:
        old, new = Engine(), Engine()
        await old.start()
        await new.start()
        async with stage(experiment_rules(old, new, keys, more), tmp_path, **settings) as it:
            await play(it, old, new)
            old.stop()
            new.stop()

    run(whole())


def user(name: object, *more: str) -> bytes:
    return post(INFER, b"{}", f"x-user: {name}", *more)


async def rate(it: Stage, **reply: Any) -> Reply:
    return await it.ask(post("/feedback", json.dumps(reply).encode()))


def answering(status: int, *fields: str) -> Any:
    """A script that answers with this status and these fields."""
    lines = "".join(f"{field}\r\n" for field in fields)

    async def answer(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        writer.write(f"HTTP/1.1 {status} Whatever\r\n{lines}content-length: 2\r\n\r\n{{}}".encode())

    return answer


# Counts


def test_every_inference_is_counted_at_its_units_bucket(tmp_path: Path) -> None:
    """A user's requests count in one bucket of one arm, many users' in many buckets; bytes and times are counted
    too."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        replies = [await it.ask(user("ann")) for _ in range(3)]
        name = replies[0].headers["x-pointsman-arm"]
        assert {reply.headers["x-pointsman-arm"] for reply in replies} == {name}
        counts = arm(it.plane, name)
        assert sum(counts.requests) == 3
        assert filled(counts.requests) == 1
        assert sum(counts.request_bytes) == 6.0
        assert sum(counts.latency.count) == sum(counts.latency.bins.values()) == 3
        assert sum(counts.latency.seconds) > 0
        assert counts.kinds == {}
        for number in range(60):
            await it.ask(user(number))
        both = [arm(it.plane, each) for each in ("old", "new")]
        assert sum(sum(each.requests) for each in both) == 63
        assert all(filled(each.requests) > 10 for each in both)
        assert [len(old.received), len(new.received)] == [sum(each.requests) for each in both]

    scene(tmp_path, play)


@pytest.mark.parametrize("keys", ["unit: request", "unit: session", "unit: 'parameter:user'"])
def test_units_of_every_kind_are_counted(tmp_path: Path, keys: str) -> None:
    """Requests without a unit are spread over the buckets; those of one session or parameter stay in one bucket."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        body = json.dumps({"parameters": {"user": "ann"}}).encode()
        for _ in range(20):
            assert (await it.ask(post(INFER, body, "x-session-id: s1"))).status == 200
        both = [arm(it.plane, each) for each in ("old", "new")]
        assert sum(sum(each.requests) for each in both) == 20
        buckets = sum(filled(each.requests) for each in both)
        assert buckets == (1 if keys != "unit: request" else buckets)
        assert buckets > 5 or keys != "unit: request"
        assert sum(sum(each.units) for each in both) == (1 if keys == "unit: session" else 0)

    scene(tmp_path, play, keys=keys)


def test_what_only_asks_is_not_counted(tmp_path: Path) -> None:
    """Metadata requests are not counted, even if the reply reports energy."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        old.script = new.script = answering(200, 'endpoint-load-metrics: JSON {"request_cost": {"energy_joules": 2.5}}')
        assert (await it.ask(get("/v2/models/m", "x-user: ann"))).status == 200
        assert it.plane.metrics.arms.counted()
        assert sum(sum(arm(it.plane, each).requests) for each in ("old", "new")) == 0
        assert sum(arm(it.plane, each).joules_requests for each in ("old", "new")) == 0

    scene(tmp_path, play)


@pytest.mark.parametrize(
    "status, errors, kinds", [(500, 1, {"500": 1}), (503, 1, {"503": 1}), (400, 0, {}), (404, 0, {})]
)
def test_an_engines_failures_are_errors_and_refusals_are_not(
    tmp_path: Path, status: int, errors: int, kinds: dict[str, int]
) -> None:
    """Only a 5xx status is an error; failed requests add no latency."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        old.script = new.script = answering(status)
        name = (await it.ask(user("ann"))).headers["x-pointsman-arm"]
        counts = arm(it.plane, name)
        assert (sum(counts.requests), sum(counts.errors), counts.kinds) == (1, errors, kinds)
        assert sum(counts.latency.count) == 0

    scene(tmp_path, play)


def test_a_dead_engine_and_a_broken_reply_are_errors_of_its_arm(tmp_path: Path) -> None:
    """Each failure counts under its reason."""

    async def cut(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345")
        await writer.drain()
        writer.transport.abort()

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        old.script = new.script = cut
        client = await it.client()
        await client.send(user("ann"))
        _, headers = await client.head()
        counts = arm(it.plane, headers["x-pointsman-arm"])
        await until(lambda: sum(counts.errors) == 1)
        assert counts.kinds == {"upstream_reset": 1}
        old.stop()
        new.stop()
        await it.ask(user("ann"))
        counts = arm(it.plane, counts.key.arm)
        assert sum(counts.errors) == sum(counts.requests) == 2
        assert set(counts.kinds) == {"upstream_reset", "upstream_connect"}

    scene(tmp_path, play)


def test_a_client_that_leaves_says_nothing_of_the_arm(tmp_path: Path) -> None:
    """A client that leaves counts under the kind `client_gone`, and not as a request."""

    async def wait(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        await reader.read(1)

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        old.script = new.script = wait
        client = await it.client()
        await client.send(user("ann"))
        await until(lambda: old.received or new.received)
        client.close()
        counts = arm(it.plane, "old" if old.received else "new")
        await until(lambda: counts.kinds == {"client_gone": 1})
        assert sum(counts.requests) == sum(counts.errors) == 0

    scene(tmp_path, play)


def test_what_limits_refuse_says_nothing_of_the_arm(tmp_path: Path) -> None:
    """A request that a limit refuses counts under the kind `rate_limited`, and not as a request or an error."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        replies = [await it.ask(user("ann")) for _ in range(2)]
        assert [reply.status for reply in replies] == [200, 429]
        counts = arm(it.plane, replies[0].headers["x-pointsman-arm"])
        assert (sum(counts.requests), sum(counts.errors), counts.kinds) == (1, 0, {"rate_limited": 1})

    scene(tmp_path, play, more="limits: [{name: l, requests_per_second: 0.01, burst: 1}]\n")


@pytest.mark.parametrize(
    "reply, joules",
    [
        ('JSON {"request_cost": {"energy_joules": 2.5}}', 2.5),
        ("TEXT cpu_utilization=0.3, named_metrics.energy_joules=0.5", 0.5),
        ('JSON {"named_metrics": {"kv_cache_usage_perc": 0.5}}', None),
    ],
)
def test_energy_is_counted_where_an_engine_tells_it(tmp_path: Path, reply: str, joules: float | None) -> None:
    """Energy comes from the ORCA field of the reply."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        old.script = new.script = answering(200, f"endpoint-load-metrics: {reply}")
        name = (await it.ask(user("ann"))).headers["x-pointsman-arm"]
        counts = arm(it.plane, name)
        assert (counts.joules, counts.joules_requests) == ((0.0, 0) if joules is None else (joules, 1))

    scene(tmp_path, play)


def test_a_sessions_requests_are_counted_once_each(tmp_path: Path) -> None:
    """Each of a session's requests counts once, though only the session's arm is looked up, and no endpoint."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        for _ in range(3):
            await it.ask(post(INFER, b"{}", "x-session-id: s"))
        assert it.plane.affinity.book.peek("s", 0.0).requests == 3
        assert it.plane.affinity.book.counts.created == 1

    scene(tmp_path, play, keys="unit: session")


# Experiment membership


def test_a_unit_that_the_experiment_has_not_got_goes_to_the_control(tmp_path: Path) -> None:
    """A unit outside the experiment's share goes to the control's engine: its reply names no arm, and it is not
    counted."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        for number in range(10):
            reply = await it.ask(user(number))
            assert reply.headers["x-pointsman-engine"] == "one"
            assert "x-pointsman-arm" not in reply.headers
        assert not new.received
        assert sum(sum(arm(it.plane, each).requests) for each in ("old", "new")) == 0

    scene(tmp_path, play, keys="unit: 'header:x-user'\n    share: 0%")


# Current weights


@pytest.mark.parametrize("keys", ["unit: 'header:x-user'", "unit: session", "unit: request"])
def test_weights_hold_from_the_next_request_on(tmp_path: Path, keys: str) -> None:
    """New weights apply to cached heads, to sessions assigned to another arm, and to rules loaded later."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        request = user("ann", "x-session-id: s1")
        client = await it.client()
        for weights, engine in (({"old": 0.0, "new": 1.0}, "two"), ({"old": 1.0, "new": 0.0}, "one")):
            await client.ask(request)
            it.plane.set_weights({"x": weights})
            assert (await client.ask(request)).headers["x-pointsman-engine"] == engine
        rules = it.plane.snapshot
        it.plane.use_rules(load(experiment_rules(old, new, keys), tmp_path), 2)
        assert it.plane.snapshot is not rules
        assert (await client.ask(request)).headers["x-pointsman-engine"] == "one"
        it.plane.set_weights({})
        engines = {(await client.ask(user(number))).headers["x-pointsman-engine"] for number in range(20)}
        assert engines == {"one", "two"}

    scene(tmp_path, play, keys=keys)


def test_a_run_that_begins_anew_finds_nobody_at_its_arm(tmp_path: Path) -> None:
    """A session keeps its arm within a run. In a new run it is reassigned, so a ramp that restarts at 1 % does not keep
    the sessions of an earlier 60 %."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        async def at_new() -> set[int]:
            replies = [await it.ask(post(INFER, b"{}", f"x-session-id: s{number}")) for number in range(40)]
            return {number for number, reply in enumerate(replies) if reply.headers["x-pointsman-arm"] == "new"}

        it.plane.set_weights({"x": {"old": 0.4, "new": 0.6}}, {"x": 1})
        first = await at_new()
        assert 12 < len(first) < 36
        it.plane.set_weights({"x": {"old": 0.9, "new": 0.1}}, {"x": 1})
        assert await at_new() == first  # within a run, each session keeps its arm
        it.plane.set_weights({"x": {"old": 0.99, "new": 0.01}}, {"x": 2})
        assert len(await at_new()) < 4
        it.plane.set_weights({"x": {"old": 0.0, "new": 1.0}}, {"x": 2})
        assert len(await at_new()) == 40

    scene(tmp_path, play, keys="unit: session")


# Forced arms


def test_a_key_chooses_an_arm(tmp_path: Path) -> None:
    """A request with the force key gets the arm that it names, whatever its unit. Neither field reaches the engine, the
    session keeps its arm, and the request counts only as forced."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        own = (await it.ask(post(INFER, b"{}", "x-session-id: s"))).headers["x-pointsman-arm"]
        for name in ("old", "new"):
            fields = ("x-session-id: s", f"X-Pointsman-Force: x={name}", f"x-pointsman-force-key: {KEY}")
            reply = await it.ask(post(INFER, b"{}", *fields))
            assert (reply.status, reply.headers["x-pointsman-arm"]) == (200, name)
            received = (old if name == "old" else new).received[-1]
            assert b"force" not in received.head.lower()
            assert KEY.encode() not in received.head
            assert arm(it.plane, name).forced == 1
            assert sum(arm(it.plane, name).requests) == (1 if name == own else 0)
        assert (await it.ask(post(INFER, b"{}", "x-session-id: s"))).headers["x-pointsman-arm"] == own

    scene(tmp_path, play, keys="unit: session", more=FORCING)


@pytest.mark.parametrize(
    "text, key, status, reason, report",
    [
        ("x=new", "swordfisch", 403, "forbidden", "is not one that may choose arms"),
        ("x=new", "", 403, "forbidden", "(x-pointsman-force-key) is missing"),
        ("y=new", KEY, 400, "bad_request", "unknown experiment 'y'"),
        ("x=newer", KEY, 400, "bad_request", "has no arm 'newer': did you mean 'new'?"),
    ],
)
def test_who_may_not_choose_is_told(tmp_path: Path, text: str, key: str, status: int, reason: str, report: str) -> None:
    """The refusal is in the client's protocol; no engine gets the request, and the reply does not contain the key."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        fields = (f"x-pointsman-force: {text}", *((f"x-pointsman-force-key: {key}",) if key else ()))
        reply = await it.ask(post(INFER, b"{}", *fields))
        assert (reply.status, reply.reason) == (status, reason)
        assert report in json.loads(reply.body)["error"]
        chat = await it.ask(post("/v1/chat/completions", b'{"model": "m", "messages": []}', *fields))
        assert chat.status == status
        assert report in json.loads(chat.body)["error"]["message"]
        assert not key or key not in reply.body.decode() + chat.body.decode()
        assert not old.received and not new.received

    scene(tmp_path, play, more=FORCING)


@pytest.mark.parametrize("keys", ["unit: 'header:x-user'", "unit: session", "unit: request", "unit: 'parameter:user'"])
def test_a_body_chooses_an_arm_where_rules_look_for_it_there(tmp_path: Path, keys: str) -> None:
    """Where the rules name parameters for it, the body forces the arm of its own request alone; without a valid key the
    request gets 403."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        for name in ("old", "new", "old"):
            report = {"parameters": {"arm": f"x={name}", "key": KEY}}
            reply = await it.ask(post(INFER, json.dumps(report).encode()))
            assert (reply.status, reply.headers["x-pointsman-arm"]) == (200, name)
        assert [arm(it.plane, name).forced for name in ("old", "new")] == [2, 1]
        seen = {(await it.ask(post(INFER, b"{}", f"x-user: {n}"))).headers["x-pointsman-arm"] for n in range(20)}
        assert seen <= {"old", "new"} and arm(it.plane, "new").forced == 1
        for wrong, status, reason in [
            ("", 403, "is missing"),
            ("swordfisch", 403, "is not one"),
            (7, 403, "is not one"),
        ]:
            report = {"arm": "x=new"} | ({"key": wrong} if wrong else {})
            reply = await it.ask(post(INFER, json.dumps({"parameters": report}).encode()))
            assert reply.status == status and f"(key) {reason}" in json.loads(reply.body)["error"]
        reply = await it.ask(post(INFER, json.dumps({"parameters": {"arm": "new", "key": KEY}}).encode()))
        assert (reply.status, json.loads(reply.body)["error"]) == (400, "arm 'new' is not EXPERIMENT=ARM")

    more = FORCING.replace("}", ", parameter: arm, key_parameter: key}")
    scene(tmp_path, play, keys=keys, more=more)


def test_without_keys_nobody_may_choose(tmp_path: Path) -> None:
    """Without force keys in the rules, a request that forces an arm is refused."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        reply = await it.ask(post(INFER, b"{}", "x-pointsman-force: x=new", f"x-pointsman-force-key: {KEY}"))
        assert (reply.status, reply.reason) == (403, "forbidden")

    scene(tmp_path, play)


# Feedback


def test_feedback_of_a_request(tmp_path: Path) -> None:
    """Feedback by request id: a value and a label, under a name, count in the bucket of the request's unit."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        reply = await it.ask(user("ann", "x-request-id: r-1"))
        counts = arm(it.plane, reply.headers["x-pointsman-arm"])
        assert reply.headers["x-request-id"] == "r-1"
        report = await rate(it, request_id="r-1", value=4, label="useful")
        assert (report.status, json.loads(report.body)) == (200, {"counted": True})
        assert (await rate(it, request_id="r-1", name="thumb", value=True)).status == 200
        rating, thumb = counts.feedback["rating"], counts.feedback["thumb"]
        assert (sum(rating.count), sum(rating.total), rating.squares) == (1, 4.0, 16.0)
        assert rating.labels == {"useful": 1}
        assert (sum(thumb.count), sum(thumb.total)) == (1, 1.0)
        assert [bool(count) for count in rating.count] == [bool(count) for count in counts.requests]
        assert (await rate(it, request_id="r-1", experiment="y", value=1)).status == 404

    scene(tmp_path, play)


def test_a_rating_that_comes_again_is_counted_once(tmp_path: Path) -> None:
    """A repeated rating of a request counts once, as when a client retries. Another name is a separate rating, and so
    is a label beside a value."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        counts = arm(it.plane, (await it.ask(user("ann", "x-request-id: r-1"))).headers["x-pointsman-arm"])
        for value in (4, 4, 1):
            assert (await rate(it, request_id="r-1", value=value)).status == 200
        for label in ("useful", "useless"):
            assert (await rate(it, request_id="r-1", label=label)).status == 200
        assert (await rate(it, request_id="r-1", name="thumb", value=True)).status == 200
        assert sum(counts.feedback["rating"].total) == 4.0
        assert counts.feedback["rating"].labels == {"useful": 1}
        assert sum(counts.feedback["thumb"].count) == 1

    scene(tmp_path, play)


def test_feedback_of_a_session(tmp_path: Path) -> None:
    """Feedback for a session counts for the session's arm, even before its first request."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        assert (await rate(it, session="s", value=1)).status == 200
        name = (await it.ask(post(INFER, b"{}", "x-session-id: s"))).headers["x-pointsman-arm"]
        assert (await rate(it, session="s", experiment="x", value=2)).status == 200
        assert sum(arm(it.plane, name).feedback["rating"].total) == 3.0
        assert (await rate(it, session="s", experiment="y", value=2)).status == 400

    scene(tmp_path, play, keys="unit: session")


def test_feedback_of_what_nobody_knows(tmp_path: Path) -> None:
    """Feedback for an unknown request gets 404, and so does feedback for one that newer requests have evicted."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        reply = await rate(it, request_id="r-0", value=1)
        assert reply.status == 404
        assert "no experiment knows request 'r-0'" in json.loads(reply.body)["error"]
        assert (await rate(it, session="s", value=1)).status == 404  # the experiment's units are users
        for number in range(20):
            await it.ask(user("ann", f"x-request-id: r-{number}"))
        assert (await rate(it, request_id="r-0", value=1)).status == 404
        assert (await rate(it, request_id="r-19", value=1)).status == 200
        assert (await rate(it, request_id="r-15", value=1)).status == 200

    scene(tmp_path, play, feedback_requests=10)


WRONG = [
    ({"value": 1}, "a request_id (of the reply's x-request-id) or a session: one of the two"),
    ({"request_id": "r", "session": "s", "value": 1}, "one of the two"),
    ({"request_id": "r"}, "neither a value nor a label"),
    ({"request_id": "r", "value": "good"}, "value is a number"),
    ({"request_id": "r", "value": 1e300}, "value is a number"),
    ({"request_id": "r", "valeu": 1}, "feedback has no 'valeu'"),
    ({"request_id": "r", "value": 1, "name": "a b"}, "name 'a b' is no name"),
    ({"request_id": "r", "label": "x" * 101}, "a label has 1 to 100 characters"),
    ({"request_id": 5, "value": 1}, "request_id is no text"),
]


@pytest.mark.parametrize("report, message", WRONG)
def test_wrong_feedback_is_told_what_is_wrong(tmp_path: Path, report: dict[str, Any], message: str) -> None:
    """The reply has status 400 and a message that names the fault."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        reply = await rate(it, **report)
        assert reply.status == 400
        assert message in json.loads(reply.body)["error"]
        assert (await it.ask(post("/feedback", b"not JSON"))).status == 400
        assert (await it.ask(post("/feedback", b"[]"))).status == 400
        assert (await it.ask(get("/feedback"))).status == 405

    scene(tmp_path, play)


def test_an_arm_takes_so_many_names_and_labels(tmp_path: Path) -> None:
    """Each arm limits its feedback names and labels, since they come from clients and would fill the memory."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        await it.ask(user("ann", "x-request-id: r"))
        statuses = [(await rate(it, request_id="r", name=f"n{number}", value=1)).status for number in range(21)]
        assert statuses == [200] * 20 + [400]
        statuses = []
        for number in range(51):
            await it.ask(user("ann", f"x-request-id: r-{number}"))
            statuses.append((await rate(it, request_id=f"r-{number}", name="n0", label=f"l{number}")).status)
        assert statuses == [200] * 50 + [400]

    scene(tmp_path, play)
