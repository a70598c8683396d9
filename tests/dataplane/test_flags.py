"""Experiments as OpenFeature's flags: the arm that an application is told is the one that its requests get."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.observability.arm_stats import ArmKey
from tests.dataplane.authenticated import Keys, RestEngine, Served, bearer
from tests.dataplane.experiments import FORCING, KEY, arm, experiment_rules
from tests.dataplane.stage import Engine, Reply, Stage, post, run, stage

FLAGS = "/ofrep/v1/evaluate/flags"
INFER = "/v2/models/m/infer"
Play = Callable[[Stage], Coroutine[Any, Any, None]]


def scene(tmp_path: Path, play: Play, *, keys: str = "unit: session", more: str = "", **settings: Any) -> None:
    async def whole() -> None:
        old, new = Engine(), Engine()
        await old.start()
        await new.start()
        async with stage(experiment_rules(old, new, keys, more), tmp_path, **settings) as it:
            await play(it)
            old.stop()
            new.stop()

    run(whole())


async def evaluate(it: Stage, key: str, *fields: str, **context: Any) -> Reply:
    path = f"{FLAGS}/{key}" if key else FLAGS
    return await it.ask(post(path, json.dumps({"context": context}).encode(), *fields))


async def told(it: Stage, targeting_key: str, **context: Any) -> dict[str, Any]:
    reply = await evaluate(it, "x", targetingKey=targeting_key, **context)
    assert reply.status == 200, reply.body
    found: dict[str, Any] = json.loads(reply.body)
    return found


async def arm_of(it: Stage, *fields: str, body: bytes = b"{}") -> str | None:
    reply = await it.ask(post(INFER, body, *fields))
    assert reply.status == 200, reply.body
    return reply.headers.get("x-pointsman-arm")


@pytest.mark.parametrize(
    "unit, fields, body",
    [
        ("session", "x-session-id: {0}", "{{}}"),
        ("header:x-user", "x-user: {0}", "{{}}"),
        ("parameter:user", "x-other: 1", '{{"parameters": {{"user": "{0}"}}}}'),
    ],
)
def test_an_application_is_told_the_arm_that_its_requests_get(
    tmp_path: Path, unit: str, fields: str, body: str
) -> None:
    """Whatever the unit: the targeting key is its text. The value is the arm's name, by a split."""

    async def play(it: Stage) -> None:
        for number in range(40):
            found = await told(it, f"u{number}")
            assert found["reason"] == "SPLIT" and found["variant"] == found["value"]
            assert found["metadata"] == {
                "experiment": "x",
                "unit": unit,
                "share": 0.5,
                "inExperiment": True,
                "engine": {"old": "one", "new": "two"}[found["value"]],
            }
            assert found["value"] == await arm_of(
                it, fields.format(f"u{number}"), body=body.format(f"u{number}").encode()
            )

    scene(tmp_path, play, keys=f"unit: '{unit}'")


def test_a_session_keeps_what_an_application_was_told(tmp_path: Path) -> None:
    """A ramp between the evaluation and the first request moves nobody; who was not asked about has the new shares."""

    async def play(it: Stage) -> None:
        before = {f"s{number}": (await told(it, f"s{number}"))["value"] for number in range(100)}
        assert set(before.values()) == {"old", "new"}
        it.plane.set_weights({"x": {"old": 0.05, "new": 0.95}}, {"x": 1})
        moved = 0
        for session, value in before.items():
            if value == "new":  # of no run: as sessions' arms, it is void when one begins
                continue
            again = await told(it, session)
            moved += again["reason"] == "TARGETING_MATCH"
            assert again["value"] == value == await arm_of(it, f"x-session-id: {session}")
        assert moved > 20
        news = [await arm_of(it, f"x-session-id: t{number}") for number in range(40)]
        assert news.count("new") > 30

    scene(tmp_path, play)


def test_an_evaluation_is_an_exposure_only_where_it_says_so(tmp_path: Path) -> None:
    """A session counts once: at its first request, or at the evaluation that asks for it. Not at all where the shares
    changed in between: they are not those that it was drawn with."""

    def units(it: Stage) -> int:
        counted = it.plane.metrics.arms.counted()
        return sum(sum(counts.units) for key, counts in counted.items() if key.experiment == "x")

    async def play(it: Stage) -> None:
        for _ in range(3):
            await told(it, "a")
        assert units(it) == 0
        for _ in range(2):
            await arm_of(it, "x-session-id: a")
        assert units(it) == 1
        for _ in range(2):
            await told(it, "b", **{"pointsman.exposure": True})
        assert units(it) == 2
        await arm_of(it, "x-session-id: b")
        assert units(it) == 2
        await told(it, "c")
        await told(it, "c", **{"pointsman.exposure": True})
        await arm_of(it, "x-session-id: c")
        assert units(it) == 3
        await told(it, "d")
        it.plane.set_weights({"x": {"old": 0.9, "new": 0.1}})
        await arm_of(it, "x-session-id: d")
        assert units(it) == 3
        await arm_of(it, "x-session-id: e")
        assert units(it) == 4
        assert sum(arm(it.plane, "old").requests) + sum(arm(it.plane, "new").requests) == 6

    scene(tmp_path, play)


