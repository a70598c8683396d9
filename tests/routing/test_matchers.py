"""Conditions of a route, one by one."""

from __future__ import annotations

import pytest

from gateway.config.specs import InputMatch, MatchSpec
from gateway.protocol.operations import Operation
from gateway.routing.decision import BodyFacts, Facts, InputFacts
from gateway.routing.matchers import Match, as_text, compile_match

IMAGE = InputFacts("image", "FP32", (1, 3, 224, 224), 602112)
TEXT = InputFacts("text", "BYTES", (1,), 12)


def holds(match: Match, facts: Facts) -> bool:
    conditions = (() if match.model is None else (match.model,)) + match.head
    body = facts.body or BodyFacts()
    return all(one.holds(facts) for one in conditions) and all(one.holds(body) for one in match.body)


HEAD_CASES = [
    (MatchSpec(), Facts("m"), True),
    (MatchSpec(model=("chat",)), Facts("chat"), True),
    (MatchSpec(model=("chat",)), Facts("Chat"), False),
    (MatchSpec(model=("chat", "llama-*")), Facts("llama-3"), True),
    (MatchSpec(model=("*",)), Facts("meta-llama/Llama-3.1"), True),
    (MatchSpec(model=("m?",)), Facts("m10"), False),
    (MatchSpec(model=("m[12]",)), Facts("m2"), True),
    (MatchSpec(model=("m[!12]",)), Facts("m2"), False),
    (MatchSpec(model=("a.c",)), Facts("abc"), False),
    (MatchSpec(model=("a*",)), Facts("a\nb"), True),
    (MatchSpec(version=("2",)), Facts("m", version="2"), True),
    (MatchSpec(version=("*",)), Facts("m"), False),
    (MatchSpec(protocol=("grpc",)), Facts("m", protocol="grpc"), True),
    (MatchSpec(protocol=("grpc", "openai")), Facts("m"), False),
    (MatchSpec(operation=("stream",)), Facts("m", operation=Operation.GENERATE_STREAM), True),
    (MatchSpec(operation=("stream", "load")), Facts("m"), False),
    (MatchSpec(header={"x-tier": ("gold",)}), Facts("m", headers={"x-tier": "gold"}), True),
    (MatchSpec(header={"x-tier": ("gold",)}), Facts("m", headers={"x-tier": "golden"}), False),
    (MatchSpec(header={"x-tier": ("*",)}), Facts("m"), False),
    (MatchSpec(header={"x-a": ("1",), "x-b": ("2",)}), Facts("m", headers={"x-a": "1"}), False),
    (MatchSpec(tenant=("acme",)), Facts("m", headers={"x-org": "acme"}), True),
    (MatchSpec(tenant=("acme",)), Facts("m", headers={"x-tenant": "acme"}), False),
]


@pytest.mark.parametrize("spec, facts, expected", HEAD_CASES)
def test_conditions_on_the_head(spec: MatchSpec, facts: Facts, expected: bool) -> None:
    """All keys must match, any item of a list is enough, a missing value matches nothing; the tenant header is
    x-org."""
    assert holds(compile_match(spec, "x-org"), facts) is expected


BODY_CASES = [
    (MatchSpec(parameter={"priority": ("1",)}), BodyFacts({"priority": 1}), True),
    (MatchSpec(parameter={"priority": ("1",)}), BodyFacts({"priority": "1"}), True),
    (MatchSpec(parameter={"priority": ("1",)}), BodyFacts({"priority": 10}), False),
    (MatchSpec(parameter={"stream": ("true",)}), BodyFacts({"stream": True}), True),
    (MatchSpec(parameter={"t": ("0.5",)}), BodyFacts({"t": 0.5}), True),
    (MatchSpec(parameter={"p": ("*",)}), BodyFacts(), False),
    (MatchSpec(input=(InputMatch(name=("im*",)),)), BodyFacts(inputs=(TEXT, IMAGE)), True),
    (MatchSpec(input=(InputMatch(datatype=("FP16", "FP32")),)), BodyFacts(inputs=(IMAGE,)), True),
    (MatchSpec(input=(InputMatch(rank=4),)), BodyFacts(inputs=(TEXT,)), False),
    (MatchSpec(input=(InputMatch(rank=4, datatype=("BYTES",)),)), BodyFacts(inputs=(TEXT, IMAGE)), False),
    (MatchSpec(input=(InputMatch(shape=(-1, 3, 224, 224)),)), BodyFacts(inputs=(IMAGE,)), True),
    (MatchSpec(input=(InputMatch(shape=(-1, 3)),)), BodyFacts(inputs=(IMAGE,)), False),
    (MatchSpec(input=(InputMatch(bytes_at_least=12),)), BodyFacts(inputs=(TEXT,)), True),
    (MatchSpec(input=(InputMatch(bytes_at_least=13),)), BodyFacts(inputs=(TEXT,)), False),
    (MatchSpec(input=(InputMatch(rank=1), InputMatch(rank=4))), BodyFacts(inputs=(TEXT, IMAGE)), True),
    (MatchSpec(input=(InputMatch(rank=1), InputMatch(rank=4))), BodyFacts(inputs=(TEXT,)), False),
    (MatchSpec(input=(InputMatch(rank=0),)), BodyFacts(), False),
    (MatchSpec(has_image=True), BodyFacts(has_image=True), True),
    (MatchSpec(has_image=True), BodyFacts(), False),
    (MatchSpec(has_image=False), BodyFacts(), True),
    (MatchSpec(has_image=False), BodyFacts(has_image=True), False),
]


@pytest.mark.parametrize("spec, body, expected", BODY_CASES)
def test_conditions_on_the_body(spec: MatchSpec, body: BodyFacts, expected: bool) -> None:
    """Parameters compare as text; the keys of one input apply to the same tensor; each listed input needs some
    tensor."""
    assert holds(compile_match(spec, "x-tenant"), Facts("m", body=body)) is expected


def test_a_match_parts_head_from_body() -> None:
    """Conditions on the head come first, so that the body is read only if the head matches."""
    match = compile_match(MatchSpec(version=("1",), header={"x-a": ("1",)}, parameter={"p": ("1",)}), "x-tenant")
    assert [condition.key for condition in match.head] == ["version", "header x-a"]
    assert [condition.key for condition in match.body] == ["parameter p"]


def test_conditions_tell_what_they_expect_and_what_there_is() -> None:
    """An explanation shows both sides of each condition."""
    spec = MatchSpec(header={"x-tier": ("gold", "plat*")}, input=(InputMatch(("im*",), ("FP32",), 4, (1, -1), 8),))
    match = compile_match(spec, "x-tenant")
    assert match.head[0].expected == "gold or plat*"
    assert match.head[0].actual(Facts("m")) is None
    assert match.body[0].expected == "name im*, datatype FP32, rank 4, shape [1, -1], at least 8 bytes"
    assert match.body[0].actual(BodyFacts(inputs=(TEXT,))) == "text BYTES[1] of 12 bytes"
    (image,) = compile_match(MatchSpec(has_image=True), "x-tenant").body
    assert (image.key, image.expected, image.actual(BodyFacts())) == ("has_image", "true", "false")


@pytest.mark.parametrize("value, text", [(True, "true"), (False, "false"), (1, "1"), (0.5, "0.5"), ("x", "x")])
def test_parameters_are_compared_as_json_writes_them(value: str | float | bool, text: str) -> None:
    """`stream: true` in a rule meets true in a body, and `1` meets 1 and "1"."""
    assert as_text(value) == text
