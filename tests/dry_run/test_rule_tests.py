"""Tests in rule files: what they may expect, and the errors of those that fail."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.app import make_app
from gateway.config.rules import load_rules, load_texts
from gateway.dry_run.rule_tests import failed_tests
from gateway.dry_run.rule_tests import tested as with_tests

app = make_app()

RULES = """\
version: 1
engines:
  small: {endpoints: ["http://a:1"]}
  big: {endpoints: ["http://b:1"]}
identity: {tenant_header: x-tenant}
routes:
  - {name: gold, match: {model: chat, header: {x-tier: gold}}, engine: big}
  - {name: urgent, match: {parameter: {priority: 1}}, engine: big, model: fast}
  - {name: images, match: {input: {datatype: FP32, rank: 4}}, engine: big}
  - {name: seen, match: {has_image: true, protocol: openai}, engine: big}
  - {name: acme, match: {tenant: acme}, engine: big}
  - {name: split, match: {model: "m*"}, experiment: move}
  - {name: rest, match: {model: [chat, other]}, engine: small}
experiments:
  move:
    arms:
      - {name: old, engine: small, weight: 50}
      - {name: new, engine: big, weight: 50, model: m2}
tests:
"""


def problems(*tests: str) -> list[str]:
    """The problems of the rules with these tests, with line and column."""
    loaded = with_tests(load_texts({"r.yaml": RULES + "".join(f"  - {test}\n" for test in tests)}))
    assert (loaded.rules is None) == bool(loaded.errors)
    return [str(problem) for problem in loaded.problems]


GOOD = [
    "{request: {model: chat, header: {X-Tier: gold}}, expect: {route: gold, engine: big, model: chat}}",
    "{request: {model: chat}, expect: {route: rest, engine: small}}",
    "{request: {model: other, parameter: {priority: 1}}, expect: {route: urgent, model: fast}}",
    "{request: {model: other, parameter: {priority: '1'}}, expect: {route: urgent}}",
    "{request: {model: x, input: {name: i, datatype: FP32, shape: [1, 3, 2, 2]}}, expect: {route: images}}",
    "{request: {model: x, protocol: openai, operation: chat, has_image: true}, expect: {route: seen}}",
    "{request: {model: x, tenant: acme}, expect: {route: acme}}",
    "{request: {model: x, header: {x-tenant: acme}}, expect: {route: acme}}",
    "{request: {model: x}, expect: {no_route: true}}",
    "{request: {model: m, session: alice}, expect: {experiment: move, arm: ARM}}",
    "{request: {model: m}, expect: {route: split, experiment: move}}",
    "{request: {model: m, operation: load}, expect: {engine: small}}",
    "{request: {model: m, operation: load}, expect: {engine: big}}",
]


def arm_of(session: str) -> str:
    """The arm that the rules assign to a session, as in `pointsman explain`."""
    for arm in ("old", "new"):
        if not problems(f"{{name: t, request: {{model: m, session: {session}}}, expect: {{arm: {arm}}}}}"):
            return arm
    raise AssertionError("a session has no arm")


@pytest.mark.parametrize("test", GOOD)
def test_what_the_rules_say_may_be_expected(test: str) -> None:
    """A request is described with the names of `match:`, and a test may expect any part of the decision."""
    assert problems("{name: t, " + test[1:].replace("ARM", arm_of("alice"))) == []


FAILURES = [
    (
        "{name: t, request: {model: chat}, expect: {route: gold}}",
        "r.yaml:20:55: error: test 't' fails: route is 'rest', not 'gold': header x-tier is missing, wanted gold",
    ),
    (
        "{name: t, request: {model: chat, header: {x-tier: gold}}, expect: {route: rest}}",
        "r.yaml:20:79: error: test 't' fails: route is 'gold', not 'rest', which stands before it",
    ),
    (
        "{name: t, request: {model: chat}, expect: {engine: big}}",
        "r.yaml:20:56: error: test 't' fails: engine is 'small', not 'big'",
    ),
    (
        "{name: t, request: {model: chat}, expect: {model: chat2}}",
        "r.yaml:20:55: error: test 't' fails: model is 'chat', not 'chat2'",
    ),
    (
        "{name: t, request: {model: x}, expect: {route: rest}}",
        "r.yaml:20:5: error: test 't' fails: no route takes the request: model is x, wanted chat or other",
    ),
    (
        "{name: t, request: {model: chat}, expect: {no_route: true}}",
        "r.yaml:20:58: error: test 't' fails: route 'rest' takes the request, and none was expected",
    ),
    (
        "{name: t, request: {model: chat}, expect: {experiment: move}}",
        "r.yaml:20:60: error: test 't' fails: experiment is None, not 'move'",
    ),
    (
        "{name: t, request: {model: m}, expect: {arm: old}}",
        "r.yaml:20:50: error: test 't' fails: its arm is by chance, since the request has no unit of experiment "
        "'move': give it one, or expect no more than the experiment",
    ),
    (
        "{name: t, request: {model: m}, expect: {engine: small}}",
        "r.yaml:20:53: error: test 't' fails: its engine is by chance, since the request has no unit of experiment "
        "'move': give it one, or expect no more than the experiment",
    ),
]


@pytest.mark.parametrize("test, problem", FAILURES)
def test_a_failing_test_is_an_error_at_its_place(test: str, problem: str) -> None:
    """The error of a failed test names the actual result and the reason."""
    assert problems(test) == [problem]


def test_an_arm_that_the_unit_has_not_got_is_an_error() -> None:
    """Under the rules' own weights a session has exactly one arm."""
    other = {"old": "new", "new": "old"}[arm_of("alice")]
    (problem,) = problems(f"{{name: t, request: {{model: m, session: alice}}, expect: {{arm: {other}}}}}")
    assert problem.endswith(f"error: test 't' fails: arm is '{arm_of('alice')}', not '{other}'")


