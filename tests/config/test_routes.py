"""The `routes:` and `identity:` sections."""

from __future__ import annotations

import pytest

from gateway.config.experiment_specs import ShadowSpec, ToleranceSpec
from gateway.config.specs import IdentitySpec, InputMatch, MatchSpec, RouteSpec
from gateway.yaml.problems import Location
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
    ("{input: {datatype: FP32, rank: 4}}", MatchSpec(input=(InputMatch(datatype=("FP32",), rank=4),))),
    (
        "{input: [{name: 'im*', shape: [-1, 3]}, {bytes_at_least: 1MiB}]}",
        MatchSpec(input=(InputMatch(name=("im*",), shape=(-1, 3)), InputMatch(bytes_at_least=1048576))),
    ),
    ("{has_image: true}", MatchSpec(has_image=True)),
    ("{has_image: false}", MatchSpec(has_image=False)),
    ("{input: {name: x, shape: []}}", MatchSpec(input=(InputMatch(name=("x",), shape=()),))),
]


@pytest.mark.parametrize("match, expected", MATCHES)
def test_every_key_of_a_match_is_read(load: Load, match: str, expected: MatchSpec) -> None:
    """A single value equals a list of one, numbers are read as text, header names are in lower case."""
    rules = load(f"{ENGINES}routes:\n  - {{name: r, engine: e, model: there, match: {match}}}\n").rules
    assert rules is not None
    assert rules.routes == (RouteSpec("r", expected, "e", None, "there", location=Location("rules.yaml", 4, 5)),)


def test_a_route_may_resume(load: Load) -> None:
    """`resume` is a boolean key of the route."""
    rules = load(f"{ENGINES}routes: [{{name: r, engine: e, resume: true}}, {{name: s, engine: e}}]\n").rules
    assert rules is not None
    assert [route.resume for route in rules.routes] == [True, False]


def test_identity_says_where_requests_say_whose_they_are(load: Load) -> None:
    """Session header, session parameters and tenant header can be renamed."""
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
    """Each error is one sentence, at the wrong value or key."""
    loaded = load(f"{ENGINES}routes: [{route}]\n")
    message = [str(problem) for problem in loaded.errors]
    assert message == [f"rules.yaml:{expected}"]
    assert loaded.rules is None


def test_a_route_goes_one_way(load: Load) -> None:
    """A route with both an engine and an experiment is an error."""
    experiment = "experiments: {x: {arms: [{name: a, engine: e, weight: 1}]}}\n"
    loaded = load(f"{ENGINES}{experiment}routes: [{{name: r, engine: e, experiment: x}}]\n")
    message = "rules.yaml:4:10: error: route 'r' names an engine and an experiment: it can have one of them"
    assert [str(problem) for problem in loaded.problems] == [message]


RULES = """version: 1
engines:
  old: {{endpoints: ["http://a:1"]}}
  new: {{endpoints: ["http://b:1"]}}
routes:
  - name: r
    engine: old
    {more}
"""

READ = [
    ("shadow: {engine: new}", ShadowSpec("new")),
    ("shadow: {engine: new, sample: 100%, model: m2}", ShadowSpec("new", "m2", 1.0)),
    (
        "shadow: {engine: old, sample: 0.5, max_in_flight: 2, max_bytes: 1MiB, timeout: 500ms, top_k: 3, excerpts: 80}",
        ShadowSpec("old", None, 0.5, 2, 1 << 20, 0.5, 3, excerpts=80),
    ),
    ("shadow: {engine: new, tolerance: {relative: 2%}}", ShadowSpec("new", tolerance=ToleranceSpec(relative=0.02))),
    (
        "shadow: {engine: new, tolerance: {absolute: 0, relative: 1e-5}}",
        ShadowSpec("new", tolerance=ToleranceSpec(0.0, 1e-5)),
    ),
]


@pytest.mark.parametrize("text, spec", READ)
def test_a_shadow_is_read(load: Load, text: str, spec: ShadowSpec) -> None:
    """Shares, sizes and times have their usual units, and missing keys their defaults."""
    loaded = load(RULES.format(more=text))
    assert not loaded.errors
    assert loaded.rules is not None
    assert loaded.rules.routes[0].shadow == spec


REFUSED = [
    ("shadow: {engine: gone}", "rules.yaml:8:22: error: unknown engine 'gone'"),
    ("shadow: {sample: 1%}", "rules.yaml:8:13: error: shadow needs 'engine'"),
    (
        "shadow: {engine: new, sample: 0}",
        "rules.yaml:8:35: error: a sample of 0 is out of range: more than 0, and 1 (or 100%) at the",
    ),
    ("shadow: {engine: new, sample: 101%}", "a sample of 101% is out of range"),
    ("shadow: {engine: new, sampel: 1%}", "unknown key 'sampel' in shadow: did you mean 'sample'?"),
    ("shadow: {engine: new, max_in_flight: 0}", "0 is too small: at least 1"),
    ("shadow: {engine: new, max_bytes: 10}", "10 is out of range: 1024 to 268435456"),
    ("shadow: {engine: new, timeout: 0s}", "0s is too small: more than 0"),
    ("shadow: {engine: new, tolerance: {absolute: -1}}", "'-1' is not a number from 0 up"),
    ("shadow: {engine: new, tolerance: 1}", "expected tolerance (a map)"),
    ("shadow: {engine: new, excerpts: 5000}", "5000 is out of range: 0 to 2000"),
    ("shadow: new", "expected shadow (a map)"),
    (
        "session: {history: true}\n    shadow: {engine: new}",
        "rules.yaml:9:13: error: a shadow would answer without the turns",
    ),
]


@pytest.mark.parametrize("text, message", REFUSED)
def test_a_mistake_is_told_with_its_place(load: Load, text: str, message: str) -> None:
    """The message names file, line, column and the remedy."""
    loaded = load(RULES.format(more=text))
    assert loaded.rules is None
    assert [problem for problem in map(str, loaded.errors) if message in problem], loaded.errors


def test_a_candidate_is_used(load: Load) -> None:
    """An engine that only a shadow names counts as used."""
    loaded = load(RULES.format(more="shadow: {engine: new}"))
    assert loaded.problems == ()