def test_units_outside_the_experiment_get_the_control(tmp_path: Path) -> None:
    """Of a holdout too: their requests name no arm, and the flag says that they are outside."""

    async def play(it: Stage) -> None:
        outside = 0
        for number in range(60):
            found = await told(it, f"u{number}")
            got = await arm_of(it, f"x-session-id: u{number}")
            outside += got is None
            assert found["metadata"]["inExperiment"] == (got is not None)
            assert found["value"] == (got or "old")
        assert 10 < outside < 50

    layer = "layers:\n  l: {holdout: 50%}\n"
    scene(tmp_path, play, keys="unit: session\n    layer: l\n    share: 50%", more=layer)


def test_a_forced_arm_is_what_the_flag_says(tmp_path: Path) -> None:
    """With a key that may choose arms; nothing is kept of it."""

    async def play(it: Stage) -> None:
        for name in ("old", "new"):
            fields = f"x-pointsman-force: x={name}", f"x-pointsman-force-key: {KEY}"
            found = json.loads((await evaluate(it, "x", *fields, targetingKey="s")).body)
            assert (found["value"], found["reason"], found["metadata"]["forced"]) == (name, "TARGETING_MATCH", True)
            assert name == await arm_of(it, "x-session-id: s", *fields)
        assert (await evaluate(it, "x", "x-pointsman-force: x=new", targetingKey="s")).status == 403

    scene(tmp_path, play, more=FORCING)


def test_one_arm_with_all_units_is_static(tmp_path: Path) -> None:
    """After a promotion there is nothing to split."""

    async def play(it: Stage) -> None:
        it.plane.set_weights({"x": {"old": 0.0, "new": 1.0}}, {"x": 2})
        found = await told(it, "s")
        assert (found["value"], found["reason"], found["metadata"]["share"]) == ("new", "STATIC", 1.0)

    scene(tmp_path, play)


def test_attributes_name_units_before_the_targeting_key(tmp_path: Path) -> None:
    """So that one context serves experiments of several units."""

    async def play(it: Stage) -> None:
        for number in range(20):
            found = await told(it, "somebody", **{"X-User": f"u{number}"})
            assert found["value"] == await arm_of(it, f"x-user: u{number}")

    scene(tmp_path, play, keys="unit: 'header:x-user'")


WRONG: list[tuple[str, bytes, int, str, str]] = [
    ("/x", b"no", 400, "PARSE_ERROR", "the body is no JSON"),
    ("/x", b"[]", 400, "PARSE_ERROR", "the body is a JSON object"),
    ("/x", b"", 400, "PARSE_ERROR", "the body is no JSON"),
    ("/x", b'{"context": 1}', 400, "INVALID_CONTEXT", "context is a JSON object"),
    ("/x", b"{}", 400, "TARGETING_KEY_MISSING", "neither targetingKey nor x-session-id"),
    ("/x", b'{"context": {"targetingKey": " "}}', 400, "TARGETING_KEY_MISSING", "neither targetingKey"),
    ("/x", b'{"context": {"targetingKey": 3}}', 400, "INVALID_CONTEXT", "targetingKey is no text"),
    ("/x", b'{"context": {"x-session-id": []}}', 400, "INVALID_CONTEXT", "x-session-id is no text"),
    (
        "/x",
        b'{"context": {"targetingKey": "a", "pointsman.exposure": 1}}',
        400,
        "INVALID_CONTEXT",
        "pointsman.exposure",
    ),
    ("/y", b'{"context": {"targetingKey": "a"}}', 404, "FLAG_NOT_FOUND", "no experiment 'y'"),
    ("", b'{"context": {}}', 400, "TARGETING_KEY_MISSING", "neither targetingKey nor x-session-id"),
    ("", b"[", 400, "PARSE_ERROR", "the body is no JSON"),
]


@pytest.mark.parametrize("path, body, status, code, details", WRONG)
def test_errors_are_those_of_the_protocol(
    tmp_path: Path, path: str, body: bytes, status: int, code: str, details: str
) -> None:
    """With the flag's key where one is asked for, and what would be right."""

    async def play(it: Stage) -> None:
        reply = await it.ask(post(FLAGS + path, body))
        found = json.loads(reply.body)
        assert (reply.status, found["errorCode"], found.get("key")) == (status, code, path[1:] or None)
        assert details in found["errorDetails"]

    scene(tmp_path, play)