MISTAKES = [
    ("{request: {model: x}, expect: {route: rest}}", "a test needs 'name'"),
    ("{name: t, request: {}, expect: {route: rest}}", "a request needs 'model'"),
    ("{name: t, request: {model: x}, expect: {}}", "test 't' expects nothing"),
    ("{name: t, request: {model: x}, expect: {route: golf}}", "unknown route 'golf': did you mean 'gold'?"),
    ("{name: t, request: {model: x}, expect: {engine: bug}}", "unknown engine 'bug': did you mean 'big'?"),
    ("{name: t, request: {model: x, heder: {a: b}}, expect: {route: gold}}", "did you mean 'header'?"),
    ("{name: t, request: {model: x, protocol: rset}, expect: {route: gold}}", "did you mean 'rest'?"),
    ("{name: t, request: {model: x, operation: infr}, expect: {route: gold}}", "did you mean 'infer'?"),
    ("{name: t, request: {model: x}, expect: {route: rest, no_route: true}}", "expects no route, and something of one"),
    ("{name: t, request: {model: x, force: move}, expect: {route: rest}}", "force: 'move' is not EXPERIMENT=ARM"),
    (
        "{name: t, request: {model: x, input: {name: i, datatype: F32, shape: [1]}}, expect: {route: rest}}",
        "did you mean 'FP32'?",
    ),
    (
        "{name: t, request: {model: x, input: {name: i, datatype: FP32, shape: [-1]}}, expect: {route: rest}}",
        "-1 is too small: at least 0",
    ),
    ("all of them", "expected a test (a map), found one value"),
]  # fmt: skip


@pytest.mark.parametrize("test, why", MISTAKES)
def test_a_test_with_a_mistake_is_told(test: str, why: str) -> None:
    """A mistake in a test is reported like any other in a rule file, with its line and the correct spelling."""
    (problem,) = problems(test)
    assert problem.startswith("r.yaml:20:") and why in problem


def test_two_tests_of_one_name_are_a_mistake() -> None:
    """Two tests of one name are an error."""
    test = "{name: t, request: {model: chat}, expect: {route: rest}}"
    assert problems(test, test) == ["r.yaml:21:5: error: test 't' is declared twice: first at r.yaml:20:5"]


def test_check_runs_the_tests(tmp_path: Path) -> None:
    """`pointsman check` counts the tests that pass, and exits with 1 where one fails."""
    file = tmp_path / "r.yaml"
    file.write_text(RULES + "  - {name: t, request: {model: chat}, expect: {route: rest}}\n")
    good = CliRunner().invoke(app, ["check", str(file)])
    assert (good.exit_code, good.output.splitlines()[-1]) == (0, "2 engines, 7 routes, 1 experiment, 1 test: ok")
    file.write_text(RULES + "  - {name: t, request: {model: chat}, expect: {route: gold}}\n")
    bad = CliRunner().invoke(app, ["check", str(file)])
    assert bad.exit_code == 1
    assert f"{file}:20:55: error: test 't' fails: route is 'rest', not 'gold'" in bad.output


def test_tests_may_stand_in_a_file_of_their_own(tmp_path: Path) -> None:
    """Tests may be in a file of their own and apply to the rules of all files."""
    (tmp_path / "a.yaml").write_text(RULES.removesuffix("tests:\n"))
    (tmp_path / "b.yaml").write_text("version: 1\ntests: [{name: t, request: {model: chat}, expect: {route: gold}}]\n")
    loaded = load_rules([tmp_path])
    assert loaded.rules is not None
    (problem,) = failed_tests(loaded.rules)
    assert (problem.location.file, problem.location.line) == (str(tmp_path / "b.yaml"), 2)


AUTH = """
version: 1
auth: {keys: keys/clients.yaml}
engines: {it: {endpoints: ["http://h:1"]}}
routes:
  - {name: secret, match: {model: secret}, engine: it, allow: [{tenant: acme}, {claim: {role: ops}}, {key: "12"}]}
  - {name: all, engine: it}
tests:
  - {name: acme, request: {model: secret, tenant: acme}, expect: {route: secret}}
  - {name: by claim, request: {model: secret, tenant: zen, claim: {role: [dev, ops]}}, expect: {route: secret}}
  - {name: by key, request: {model: secret, key: "12"}, expect: {route: secret}}
  - {name: another, request: {model: secret, tenant: zen, claim: {role: dev}}, expect: {no_route: true}}
  - {name: anonymous, request: {model: secret}, expect: {no_route: true}}
  - {name: fails, request: {model: secret, tenant: zen}, expect: {route: secret}}
"""


def test_callers_of_routes_with_allow(tmp_path: Path) -> None:
    """Tests name the caller by tenant, key and claim; one that is kept out has no route."""
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "clients.yaml").write_text("")
    (tmp_path / "rules.yaml").write_text(AUTH)
    problems = [str(problem) for problem in with_tests(load_rules([tmp_path])).errors]
    assert len(problems) == 1, problems
    assert "'fails' fails: no route takes the request, whose 'allow' or 'refuse' keeps this caller out" in problems[0]
