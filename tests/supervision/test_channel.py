"""Messages between the control process and its children: rules travel in parts."""

from __future__ import annotations

import asyncio
import gc
import pickle

import pytest

from gateway.config.rules import load_texts
from gateway.config.settings import Settings
from gateway.config.specs import RulesSpec
from gateway.control.channel import encode, read_messages
from gateway.control.messages import (
    CountersPart,
    Decisions,
    Drain,
    Message,
    QueryReply,
    RulesPart,
    Start,
    UseRules,
)
from gateway.net import slices
from gateway.observability.metrics import CountersSnapshot, Metrics, SeriesKey
from tests.support.turns import turns_during

NUM_ROUTES, NUM_ENGINES = 500, 60


def rules_of(num_routes: int, num_engines: int) -> RulesSpec:
    lines = ["version: 1", "engines:"]
    lines += [f"  e{at}: {{endpoints: ['http://127.0.0.1:{at + 1}']}}" for at in range(num_engines)]
    lines += ["routes:"]
    lines += [f"  - {{name: r{at}, match: {{model: m{at}}}, engine: e{at % num_engines}}}" for at in range(num_routes)]
    lines += ["tests: [{name: t, request: {model: m0}, expect: {route: r0}}]"]
    rules = load_texts({"r.yaml": "\n".join(lines)}).rules
    assert rules is not None
    return rules


def frames_of(encoded: bytes) -> list[bytes]:
    found = []
    while encoded:
        length = int.from_bytes(encoded[:4], "big")
        found.append(encoded[4 : 4 + length])
        encoded = encoded[4 + length :]
    return found


def test_no_part_of_rules_is_long() -> None:
    """The parts have a few dozen routes or engines each, and the message that they belong to has none."""
    messages = [pickle.loads(frame) for frame in frames_of(encode(UseRules(rules_of(NUM_ROUTES, NUM_ENGINES), 7)))]
    assert all(isinstance(message, RulesPart) for message in messages[:-1])
    assert sum(len(message.routes) for message in messages[:-1]) == NUM_ROUTES
    assert sum(len(message.engines) for message in messages[:-1]) == NUM_ENGINES
    assert max(len(message.routes) + len(message.engines) for message in messages[:-1]) <= 32
    assert (messages[-1].rules.engines, messages[-1].rules.routes) == ({}, ())


def test_rules_arrive_whole_while_others_have_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader gets the rules as they were sent, but for their tests, and the event loop has a turn after each slice.
    Meanwhile nothing is collected, and afterwards as before."""
    monkeypatch.setattr(slices, "slice_seconds", lambda turn_seconds: -1.0)
    rules = rules_of(NUM_ROUTES, NUM_ENGINES)
    sent: list[Message] = [Start(Settings(), rules, 1), UseRules(rules, 2), Drain()]

    async def read() -> list[Message]:
        reader = asyncio.StreamReader()
        reader.feed_data(b"".join(map(encode, sent)))
        reader.feed_eof()
        return [message async for message in read_messages(reader)]

    (start, use_rules, drain), turns = asyncio.run(turns_during(read()))
    assert isinstance(start, Start) and isinstance(use_rules, UseRules) and isinstance(drain, Drain)
    for received in (start.rules, use_rules.rules):
        assert received.routes == rules.routes
        assert list(received.engines) == list(rules.engines)
        assert received.engines == rules.engines
        assert received.digest == rules.digest
    assert turns >= 2 * (NUM_ROUTES // 32 + NUM_ENGINES // 32)
    assert gc.isenabled()


def test_counters_arrive_whole() -> None:
    """The parts of a worker's counters are one reply, though other messages are between them."""
    metrics = Metrics()
    for at in range(5):
        metrics.series(SeriesKey(f"r{at}")).retries = at
    *parts, last = [
        *(CountersSnapshot(series={key: series}) for key, series in metrics.by_key.items()),
        CountersSnapshot(breakers_open={("e", "http://a"): True}),
        CountersSnapshot(connections=7),
    ]
    sent: list[Message] = [QueryReply(1, 5), *map(CountersPart, parts), Decisions([], 0), QueryReply(2, last)]
    sent += [CountersPart(CountersSnapshot()), QueryReply(3, CountersSnapshot(connections=8))]

    async def scene() -> list[Message]:
        reader = asyncio.StreamReader()
        reader.feed_data(b"".join(map(encode, sent)))
        reader.feed_eof()
        return [message async for message in read_messages(reader)]

    first, decisions, second, third = asyncio.run(scene())
    assert first == QueryReply(1, 5) and decisions == Decisions([], 0)
    assert isinstance(second, QueryReply) and isinstance(third, QueryReply)
    assert second.token == 2
    assert {key.route: series.retries for key, series in second.result.series.items()} == {
        "": 0,
        "r0": 0,
        "r1": 1,
        "r2": 2,
        "r3": 3,
        "r4": 4,
    }
    assert second.result.breakers_open == {("e", "http://a"): True}
    assert second.result.connections == 7
    assert third == QueryReply(3, CountersSnapshot(connections=8))
