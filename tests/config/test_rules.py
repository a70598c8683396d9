"""Rule files loaded together: either all of them or none."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import rules as rules_module
from gateway.config.rules import LoadedRules, load_rules
from tests.config.conftest import Load

ENGINE = "engines: {e: {endpoints: 'http://a'}}\n"
ROUTE = "routes: [{name: r, engine: e}]\n"


def lines(loaded: LoadedRules) -> list[str]:
    return [str(problem) for problem in loaded.problems]


PROBLEMS = [
    ("", ["1:1: error: the file is empty: a rule file begins with 'version: 1'"]),
    ("# nothing\n", ["1:1: error: the file is empty: a rule file begins with 'version: 1'"]),
    (
        "- a\n",
        [
            "1:1: error: expected a map with version, engines, routes, experiments, layers, forcing, auth, identity, "
            "limits, budgets, prices, classes, tests, found a list"
        ],
    ),
    (
        "hello\n",
        [
            "1:1: error: expected a map with version, engines, routes, experiments, layers, forcing, auth, identity, "
            "limits, budgets, prices, classes, tests, found one value"
        ],
    ),
    (ENGINE + ROUTE, ["1:1: error: the file has no 'version': write 'version: 1'"]),
    ("version: 2\n" + ENGINE + ROUTE, ["1:10: error: version '2' is not known: this gateway reads version 1"]),
    ("version: [1]\n" + ENGINE + ROUTE, ["1:10: error: expected version 1, found a list"]),
    ("version: 1\n", ["1:1: error: there are no routes: no request can go anywhere"]),
    (
        "version: 1\nengines: []\nroutes: []\n",
        ["2:10: error: expected a map from engine names to engines, found a list"],
    ),
    ("version: 1\nroutes: {a: b}\n", ["2:9: error: expected a list of routes, found a map"]),
    (
        "version: 1\nengine: {}\n" + ENGINE + ROUTE,
        ["2:1: error: unknown key 'engine' in a rule file: did you mean 'engines'?"],
    ),
    ("version: 1\nx-anchors: {a: [1]}\n" + ENGINE + ROUTE, []),
    (
        "version: 1\nidentity: {session: x}\n" + ENGINE + ROUTE,
        ["2:12: error: unknown key 'session' in identity: did you mean 'session_ttl'?"],
    ),
    (
        "version: 1\n" + ENGINE + "routes: [{name: r, engine: f}]\n",
        ["2:11: warning: engine 'e' is not used by any route", "3:28: error: unknown engine 'f'; known: e"],
    ),
    (
        "version: 1\n" + ENGINE + "routes: [{name: r, experiment: x}]\n",
        ["2:11: warning: engine 'e' is not used by any route", "3:32: error: unknown experiment 'x'"],
    ),
    (
        "version: 1\n" + ENGINE + ROUTE + "experiments: {x: {arms: [{name: a, engine: e, weight: 1}]}}\n",
        ["4:15: warning: experiment 'x' is not used by any route"],
    ),
    (
        "version: 1\n" + ENGINE + "routes:\n  - {name: r, engine: e, match: {model: a}}\n  - {name: r, engine: e}\n",
        ["5:5: error: route 'r' is declared twice: first at rules.yaml:4:5"],
    ),
    (
        "version: 1\nengines: {a b: {endpoints: 'http://a'}}\nroutes: [{name: r, engine: a b}]\n",
        ["2:11: error: 'a b' is not a name: letters, digits, '.', '_', '-', up to 100, a letter or digit first"],
    ),
]


@pytest.mark.parametrize("text, expected", PROBLEMS)
def test_problems_name_file_line_and_column(load: Load, text: str, expected: list[str]) -> None:
    """Each finding is one line, in the order of the file; a single error rejects the rules."""
    loaded = load(text)
    assert lines(loaded) == [f"rules.yaml:{line}" for line in expected]
    assert (loaded.rules is None) == any(": error: " in line for line in lines(loaded))


def test_several_files_are_one_text(load: Load) -> None:
    """A route in one file may name an engine of another; routes keep the order of the files."""
    loaded = load(
        "version: 1\nroutes: [{name: first, engine: e, match: {model: a}}]\n",
        "version: 1\n" + ENGINE + "routes: [{name: second, engine: e}]\n",
    )
    assert lines(loaded) == []
    assert loaded.rules is not None
    assert [route.name for route in loaded.rules.routes] == ["first", "second"]
    assert loaded.files == (Path("rules.yaml"), Path("rules2.yaml"))


def test_a_name_is_declared_once_in_all_files(load: Load) -> None:
    """The second declaration is the error, and it names the first."""
    whole = "version: 1\n" + ENGINE + ROUTE + "identity: {tenant_header: x-org}\n"
    assert lines(load(whole, whole)) == [
        "rules2.yaml:2:11: error: engine 'e' is declared twice: first at rules.yaml:2:11",
        "rules2.yaml:3:10: error: route 'r' is declared twice: first at rules.yaml:3:10",
        "rules2.yaml:3:10: warning: route 'r' is never reached: 'r' (rules.yaml:3:10) takes all that it matches",
        "rules2.yaml:4:1: error: section 'identity' is declared twice: first at rules.yaml:4:1",
    ]


def test_a_mistake_behind_an_anchor_is_told_once(load: Load) -> None:
    """However many engines merge an anchor, a mistake behind it is one error."""
    anchor = "version: 1\nx-base: &base {timeout: soon}\n"
    engines = "engines: {e: {<<: *base, endpoints: 'http://a'}, f: {<<: *base, endpoints: 'http://b'}}\n"
    loaded = load(anchor + engines + "routes: [{name: r, engine: e}, {name: s, engine: f}]\n")
    assert [str(problem.location) for problem in loaded.errors] == ["rules.yaml:2:25"]


def test_what_an_unreadable_file_may_declare_is_not_missed(load: Load) -> None:
    """A syntax error in one file does not make its engines unknown in the others: one mistake is one error."""
    loaded = load("version: 1\nroutes: [{name: r, engine: other}]\n", "version: 1\nengines: {\n")
    assert [problem.location.file for problem in loaded.problems] == ["rules2.yaml"]


def test_a_broken_engine_is_still_declared(load: Load) -> None:
    """A broken engine is reported for its own mistake, but its name counts as declared."""
    loaded = load("version: 1\nengines: {e: {endpoints: x}}\n" + ROUTE)
    assert lines(loaded) == ["rules.yaml:2:26: error: URL 'x' has no scheme: did you mean 'http://x'?"]


def test_the_digest_is_of_the_text_alone(load: Load) -> None:
    """The digest depends on the text only."""
    text = "version: 1\n" + ENGINE + ROUTE
    digests = [loaded.rules.digest for loaded in (load(text), load(text), load(text + "#\n")) if loaded.rules]
    assert digests[0] == digests[1] != digests[2]


def test_text_that_is_not_utf8_is_told_by_line(tmp_path: Path) -> None:
    """The error for a file in another encoding names the line and the byte."""
    path = tmp_path / "rules.yaml"
    path.write_bytes(b"version: 1\n# caf\xe9\n")
    assert lines(load_rules([path])) == [f"{path}:2:1: error: not UTF-8: byte 0xe9"]


@given(st.text())
def test_no_text_makes_a_load_fail(text: str) -> None:
    """Arbitrary text yields problems, never an exception."""
    assert load_text(text.encode("utf-8", "surrogatepass")).problems


WORDS = st.sampled_from(
    [
        "version",
        "engines",
        "routes",
        "experiments",
        "identity",
        "name",
        "match",
        "engine",
        "model",
        "input",
        "shape",
        "rank",
        "arms",
        "weight",
        "unit",
        "endpoints",
        "health",
        "interval",
        "header",
        "parameter",
        "datatype",
        "FP32",
        "http://a",
        "1",
        "-1",
        "30s",
        "session",
        "<<",
        "&a",
        "*a",
        "${X}",
        "${X:-1}",
        "~",
        "null",
        "'",
        '"',
    ]
)
PIECES = st.one_of(WORDS, st.sampled_from([": ", ", ", "{", "}", "[", "]", "\n", "\n  ", "\n    - ", "- "]))


@given(st.lists(PIECES, max_size=60))
def test_no_shuffled_rules_make_a_load_fail(pieces: list[str]) -> None:
    """Shuffled pieces of rules yield problems, never an exception."""
    assert load_text(("version: 1\n" + "".join(pieces)).encode()).problems


VALUES = st.recursive(WORDS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4))


@given(st.dictionaries(WORDS, VALUES, max_size=5))
def test_no_value_in_the_wrong_place_makes_a_load_fail(value: object) -> None:
    """Maps, lists and values in wrong places yield problems, never an exception; the YAML is written as JSON."""
    assert load_text(json.dumps({"version": 1} | value).encode()).problems  # type: ignore[operator]


def load_text(content: bytes) -> LoadedRules:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "rules.yaml"
        path.write_bytes(content)
        return load_rules([path], {})


def test_many_unknown_names_are_quick(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each unknown name is an error; the first ones have a suggestion, which takes a comparison with all names."""
    compared = []
    suggest = rules_module.suggest
    monkeypatch.setattr(rules_module, "suggest", lambda word, known: compared.append(word) or suggest(word, known))
    engines = "".join(f"  engine-{at}: {{endpoints: ['http://a:{at + 1}']}}\n" for at in range(60))
    routes = "".join(f"  - {{name: r{at}, engine: x{at}, match: {{model: m{at}}}}}\n" for at in range(500))
    errors = load(f"version: 1\nengines:\n{engines}routes:\n{routes}").errors
    assert len(errors) == 500
    assert len(compared) == 20
    assert errors[0].message.startswith("unknown engine 'x0'; known: engine-0, engine-1, ")
    assert errors[0].message.endswith(", engine-49 and 10 more")
    assert errors[-1].message == "unknown engine 'x499'"