def test_a_body_is_bounded(tmp_path: Path) -> None:
    """A context has at most 64 KiB; other methods and longer paths are refused."""

    async def play(it: Stage) -> None:
        assert (await evaluate(it, "x", targetingKey="a" * 70_000)).status == 413
        assert (await it.ask(post(f"{FLAGS}/x").replace(b"POST", b"GET"))).status == 405
        assert (await it.ask(post(f"{FLAGS}/x/y"))).status == 404

    scene(tmp_path, play)


def test_an_experiment_by_requests_has_no_value(tmp_path: Path) -> None:
    """Nobody can know the arm of a request beforehand: the application's default applies."""

    async def play(it: Stage) -> None:
        reply = await evaluate(it, "x", targetingKey="a")
        assert (reply.status, json.loads(reply.body)["errorCode"]) == (400, "GENERAL")
        (flag,) = json.loads((await evaluate(it, "", targetingKey="a")).body)["flags"]
        assert flag["errorCode"] == "GENERAL" and "by chance" in flag["errorDetails"]

    scene(tmp_path, play, keys="unit: request")


def test_all_flags_have_a_tag(tmp_path: Path) -> None:
    """A client that has them gets 304, without a body, until something changes."""

    async def play(it: Stage) -> None:
        first = await evaluate(it, "", targetingKey="a")
        tag = first.headers["etag"]
        assert [flag["key"] for flag in json.loads(first.body)["flags"]] == ["x"]
        for known in (tag, tag.strip('"'), f'"other", W/{tag}', "*"):
            client = await it.client()
            request = post(FLAGS, b'{"context": {"targetingKey": "a"}}', f"if-none-match: {known}")
            again = await client.ask(request, has_body=False)
            assert (again.status, again.headers["etag"]) == (304, tag)
            assert (await client.ask(request.replace(b"if-none-match", b"x-nothing-match"))).body == first.body
        it.plane.set_weights({"x": {"old": 0.2, "new": 0.8}})
        later = await evaluate(it, "", f"if-none-match: {tag}", targetingKey="a")
        assert later.status == 200 and later.headers["etag"] != tag

    scene(tmp_path, play)


def test_engines_are_not_named_where_replies_name_none(tmp_path: Path) -> None:
    """The arm is: the application needs it."""

    async def play(it: Stage) -> None:
        assert "engine" not in (await told(it, "a"))["metadata"]

    scene(tmp_path, play, name_decision=False)


def test_callers_see_the_flags_of_their_routes(tmp_path: Path) -> None:
    """With `auth:` a flag needs a key, and the tenant is its one: sessions of tenants are separate, and an experiment
    whose routes refuse a caller is no flag for it."""
    keys = Keys(tmp_path)
    acme, zen = bearer(keys.add("acme")), bearer(keys.add("zen"))
    engine = RestEngine()
    served = Served(
        f"""
version: 1
auth: {{keys: keys.yaml}}
engines:
  one: {{endpoints: ["http://{engine.address}"]}}
routes:
  - {{name: all, match: {{model: m}}, experiment: x}}
  - {{name: some, match: {{model: s}}, experiment: y, allow: [{{tenant: zen}}]}}
experiments:
  x: {{arms: [{{name: a, engine: one, weight: 1}}, {{name: b, engine: one, weight: 1}}]}}
  y: {{arms: [{{name: a, engine: one, weight: 1}}, {{name: b, engine: one, weight: 1}}]}}
""",
        tmp_path,
    )
    try:

        def asked(path: str, headers: dict[str, str]) -> Any:
            context = {"context": {"targetingKey": "s"}}
            return httpx.post(f"{served.url}{FLAGS}{path}", json=context, headers=headers, timeout=120)

        assert asked("/x", {}).status_code == asked("", {}).status_code == 401
        assert asked("/y", acme).status_code == 403
        assert [flag["key"] for flag in asked("", acme).json()["flags"]] == ["x"]
        assert [flag["key"] for flag in asked("", zen).json()["flags"]] == ["x", "y"]
        assert asked("/y", zen).json()["value"] in ("a", "b")
        book = served.plane.affinity.book
        assert book.look("acme\1s") is not None and book.look("zen\1s") is not None and book.look("s") is None
    finally:
        served.stop()
        engine.stop()


def test_the_counts_of_arms_need_no_evaluation(tmp_path: Path) -> None:
    """An evaluation alone makes no request of an arm."""

    async def play(it: Stage) -> None:
        await asyncio.gather(*(told(it, f"s{number}") for number in range(10)))
        counted = it.plane.metrics.arms.counted()
        assert not any(sum(counted[ArmKey("x", name)].requests) for name in ("old", "new"))

    scene(tmp_path, play)
