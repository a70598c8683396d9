"""Replay of recorded facts through candidate rules."""

import json
from typing import Any

import pytest

from gateway.config.rules import load_texts
from gateway.config.specs import RulesSpec
from gateway.dry_run.replay import RecordingSpoiltError, Replay, read_facts

HEADER = json.dumps({"recording": 1, "headers": ["x-tier"]}) + "\n"
RULES = (
    "version: 1\n"
    "engines: {small: {endpoints: ['http://a:1']}, big: {endpoints: ['http://b:1']}}\n"
    "routes:\n"
    "  - {name: gold, match: {header: {x-tier: gold}}, engine: big}\n"
    "  - {name: split, match: {model: s}, experiment: move}\n"
    "  - {name: rest, match: {model: m}, engine: small}\n"
    "experiments:\n"
    "  move: {arms: [{name: old, engine: small, weight: 1}, {name: new, engine: big, weight: 1}]}\n"
)


def rules(text: str = RULES) -> RulesSpec:
    loaded = load_texts({"r.yaml": text})
    assert loaded.rules is not None, loaded.problems
    return loaded.rules


def line(id: str, model: str = "m", **more: Any) -> str:
    reply = {
        "time": 1.0,
        "id": id,
        "route": more.pop("route", "rest"),
        "experiment": more.pop("experiment", None),
        "arm": more.pop("arm", None),
        "engine": more.pop("engine", "small"),
        "endpoint": "http://a:1",
        "model": model,
        "version": None,
        "protocol": "rest",
        "operation": "infer",
        "session": more.pop("session", None),
        "status": 200,
        "reason": "",
        "seconds": 0.1,
        "facts": {"header": {}, "body": False} | more,
    }
    return json.dumps(reply) + "\n"


def report(candidate: RulesSpec, lines: list[str], against: RulesSpec | None = None) -> dict[str, Any]:
    replay = Replay(candidate, against)
    for fact in read_facts([HEADER, *lines]):
        replay.take(fact)
    return replay.report()


def test_changes_are_counted_with_examples() -> None:
    """Changes are counted by route, engine and arm, and requests without a route; a request with two changes counts
    once."""
    reply = report(
        rules(RULES.replace("x-tier: gold", "x-tier: platinum").replace("model: m}", "model: other}")),
        [
            *(line(f"g{n}", header={"x-tier": "gold"}, route="gold", engine="big") for n in range(7)),
            line("m"),
            line("o", "other", route=None, engine=None),
        ],
    )
    assert (reply["facts"], reply["changed"], reply["unchanged"], reply["without_route"]) == (9, 9, 0, 8)
    first, *_ = reply["changes"]["route"]
    assert (first["from"], first["to"], first["count"], len(first["examples"])) == ("gold", "none", 7, 5)
    assert first["examples"][0] == {
        "id": "g0",
        "model": "m",
        "protocol": "rest",
        "operation": "infer",
        "header": {"x-tier": "gold"},
        "session": None,
    }
    assert {(each["from"], each["to"]) for each in reply["changes"]["engine"]} == {
        ("big", "none"),
        ("small", "none"),
        ("none", "small"),
    }
    assert reply["decide_p50"] <= reply["decide_p99"]


def test_a_session_keeps_its_arm_and_chance_is_no_change() -> None:
    """Sessions keep their assignment; for requests without one, another random draw is not a change."""
    sessions = [line(f"s{n}", "s", session=f"user-{n}") for n in range(50)]
    reply = report(rules(), sessions, against=rules())
    assert (reply["changed"], reply["unchanged"]) == (0, 50)
    more = report(
        rules(RULES.replace("name: new, engine: big, weight: 1", "name: new, engine: big, weight: 9")),
        sessions,
        rules(),
    )
    moved = {(each["from"], each["to"]) for each in more["changes"]["arm"]}
    assert moved == {("move: old", "move: new")}
    where = {"route": "split", "experiment": "move", "arm": "old", "engine": "small"}
    body = {"body": True, "parameter": {}, "input": [], "has_image": False}
    drawn = [line(f"c{n}", "s", **where, **body) for n in range(50)]
    assert report(rules(), drawn)["unchanged"] == 50
    assert report(rules(), drawn, rules())["unchanged"] == 50


def test_what_was_not_recorded_is_unknown() -> None:
    """Where rules need a body or a parameter that was not recorded, the request's result is unknown."""
    asks = rules(RULES.replace("match: {model: m}", "match: {parameter: {lora: mine}}"))
    reply = report(asks, [line("a"), line("b", body=True, parameter={}, input=[], has_image=False, left_out=["lora"])])
    assert (reply["unknown"], reply["changed"]) == (2, 0)
    reply = report(asks, [line("c", body=True, parameter={"lora": "mine"}, input=[], has_image=False, left_out=["x"])])
    assert (reply["unknown"], reply["unchanged"]) == (0, 1)
    replay = Replay(rules(RULES.replace("x-tier", "x-other")))
    assert replay.unrecorded(HEADER) == ["x-other"]


def test_forced_arms_and_inputs_are_read_back() -> None:
    """Recorded forced arms and tensors lead to the same decision."""
    images = rules(RULES.replace("match: {model: m}", "match: {input: {datatype: FP32, rank: 2}}"))
    body = {"body": True, "parameter": {}, "has_image": False, "left_out": []}
    tensor = {"name": "i", "datatype": "FP32", "shape": [2, 2], "bytes": 16}
    assert report(images, [line("a", input=[tensor], **body)])["unchanged"] == 1
    assert report(images, [line("a", input=[{**tensor, "shape": [2]}], **body)])["without_route"] == 1
    keyed = rules(RULES + f"forcing: {{keys: [{'ab' * 32}]}}\n")
    forced = line(
        "f", "s", route="split", experiment="move", arm="new", engine="big", force="move=new", **body, input=[]
    )
    assert report(keyed, [forced])["unchanged"] == 1


@pytest.mark.parametrize(
    "lines, why",
    [
        (["{}\n"], "line 1 cannot be read"),
        (["no json\n"], "line 1 cannot be read"),
        ([HEADER, "{}\n"], "line 2 cannot be read"),
        ([HEADER, line("a").replace("infer", "unheard")], "line 2 cannot be read"),
    ],
)
def test_a_spoilt_recording_is_told_with_its_line(lines: list[str], why: str) -> None:
    """A spoilt recording is an error with its line, not a wrong report."""
    with pytest.raises(RecordingSpoiltError, match=why):
        list(read_facts(lines))


def test_a_recording_that_is_being_written_is_read_as_far_as_it_is_whole() -> None:
    """An incomplete last line is ignored; the line that ends the recording is not a fact."""
    assert len(list(read_facts([HEADER, line("a"), line("b")[:-20]]))) == 1
    assert len(list(read_facts([HEADER, line("a"), '{"end": "stopped", "facts": 1, "skipped": 0}\n']))) == 1
