"""YAML as nodes with locations."""

from __future__ import annotations

import pytest
import yaml

from gateway.yaml import nodes
from gateway.yaml.nodes import Items, Map, Node, Scalar, read_yaml
from gateway.yaml.problems import Problem

Plain = dict[str, "Plain"] | list["Plain"] | str | None


def read(text: str, **environment: str) -> tuple[Node, list[str]]:
    problems: list[Problem] = []
    return read_yaml(text, "f.yaml", environment, problems), [str(problem) for problem in problems]


def plain(node: Node) -> Plain:
    match node:
        case Map():
            return {key: plain(entry.node) for key, entry in node.entries.items()}
        case Items():
            return [plain(child) for child in node.nodes]
        case Scalar(is_null=False):
            return node.text
        case _:
            return None


VALUES = [
    ("a: 1\nb: 1.0\nc: yes\nd: 2024-01-01\ne: 'x'\n", {"a": "1", "b": "1.0", "c": "yes", "d": "2024-01-01", "e": "x"}),
    ("a:\nb: ~\nc: null\nd: ''\n", {"a": None, "b": None, "c": None, "d": ""}),
    ("base: &b {x: 1, y: 2}\nc: {<<: *b, y: 3}\n", {"base": {"x": "1", "y": "2"}, "c": {"y": "3", "x": "1"}}),
    (
        "a: &a {x: 1}\nb: &b {x: 2, z: 3}\nc: {<<: [*a, *b]}\n",
        {"a": {"x": "1"}, "b": {"x": "2", "z": "3"}, "c": {"x": "1", "z": "3"}},
    ),
    ("a: &list [1, 2]\nb: *list\n", {"a": ["1", "2"], "b": ["1", "2"]}),
]


@pytest.mark.parametrize("text, expected", VALUES)
def test_values_are_kept_as_written(text: str, expected: Plain) -> None:
    """Scalars are kept as written, aliases are resolved, and of merged keys the nearest one wins."""
    node, problems = read(text)
    assert plain(node) == expected
    assert problems == []


def test_every_node_knows_its_place() -> None:
    """Keys and values have file, line and column, counted from 1."""
    root, _ = read("routes:\n  - name: chat\n")
    assert isinstance(root, Map)
    assert str(root.entries["routes"].location) == "f.yaml:1:1"
    routes = root.entries["routes"].node
    assert isinstance(routes, Items) and isinstance(routes.nodes[0], Map)
    assert str(routes.nodes[0].location) == "f.yaml:2:5"
    assert str(routes.nodes[0].entries["name"].node.location) == "f.yaml:2:11"


VARIABLES = [
    ("${HOST}", "gpu1"),
    ("http://${HOST}:${PORT:-8000}/", "http://gpu1:8000/"),
    ("${HOST:-other}", "gpu1"),
    ("${EMPTY:-other}", ""),
    ("${MISSING:-}", ""),
    ("$${HOST}", "${HOST}"),
    ("$HOST", "$HOST"),
]


@pytest.mark.parametrize("written, expected", VARIABLES)
def test_variables_come_from_the_environment(written: str, expected: str) -> None:
    """${VAR} and ${VAR:-default} are replaced anywhere in a value; a variable that is set, even to nothing, overrides
    the default."""
    node, problems = read(f"a: '{written}'", HOST="gpu1", EMPTY="")
    assert plain(node) == {"a": expected}
    assert problems == []


ERRORS = [
    ("a: ${KEY}", "f.yaml:1:4: error: environment variable KEY is not set; ${KEY:-default} gives a default"),
    (
        "a: ${1X}",
        "f.yaml:1:4: error: '${' begins no variable: write ${NAME}, ${NAME:-default}, or $${ for the text itself",
    ),
    ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: error: key 'a' is given twice: first at f.yaml:1:1"),
    ("a: !secret x\n", "f.yaml:1:4: error: tag !secret is not known here"),
    ("a: !!binary aGk=\n", "f.yaml:1:4: error: tag tag:yaml.org,2002:binary is not known here"),
    ("a: &a [*a]\n", "f.yaml:1:4: error: this anchor contains itself"),
    ("? [a]\n: 1\n", "f.yaml:1:3: error: a key must be a text"),
    ("~: 1\n", "f.yaml:1:1: error: a key must be a text"),
    ("a: {<<: 1}\n", "f.yaml:1:5: error: '<<' takes a map or a list of maps, found one value"),
    ("a: *b\n", "f.yaml:1:4: error: not YAML: found undefined alias"),
    ("a: b: c\n", "f.yaml:1:5: error: not YAML: mapping values are not allowed in this context"),
    ("a: \0", "f.yaml:1:1: error: not YAML: control characters are not allowed"),
    ("[" * 900, "f.yaml:1:65: error: not YAML: nested too deeply"),  # libyaml itself refuses more than 1,000
    ("- " * 100_000, "f.yaml:1:129: error: not YAML: nested too deeply"),
]


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="the sentences of syntax errors are libyaml's")
@pytest.mark.parametrize("text, expected", ERRORS)
def test_errors_name_their_place(text: str, expected: str) -> None:
    """Each error is one sentence with file, line and column."""
    _, problems = read(text)
    assert problems == [expected]


def test_an_unfinished_list_names_where_it_began() -> None:
    """The message for a syntax error names the line where the unfinished value began."""
    _, problems = read("a: 1\nb: [1, 2\nc: 3\n")
    assert len(problems) == 1
    assert "from line 2 on" in problems[0]


@pytest.mark.parametrize("text, expected", VALUES)
def test_pure_python_yaml_reads_the_same(text: str, expected: Plain, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without libyaml, PyYAML's own loader yields the same nodes at the same places."""
    fast = read(text)
    monkeypatch.setattr(nodes, "_Loader", yaml.SafeLoader)
    assert read(text) == fast


def test_values_are_bounded_with_each_use_of_an_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is behind an alias counts wherever it is used, in merges too, over all files; the error names the
    place of the use that is too much."""
    lists = "a: &a [1, 2, 3, 4]\nb: &b [*a, *a, *a, *a]\nc: &c [*b, *b, *b, *b]\nd: [*c, *c]\n"
    assert read(lists)[1] == []
    monkeypatch.setattr(nodes, "MAX_VALUES", 140)
    too_many = "the rules have more than 140 values, where those behind an alias count at each use"
    assert read(lists)[1] == [f"f.yaml:4:4: error: {too_many}"]
    maps = "".join(f"m{at}: &m{at} {{<<: [*m{at - 1}, *m{at - 1}], k{at}: 1}}\n" for at in range(1, 9))
    (problem,) = read("m0: &m0 {a: 1}\n" + maps)[1]
    assert problem.endswith(too_many)
    count, problems = nodes.ValueCount(), list[Problem]()
    for file in ("one.yaml", "two.yaml"):
        nodes.read_yaml("[" + "1, " * 100 + "]", file, {}, problems, count)
    assert list(map(str, problems)) == [f"two.yaml:1:{2 + 3 * 38}: error: {too_many}"]