SECRETS = {
    "in a URL": ("http://svc:${PASSWORD}@host:8000", {"PASSWORD": "hunter2222"}),
    "a whole URL": ("${URL}", {"URL": "http://svc:hunter2222@host:8000/x"}),
    "without a scheme": ("${URL}", {"URL": "svc:hunter2222@host:8000"}),
    "a part of a URL": ("${URL}", {"URL": "http://host:8000/hunter2222-token/x"}),
    "with what a message escapes": ("http://${PASSWORD}@host", {"PASSWORD": "hunter2222'\\\u0007"}),
    "written in the file": ("http://svc:hunter2222@host:8000", {}),
}


@pytest.mark.parametrize(("url", "environment"), SECRETS.values(), ids=SECRETS)
def test_findings_quote_no_secrets(tmp_path: Path, url: str, environment: dict[str, str]) -> None:
    """A finding names the variable in place of its value, which may be a secret; no URL's user is quoted."""
    path = tmp_path / "rules.yaml"
    path.write_text("version: 1\nengines: {e: {endpoints: '" + url + "'}}\n" + ROUTE)
    (finding,) = lines(load_rules([path], environment))
    assert "hunter2222" not in finding and ("***@" in finding or "${" in finding)


def test_findings_quote_short_values(tmp_path: Path) -> None:
    """What is too short for a secret is quoted as it is read."""
    path = tmp_path / "rules.yaml"
    path.write_text("version: 1\nengines: {e: {endpoints: 'http://a', timeout: '${WAIT}'}}\n" + ROUTE)
    (finding,) = lines(load_rules([path], {"WAIT": "5x"}))
    assert "'5x' is not a duration" in finding


