"""The `routes:` and `identity:` sections."""

from __future__ import annotations

import pytest

from gateway.config.specs import IdentitySpec, InputMatch, MatchSpec, RouteSpec
from gateway.yaml.location import Location
from tests.config.conftest import Load

ENGINES = "version: 1\nengines: {e: {endpoints: 'http://a'}}\n"

MATCHES = [
    ("{}", MatchSpec()),
    ("{model: chat}", MatchSpec(model=("chat",))),
    ("{model: [chat, 'llama-*'], version: 2}", MatchSpec(model=("chat", "llama-*"), version=("2",))),
    ("{protocol: [rest, grpc], operation: stream}", MatchSpec(protocol=("rest", "grpc"), operation=("stream",))),
    ("{header: {X-Tier: 1, x-b: [yes, '*']}}", MatchSpec(header={"x-tier": ("1",), "x-b": ("yes", "*")})),
    ("{parameter: {priority: 1, stream: True}}", MatchSpec(parameter={"priority": ("1",), "stream": ("true",)})),
    ("{tenant: [acme, 'a-*']}", MatchSpec(tenant=("acme", "a-*"))),
    ("{input: {datatype: FP32, rank: 4}}", MatchSpec(input=(InputMatch(datatypes=("FP32",), rank=4),))),
    (
        "{input: [{name: 'im*', shape: [-1, 3]}, {bytes_at_least: 1MiB}]}",
        MatchSpec(input=(InputMatch(names=("im*",), shape=(-1, 3)), InputMatch(bytes_at_least=1048576))),
    ),
    ("{has_image: true}", MatchSpec(has_image=True)),
    ("{has_image: false}", MatchSpec(has_image=False)),
    ("{input: {name: x, shape: []}}", MatchSpec(input=(InputMatch(names=("x",), shape=()),))),
]


@pytest.mark.parametrize("match, expected", MATCHES)
def test_every_key_of_a_match_is_read(load: Load, match: str, expected: MatchSpec) -> None:
    """One value stands for a list of one, numbers are texts, header names are in lower case."""
    rules = load(f"{ENGINES}routes:\n  - {{name: r, engine: e, model: there, match: {match}}}\n").rules
    assert rules is not None
    assert rules.routes == (RouteSpec("r", expected, "e", None, "there", location=Location("rules.yaml", 4, 5)),)


def test_a_route_may_resume(load: Load) -> None:
    """`resume` is a switch of the route."""
    rules = load(f"{ENGINES}routes: [{{name: r, engine: e, resume: true}}, {{name: s, engine: e}}]\n").rules
    assert rules is not None
    assert [route.resume for route in rules.routes] == [True, False]


def test_identity_says_where_requests_say_whose_they_are(load: Load) -> None:
    """Session header, session parameters and tenant header have names of one's own."""
    identity = "identity: {session_header: X-Chat, session_parameters: chat_id, tenant_header: X-Org}\n"
    rules = load(f"{ENGINES}routes: [{{name: r, engine: e}}]\n{identity}").rules
    assert rules is not None
    assert rules.identity == IdentitySpec("x-chat", ("chat_id",), "x-org")


PROBLEMS = [
    ("{engine: e}", "3:10: error: a route needs 'name'"),
    ("{name: r}", "3:10: error: route 'r' names neither an engine nor an experiment"),
    (
        "{name: 'a b', engine: e}",
        "3:17: error: 'a b' is not a name: letters, digits, '.', '_', '-', up to 100, a letter or digit first",
    ),
    ("{name: r, engin: e}", "3:20: error: unknown key 'engin' in a route: did you mean 'engine'?"),
    (
        "{name: r, ensemble: x}",
        "3:20: error: 'ensemble' is not available in this version; a route names an 'engine' or an 'experiment'",
    ),
    (
        "{name: r, engine: e, match: {has_image: 1}}",
        "3:50: error: '1' is neither true nor false",
    ),
    ("{name: r, engine: e, resume: maybe}", "3:39: error: 'maybe' is neither true nor false"),
    ("{name: r, engine: e, match: {modle: x}}", "3:39: error: unknown key 'modle' in match: did you mean 'model'?"),
    ("{name: r, engine: e, match: x}", "3:38: error: expected match (a map), found one value"),
    ("{name: r, engine: e, match: {model: }}", "3:46: error: expected one value, found nothing"),
    ("{name: r, engine: e, match: {model: []}}", "3:46: error: the list is empty"),
    ("{name: r, engine: e, match: {model: {a: b}}}", "3:46: error: expected one value, found a map"),
    ("{name: r, engine: e, match: {protocol: http}}", "3:49: error: unknown value 'http'; known: rest, grpc, openai"),
    (
        "{name: r, engine: e, match: {operation: generat}}",
        "3:50: error: unknown value 'generat': did you mean 'generate'?",
    ),
    ("{name: r, engine: e, match: {header: x}}", "3:47: error: expected a map, found one value"),
    (
        "{name: r, engine: e, match: {input: {}}}",
        "3:46: error: an input needs at least one of name, datatype, rank, shape, bytes_at_least",
    ),
    (
        "{name: r, engine: e, match: {input: {datatype: FLOAT32}}}",
        "3:57: error: unknown datatype 'FLOAT32'; "
        "known: BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, FP32, FP64, BF16, BYTES",
    ),
    (
        "{name: r, engine: e, match: {input: {datatype: fp32}}}",
        "3:57: error: unknown datatype 'fp32': did you mean 'FP32'?",
    ),
    ("{name: r, engine: e, match: {input: {shape: 3}}}", "3:54: error: expected a shape (a list), found one value"),
    ("{name: r, engine: e, match: {input: {shape: [-2]}}}", "3:55: error: -2 is too small: at least -1"),
    (
        "{name: r, engine: e, match: {input: {rank: 4, shape: [1, 2]}}}",
        "3:46: error: shape has 2 axes and rank is 4: nothing has both",
    ),
    ("x", "3:10: error: expected a route (a map), found one value"),
]


@pytest.mark.parametrize("route, expected", PROBLEMS)
def test_a_wrong_route_is_told_where_and_what(load: Load, route: str, expected: str) -> None:
    """One sentence, at the value or key that is wrong."""
    loaded = load(f"{ENGINES}routes: [{route}]\n")
    told = [str(problem) for problem in loaded.errors]
    assert told == [f"rules.yaml:{expected}"]
    assert loaded.rules is None


def test_a_route_goes_one_way(load: Load) -> None:
    """An engine and an experiment in one route is an error, since one of them would be idle."""
    experiment = "experiments: {x: {arms: [{name: a, engine: e, weight: 1}]}}\n"
    loaded = load(f"{ENGINES}{experiment}routes: [{{name: r, engine: e, experiment: x}}]\n")
    message = "rules.yaml:4:10: error: route 'r' names an engine and an experiment: it can have one of them"
    assert [str(problem) for problem in loaded.problems] == [message]
