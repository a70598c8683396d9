"""Experiments over language models: tokens, their times, and generations that continue on another arm's engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.dataplane.experiments import FORCING, KEY, arm, experiment_rules
from tests.dataplane.generating import (
    CHAT,
    DONE,
    LAST,
    MESSAGES,
    ROLE,
    STOP,
    STREAM,
    USAGE,
    WHOLE,
    asked,
    chunk,
    first,
    http,
    rest,
    token,
    writes,
)
from tests.dataplane.stage import Engine, Script, Stage, post, run, stage, until

TELLS = writes(STREAM + chunk(ROLE + token("a")), chunk(token("b")), chunk(STOP + USAGE), chunk(DONE), LAST)
TELLS_WHOLE = writes(http(200, WHOLE))
BREAKS = writes(STREAM + chunk(ROLE + token("a")), then="reset")

Play = Callable[[Stage, Engine, Engine], Coroutine[Any, Any, None]]


def scene(tmp_path: Path, old: Script, new: Script, play: Play, *, resume: bool = False, more: str = "") -> None:
    """Play with both arms' engines, which speak OpenAI's API."""

    async def whole() -> None:
        engines = [Engine(old), Engine(new)]
        for engine in engines:
            await engine.start()
        text = experiment_rules(*engines, more=more, options=", protocol: openai, retry: {attempts: 0}")
        if resume:
            text = text.replace("{name: all, experiment: x}", "{name: all, experiment: x, resume: true}")
        async with stage(text, tmp_path) as it:
            await play(it, *engines)
            for engine in engines:
                engine.stop()

    run(whole())


async def ask(it: Stage, path: str, user: str, *, stream: bool = True, fields: tuple[str, ...] = ()) -> bytes:
    client = await it.client()
    await client.send(post(path, asked(path, stream=stream), f"x-user: {user}", *fields))
    _, headers = await client.head()
    return (await rest(client, headers))[0]


def users(it: Stage) -> dict[str, str]:
    """One user of each arm."""
    split = it.plane.snapshot.table.splits["x"]
    found: dict[str, str] = {}
    for number in range(100):
        index = split.assign(f"u{number}")
        assert index is not None
        found.setdefault(split.spec.arms[index].name, f"u{number}")
    return found


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_tokens_are_counted_once_whatever_the_client_speaks(tmp_path: Path, path: str) -> None:
    """A generation counts as one request with its prompt tokens, output tokens and token times, whether it is passed
    through or translated."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        await ask(it, path, users(it)["old"])
        counts = arm(it.plane, "old")
        await until(lambda: sum(arm(it.plane, "old").requests) == 1)
        assert [sum(each) for each in (counts.prompt_tokens, counts.output_tokens, counts.generations)] == [3, 2, 1]
        assert sum(counts.first_token.count) == sum(counts.per_token.count) == sum(counts.latency.count) == 1
        assert sum(counts.first_token.seconds) <= sum(counts.latency.seconds)
        assert counts.kinds == {}

    scene(tmp_path, TELLS, TELLS, play)


def test_a_whole_answer_has_no_first_token(tmp_path: Path) -> None:
    """A reply that is not streamed counts its tokens, but no time to first token."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        await ask(it, CHAT, users(it)["old"], stream=False)
        counts = arm(it.plane, "old")
        assert [sum(each) for each in (counts.prompt_tokens, counts.output_tokens, counts.generations)] == [3, 2, 1]
        assert sum(counts.first_token.count) == 0

    scene(tmp_path, TELLS_WHOLE, TELLS_WHOLE, play)


def test_a_generation_that_breaks_off_is_an_error(tmp_path: Path) -> None:
    """A generation that breaks off counts as an error when no other endpoint continues it."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        await ask(it, CHAT, users(it)["old"])
        counts = arm(it.plane, "old")
        await until(lambda: sum(counts.errors) == 1)
        counts = arm(it.plane, "old")
        assert (sum(counts.requests), counts.kinds, counts.crossed) == (1, {"upstream_reset": 1}, 0)

    scene(tmp_path, BREAKS, BREAKS, play)


def test_a_generation_that_goes_on_at_the_other_arm_is_crossed(tmp_path: Path) -> None:
    """A generation that both arms' engines served counts as crossed, and for neither arm."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        report = await ask(it, CHAT, users(it)["old"])
        assert b"[DONE]" in report
        assert new.received
        counts = arm(it.plane, "old")
        await until(lambda: counts.crossed == 1)
        for name in ("old", "new"):
            assert (sum(arm(it.plane, name).requests), arm(it.plane, name).kinds) == (0, {})
        reply = await it.ask(post("/feedback", json.dumps({"request_id": "none", "value": 1}).encode()))
        assert reply.status == 404

    scene(tmp_path, BREAKS, first(BREAKS, TELLS), play, resume=True)


def test_a_generation_that_goes_on_at_the_same_engine_counts_once(tmp_path: Path) -> None:
    """It counts as one request, with the tokens of all its parts."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        reply = await ask(it, CHAT, users(it)["old"])
        assert b"[DONE]" in reply
        counts = arm(it.plane, "old")
        await until(lambda: sum(arm(it.plane, "old").requests) == 1)
        assert (counts.crossed, sum(counts.errors)) == (0, 0)
        assert sum(counts.output_tokens) >= 2
        assert sum(counts.first_token.count) == 1

    both = first(BREAKS, TELLS)

    async def whole() -> None:
        engines = [Engine(both), Engine(both), Engine(TELLS)]
        for engine in engines:
            await engine.start()
        text = experiment_rules(engines[0], engines[2], options=", protocol: openai, retry: {attempts: 0}")
        text = text.replace(f"['{engines[0].url}']", f"['{engines[0].url}', '{engines[1].url}']")
        text = text.replace("{name: all, experiment: x}", "{name: all, experiment: x, resume: true}")
        async with stage(text, tmp_path) as it:
            await play(it, engines[0], engines[1])
            for engine in engines:
                engine.stop()

    run(whole())


def test_a_forced_generation_counts_as_forced_alone(tmp_path: Path) -> None:
    """A forced generation adds no tokens to the arm's counts, whether it is passed through or translated."""

    async def play(it: Stage, old: Engine, new: Engine) -> None:
        fields = ("x-pointsman-force: x=new", f"x-pointsman-force-key: {KEY}")
        for path in (CHAT, MESSAGES):
            await ask(it, path, users(it)["old"], fields=fields)
        counts = arm(it.plane, "new")
        await until(lambda: counts.forced == 2)
        assert sum(counts.generations) == sum(counts.requests) == 0
        assert not old.received
        assert all(b"force" not in received.head and KEY.encode() not in received.head for received in new.received)

    scene(tmp_path, TELLS, TELLS, play, more=FORCING)
