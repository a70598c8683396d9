"""What clients are told of the arms of their sessions: once, whatever answers, and nothing where the rules say so."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from time import time
from typing import Any

import pytest

from gateway.sessions.client_pin import PinSeal, pin_key
from tests.dataplane.experiments import FORCING, KEY, experiment_rules
from tests.dataplane.generating import CHAT, WHOLE, asked, http, writes
from tests.dataplane.stage import Engine, Reply, Script, Stage, answer_ok, load, post, run, stage

SEAL = PinSeal(pin_key(b"the secret of this test's installation"))
INFER = "/v2/models/m/infer"

Play = Callable[[Stage], Coroutine[Any, Any, None]]


def scene(
    tmp_path: Path,
    play: Play,
    *,
    keys: str = "unit: session",
    script: Script = answer_ok,
    more: str = "",
    **options: Any,
) -> None:
    async def whole() -> None:
        engines = [Engine(script), Engine(script)]
        for engine in engines:
            await engine.start()
        of_engines = options.pop("options", "")
        async with stage(experiment_rules(*engines, keys, more, of_engines), tmp_path, **options) as it:
            it.plane.affinity.seal = SEAL
            await play(it)
            for engine in engines:
                engine.stop()

    run(whole())


async def ask(it: Stage, session: str, *fields: str) -> Reply:
    reply = await it.ask(post(INFER, b"{}", f"X-Session-Id: {session}", *fields))
    assert reply.status == 200
    return reply


def is_told(reply: Reply) -> bool:
    names = {"set-cookie", "x-pointsman-pin"} & reply.headers.keys()
    assert len(names) in (0, 2)
    return bool(names)


def test_a_client_is_told_once(tmp_path: Path) -> None:
    """The first reply of a session carries its pin, later ones do not; those who show one are not told again, and keep
    the arm that it proves, though the rules would give another."""

    async def play(it: Stage) -> None:
        assert [is_told(await ask(it, "s1")) for _ in range(3)] == [True, False, False]
        assigned = (await ask(it, "s2")).headers["x-pointsman-arm"]
        other = "old" if assigned == "new" else "new"
        for number, header in ((3, "X-Pointsman-Pin: {0}.{1}"), (4, "Cookie: a=b; pointsman-pin-{0}={1}")):
            session = f"s{number}"
            for arm in ("old", "new"):
                pin = SEAL.write("x", f"{session}-{arm}", arm, time(), 3600)
                reply = await ask(it, f"{session}-{arm}", header.format(pin.label, pin.value))
                assert reply.headers["x-pointsman-arm"] == arm
                assert not is_told(reply)
        pin = SEAL.write("x", "another", other, time(), 3600)
        reply = await ask(it, "s5", f"X-Pointsman-Pin: {pin.label}.{pin.value}")
        assert is_told(reply)
        assert it.plane.metrics.arms.counted()

    scene(tmp_path, play)


@pytest.mark.parametrize("keys", ["unit: session\n    pin: redis", "unit: 'header:x-user'", "unit: request"])
def test_nobody_is_told_where_the_rules_say_so(tmp_path: Path, keys: str) -> None:
    """`pin: redis` turns it off, and other units have none."""

    async def play(it: Stage) -> None:
        assert not is_told(await ask(it, "s1", "X-User: u1"))

    scene(tmp_path, play, keys=keys)


def test_forced_arms_are_not_told(tmp_path: Path) -> None:
    """A request that forces an arm does not change what its client keeps."""

    async def play(it: Stage) -> None:
        reply = await ask(it, "s1", "X-Pointsman-Force: x=new", f"X-Pointsman-Force-Key: {KEY}")
        assert reply.headers["x-pointsman-arm"] == "new"
        assert not is_told(reply)

    scene(tmp_path, play, more=FORCING)


@pytest.mark.parametrize("hedged", ["", ", retry: {idempotent: infer}, hedging: {delay: 30s}"])
def test_a_pin_is_of_one_reply(tmp_path: Path, hedged: str) -> None:
    """What is cached for replies of a target has no pin of a single client, with hedging or without; each session gets
    its own."""

    async def play(it: Stage) -> None:
        pins = [(await ask(it, f"s{number}")).headers["x-pointsman-pin"] for number in range(12)]
        assert len(set(pins)) == 12
        assert not any([is_told(await ask(it, f"s{number}")) for number in range(12)])

    scene(tmp_path, play, options=hedged)


def test_names_stay_hidden(tmp_path: Path) -> None:
    """With `--no-name-decision` a client is told its pin, and no name, in replies and errors alike."""

    async def play(it: Stage) -> None:
        reply = await ask(it, "s1")
        assert is_told(reply)
        assert not {"x-pointsman-route", "x-pointsman-arm", "x-pointsman-engine"} & reply.headers.keys()
        it.plane.use_rules(load(experiment_rules(GONE, GONE, "unit: session"), tmp_path), 2)
        failed = await it.ask(post(INFER, b"{}", "X-Session-Id: s2"))
        assert failed.status >= 500
        assert is_told(failed)
        assert b"one" not in failed.body and b"127.0.0.1" not in failed.body and b"'all'" not in failed.body

    scene(tmp_path, play, name_decision=False)


class GONE:
    """An engine that is not there."""

    url = "http://127.0.0.1:1"


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
def test_translated_replies_carry_it(tmp_path: Path, path: str) -> None:
    """A chat that passes to its engine, and a message that is translated, tell their clients alike."""

    async def play(it: Stage) -> None:
        for expected in (True, False):
            reply = await it.ask(post(path, asked(path, stream=False), "X-Session-Id: s1"))
            assert reply.status == 200, reply.body
            assert json.loads(reply.body)
            assert is_told(reply) is expected

    scene(tmp_path, play, script=writes(http(200, WHOLE)), options=", protocol: openai")
