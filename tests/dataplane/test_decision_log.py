"""The decision log: what it records of finished requests, and what it leaves out."""

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.config.rules import load_texts
from gateway.dataplane.context.ended_request import DecisionFacts, EndedRequest
from gateway.dataplane.context.request_log import CUT, DecisionSampler
from gateway.protocol.operations import Operation
from gateway.protocol.v2_facts import BodyFacts, InputFacts
from gateway.routing.assignment import Forced
from gateway.routing.decision import Facts, Target
from gateway.routing.used_fields import used_fields

TARGET = Target("r", "e", experiment="x", arm="a")


def told(
    facts: Facts,
    notes: int = 1,
    rate: float = 100.0,
    share: float = 1.0,
    read_body: Callable[[], BodyFacts | None] | None = None,
    asked: tuple[str, ...] = (),
) -> tuple[list[dict[str, Any]], int]:
    """The decisions that a sampler writes for `notes` requests, and the number that it skips."""
    received: list[dict[str, Any]] = []
    left_out: list[int] = []

    async def run() -> None:
        sampler = DecisionSampler(
            rate, share, True, ("x-user",), lambda some, skipped: (received.extend(some), left_out.append(skipped))
        )  # type: ignore[func-returns-value]
        sampler.parameters = asked
        known = DecisionFacts(facts, "alice", read_body)
        for _ in range(notes):
            sampler.add(EndedRequest("-", ("POST", "/"), 200, "", 0.5, b"id-1", TARGET, "http://e:1", known))
        sampler.close()

    asyncio.run(run())
    return received, sum(left_out)


def test_a_decision_is_told_with_its_facts() -> None:
    """A decision has the request's facts, its target and its outcome."""
    body = BodyFacts({"priority": 1, "stream": True}, (InputFacts("i", "FP32", (1, 2), 8),), True)
    facts = Facts("m", "2", "grpc", Operation.INFER, {"x-tier": "gold"}, forced=Forced("x", "a"))
    ((one,), _) = told(facts, read_body=lambda: body)
    assert one.pop("time") > 1e9
    assert one == {
        "id": "id-1",
        "route": "r",
        "experiment": "x",
        "arm": "a",
        "engine": "e",
        "endpoint": "http://e:1",
        "model": "m",
        "version": "2",
        "protocol": "grpc",
        "operation": "infer",
        "session": "alice",
        "status": 200,
        "reason": "",
        "seconds": 0.5,
        "facts": {
            "header": {"x-tier": "gold"},
            "body": True,
            "force": "x=a",
            "parameter": {"priority": 1, "stream": True},
            "left_out": [],
            "input": [{"name": "i", "datatype": "FP32", "shape": [1, 2], "bytes": 8}],
            "has_image": True,
        },
    }


def test_texts_of_bodies_are_told_where_rules_ask_for_them() -> None:
    """The text parameters of a body are left out and listed by name unless a rule matches on them, since a prompt is
    text too."""
    body = BodyFacts({"prompt": "a secret", "lora": "mine", "n": 2})
    ((one,), _) = told(Facts("m"), read_body=lambda: body, asked=("lora",))
    assert one["facts"]["parameter"] == {"lora": "mine", "n": 2}
    assert one["facts"]["left_out"] == ["prompt"]


def test_values_are_cut_and_bounded() -> None:
    """Credentials and redacted headers have no value; texts and lists are cut to a bounded length."""
    headers = {"x-user": "secret", "api-key": "secret", "x-auth-token": "secret", "x-long": "a" * 1000}
    body = BodyFacts({f"p{n}": n for n in range(100)}, (InputFacts("i", "FP32", (1,), 4),) * 100)
    ((one,), _) = told(Facts("m" * 1000, headers=headers), read_body=lambda: body)
    assert one["facts"]["header"] == {"x-user": CUT, "api-key": CUT, "x-auth-token": CUT, "x-long": "a" * 256}
    assert (len(one["facts"]["parameter"]), len(one["facts"]["input"]), len(one["model"])) == (32, 32, 256)


def test_a_body_that_is_no_longer_there_is_said_to_be_unknown() -> None:
    """Without its body a request's parameters are unknown; an operation without a body has no parameters."""
    ((one,), _) = told(Facts("m"), read_body=lambda: None)
    assert (one["facts"]["body"], "parameter" in one["facts"]) == (False, False)
    ((one,), _) = told(Facts("m", operation=Operation.MODEL_METADATA))
    assert (one["facts"]["body"], one["facts"]["parameter"]) == (True, {})


def test_what_no_route_decides_alone_is_not_told() -> None:
    """Requests without a model, and operations that go to all engines of a model, are not logged."""
    assert told(Facts("")) == ([], 0)
    assert told(Facts("m", operation=Operation.LOAD)) == ([], 0)


def test_no_more_than_the_rate_is_told() -> None:
    """Decisions above the rate are counted as left out."""
    received, left_out = told(Facts("m"), notes=300, rate=100)
    assert 100 <= len(received) < 150
    assert len(received) + left_out == 300


def test_a_share_is_taken() -> None:
    """The log samples about `share` of all requests at random."""
    received, left_out = told(Facts("m"), notes=2000, rate=1e6, share=0.25)
    assert 400 < len(received) < 600
    assert left_out == 0


def test_rules_ask_for_these_by_name() -> None:
    """The headers and parameters that rules use are those of matches, units and identities."""
    rules = load_texts(
        {
            "r.yaml": "version: 1\n"
            "engines: {e: {endpoints: ['http://a:1']}}\n"
            "identity: {tenant_header: x-tenant, session_parameters: [chat_id]}\n"
            "routes:\n"
            "  - {name: a, match: {header: {X-Tier: gold}, parameter: {lora: mine}}, engine: e}\n"
            "  - {name: b, match: {tenant: acme}, experiment: x}\n"
            "  - {name: c, experiment: y}\n"
            "experiments:\n"
            "  x: {unit: 'header:X-User', arms: [{name: one, engine: e, weight: 1}]}\n"
            "  y: {unit: 'parameter:user', arms: [{name: one, engine: e, weight: 1}]}\n"
        }
    ).rules
    assert rules is not None
    used = used_fields(rules)
    assert used.headers == {"x-tier", "x-tenant", "x-user"}
    assert used.unit_headers == {"x-user"}
    assert used.parameters == {"lora", "user", "chat_id"}