LONG_GLOBS = {
    "model": '{model: "GLOB"}',
    "header": '{header: {x-a: ["a", "GLOB"]}}',
    "parameter": '{parameter: {p: "GLOB"}}',
    "input": '{input: {name: "GLOB"}}',
    "tenant": '{tenant: "GLOB"}',
}


@pytest.mark.parametrize("match", LONG_GLOBS.values(), ids=LONG_GLOBS)
def test_long_globs_are_refused_with_their_place(tmp_path: Path, match: str) -> None:
    """A glob of more than 256 characters takes long to compare with others; a text without wildcards may be longer."""
    head = "version: 1\nengines: {a: {endpoints: ['http://h:1']}}\nroutes:\n  - {name: r, engine: a, match: "
    path = tmp_path / "rules.yaml"
    path.write_text(head + match.replace("GLOB", "a*" * 2000) + "}\n")
    (finding,) = lines(load_rules([path], {}))
    assert finding.startswith(f"{path}:4:") or ":4:" in finding
    assert "a glob has at most 256 characters, and this one 4000" in finding
    for fine in ("a*" * 128, "a" * 4000):
        path.write_text(head + match.replace("GLOB", fine) + "}\n")
        assert load_rules([path], {}).rules is not None


def test_aliases_of_aliases_are_refused(tmp_path: Path) -> None:
    """Few kilobytes that stand for millions of values are refused before they are read."""
    many = 120
    head = "version: 1\nengines: {a: {endpoints: ['http://h:1']}}\n"
    aliases = f"x-n: &n [{','.join(['q'] * many)}]\nx-i: &i {{name: *n}}\nx-is: &is [{','.join(['*i'] * many)}]\n"
    routes = "".join(f"  - {{name: r{at}, match: {{input: *is}}, engine: a}}\n" for at in range(many))
    path = tmp_path / "rules.yaml"
    path.write_text(head + aliases + "routes:\n" + routes)
    (finding,) = lines(load_rules([path], {}))
    assert "the rules have more than 1,000,000 values" in finding and "rules.yaml:7" in finding
