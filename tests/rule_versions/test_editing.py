"""Edits of rule files by name, which leave all other text as it is."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.rules import load_rules, load_texts
from gateway.config.specs import RulesSpec
from gateway.rule_versions.editor import (
    RuleTexts,
    add_endpoint,
    remove_endpoint,
    set_endpoint_weight,
    set_limit,
    set_weights,
)
from gateway.rule_versions.version import EditError

EXAMPLES = sorted((Path(__file__).parents[2] / "routing_rules").glob("*.yaml"))

RULES = """\
# A file as people write them.
version: 1

x-pool: &pool            # shared
    balance: least_outstanding
engines:
    'old':
        <<: *pool
        endpoints:
        -   "http://a:1"     # the first
        # the second is larger
        -   url: http://b:1
        timeout: 5s
    new:   {endpoints: [ http://c:1 ,  {url: "http://d:1"} ],   timeout: 7s}   # aligned  by hand
    single: {endpoints: http://e:1}
routes:
- {name: split, match: {model: m}, experiment: e}
- {name: other, match: {model: [o]}, experiment: inline}
- {name: rest, engine: single}
experiments:
    e:
        arms:
        -   name: control
            engine: old
            weight: 90       # of 100

        -   name: candidate
            engine: new
            weight: "10"
    inline: {arms: [{name: a, engine: old, weight: 1}, {name: b,  engine: new, weight: 3}]}
limits:
-   name: crowd
    routes: [split]
    concurrency: 32      # at the same time
    requests_per_second: 5
"""


def edited(edit: Callable[[RuleTexts], None], text: str = RULES) -> tuple[str, RulesSpec]:
    texts = {"other.yaml": "version: 1\n", "rules.yaml": text}
    edit(texts)
    assert texts["other.yaml"] == "version: 1\n"
    loaded = load_texts(texts)
    assert loaded.rules is not None, loaded.problems
    return texts["rules.yaml"], loaded.rules


def changed_lines(before: str, after: str) -> tuple[list[str], list[str]]:
    """The lines of each text that the other does not have, between equal beginnings and ends."""
    old, new = before.splitlines(), after.splitlines()
    while old and new and old[0] == new[0]:
        old, new = old[1:], new[1:]
    while old and new and old[-1] == new[-1]:
        old, new = old[:-1], new[:-1]
    return old, new


CASES: list[tuple[Callable[[RuleTexts], None], list[str], list[str]]] = [
    (
        lambda texts: set_weights(texts, "e", {"control": 75}),
        ["            weight: 90       # of 100"],
        ["            weight: 75       # of 100"],
    ),
    (
        lambda texts: set_weights(texts, "e", {"candidate": 0.5}),
        ['            weight: "10"'],
        ["            weight: 0.5"],
    ),
    (
        lambda texts: set_weights(texts, "inline", {"a": 2, "b": 8}),
        ["    inline: {arms: [{name: a, engine: old, weight: 1}, {name: b,  engine: new, weight: 3}]}"],
        ["    inline: {arms: [{name: a, engine: old, weight: 2}, {name: b,  engine: new, weight: 8}]}"],
    ),
    (lambda texts: add_endpoint(texts, "old", "http://z:1"), [], ['        - "http://z:1"']),
    (
        lambda texts: add_endpoint(texts, "old", "http://z:1", grpc="z:2"),
        [],
        ['        - {url: "http://z:1", grpc: "z:2"}'],
    ),
    (
        lambda texts: add_endpoint(texts, "new", "http://z:1"),
        ['    new:   {endpoints: [ http://c:1 ,  {url: "http://d:1"} ],   timeout: 7s}   # aligned  by hand'],
        [
            '    new:   {endpoints: [ http://c:1 ,  {url: "http://d:1"}, "http://z:1" ],   timeout: 7s}'
            "   # aligned  by hand"
        ],
    ),
    (
        lambda texts: add_endpoint(texts, "single", "http://z:1"),
        ["    single: {endpoints: http://e:1}"],
        ['    single: {endpoints: ["http://e:1", "http://z:1"]}'],
    ),
    (lambda texts: remove_endpoint(texts, "old", "http://a:1"), ['        -   "http://a:1"     # the first'], []),
    (
        lambda texts: remove_endpoint(texts, "old", "http://b:1/"),
        ["        -   url: http://b:1"],
        [],
    ),
    (
        lambda texts: remove_endpoint(texts, "new", "http://c:1"),
        ['    new:   {endpoints: [ http://c:1 ,  {url: "http://d:1"} ],   timeout: 7s}   # aligned  by hand'],
        ['    new:   {endpoints: [ {url: "http://d:1"} ],   timeout: 7s}   # aligned  by hand'],
    ),
    (
        lambda texts: remove_endpoint(texts, "new", "http://d:1"),
        ['    new:   {endpoints: [ http://c:1 ,  {url: "http://d:1"} ],   timeout: 7s}   # aligned  by hand'],
        ["    new:   {endpoints: [ http://c:1 ],   timeout: 7s}   # aligned  by hand"],
    ),
    (lambda texts: set_limit(texts, "crowd", "concurrency", 8), ["    concurrency: 32      # at the same time"], ["    concurrency: 8      # at the same time"]),  # noqa: E501 - a line is a line
    (lambda texts: set_limit(texts, "crowd", "burst", 10), [], ["    burst: 10"]),
    (lambda texts: set_limit(texts, "crowd", "requests_per_second", None), ["    requests_per_second: 5"], []),
    (lambda texts: set_limit(texts, "crowd", "max_wait", "2s"), [], ['    max_wait: "2s"']),
]  # fmt: skip


@pytest.mark.parametrize("edit, gone, come", CASES)
def test_an_edit_changes_its_lines_alone(edit: Callable[[RuleTexts], None], gone: list[str], come: list[str]) -> None:
    """Comments, quotes, order, alignment and all other lines stay as they were."""
    texts = {"rules.yaml": RULES}
    edit(texts)
    assert changed_lines(RULES, texts["rules.yaml"]) == (gone, come)


def test_what_is_edited_is_what_is_read() -> None:
    """The reader of rules finds the edited values."""
    _, rules = edited(lambda texts: set_weights(texts, "e", {"control": 1, "candidate": 99}))
    assert [arm.weight for arm in rules.experiments["e"].arms] == [1, 99]
    _, rules = edited(lambda texts: add_endpoint(texts, "old", "http://z:1"))
    assert [endpoint.url for endpoint in rules.engines["old"].endpoints] == ["http://a:1", "http://b:1", "http://z:1"]


def test_an_endpoint_without_braces_gets_some_with_its_weight() -> None:
    """An endpoint that is written as a plain address becomes a map, and keeps its environment variables."""
    texts = {"r.yaml": 'engines:\n  it:\n    endpoints:\n      - http://a:1\n      - "${B:-http://b:1}" # two\n'}
    set_endpoint_weight(texts, "it", "http://a:1", 3)
    set_endpoint_weight(texts, "it", "http://b:1", 0.5)
    assert texts["r.yaml"] == (
        "engines:\n  it:\n    endpoints:\n"
        '      - {url: "http://a:1", weight: 3}\n'
        '      - {url: "${B:-http://b:1}", weight: 0.5} # two\n'
    )
    set_endpoint_weight(texts, "it", "http://a:1", 4)
    assert '      - {url: "http://a:1", weight: 4}\n' in texts["r.yaml"]


def test_windows_lines_and_a_byte_order_mark_stay() -> None:
    """A file that an editor on Windows has written keeps its line ends and its byte order mark."""
    text = "\ufeff" + RULES.replace("\n", "\r\n").replace("# shared", "# für alle 🚂")
    after, _ = edited(lambda texts: add_endpoint(texts, "old", "http://z:1"), text)
    assert after == text.replace("http://b:1\r\n", 'http://b:1\r\n        - "http://z:1"\r\n')


def test_a_file_without_a_last_newline_is_continued() -> None:
    """A line that is added at the end starts on a line of its own."""
    text = RULES.rstrip("\n")
    after, _ = edited(lambda texts: set_limit(texts, "crowd", "burst", 7), text)
    assert after == text + "\n    burst: 7"


VARIABLE = RULES.replace("weight: 90 ", "weight: ${WEIGHT:-90} ")
ANCHORED = RULES.replace("weight: 90 ", "weight: &most 90 ").replace('weight: "10"', "weight: *most")
SHARED = """\
engines:
  one: &one
    endpoints: [http://a:1, http://b:1]
  two: *one
  three:
    <<: *one
"""

REFUSALS: list[tuple[str, Callable[[RuleTexts], None], str]] = [
    (VARIABLE, lambda texts: set_weights(texts, "e", {"control": 1}), r"environment \(\$\{WEIGHT:-90\}\)"),
    (ANCHORED, lambda texts: set_weights(texts, "e", {"control": 1}), "has an anchor (&most)"),
    (ANCHORED, lambda texts: set_weights(texts, "e", {"candidate": 1}), r"\*most"),
    (RULES, lambda texts: set_weights(texts, "f", {"control": 1}), "there is no experiment 'f'"),
    (RULES, lambda texts: set_weights(texts, "e", {"controll": 1}), "did you mean 'control'"),
    (RULES, lambda texts: add_endpoint(texts, "old", "http://a:1"), "has an endpoint http://a:1 already"),
    (RULES, lambda texts: add_endpoint(texts, "old", "a:1"), "did you mean 'http://a:1'"),
    (RULES, lambda texts: remove_endpoint(texts, "old", "http://q:1"), "it has http://a:1, http://b:1"),
    (RULES, lambda texts: remove_endpoint(texts, "single", "http://e:1"), "the only endpoint"),
    (RULES, lambda texts: set_limit(texts, "crowd", "burts", 1), "did you mean 'burst'"),
    (RULES, lambda texts: set_limit(texts, "crown", "burst", 1), "did you mean 'crowd'"),
    (SHARED, lambda texts: add_endpoint(texts, "one", "http://z:1"), "&one"),
    (SHARED, lambda texts: add_endpoint(texts, "two", "http://z:1"), r"\*one"),
    (SHARED, lambda texts: add_endpoint(texts, "three", "http://z:1"), "come from elsewhere"),
]


@pytest.mark.parametrize("text, edit, why", REFUSALS)
def test_an_edit_that_would_reach_further_is_refused(text: str, edit: Callable[[RuleTexts], None], why: str) -> None:
    """A value that comes from the environment, or is shared by an anchor, is not edited; the texts stay."""
    texts = {"rules.yaml": text}
    with pytest.raises(EditError) as refused:
        edit(texts)
    assert why.replace("\\", "") in str(refused.value)
    assert texts == {"rules.yaml": text}


def test_an_address_cannot_ask_for_the_environment() -> None:
    """Text from the admin API is literal: a variable in it is not expanded."""
    texts = {"r.yaml": RULES}
    set_limit(texts, "crowd", "max_wait", "${HOME}")
    assert [str(problem).partition("error: ")[2][:9] for problem in load_texts(texts).errors] == ["'${HOME}'"]


# Every example file, every engine in it


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@settings(deadline=None, max_examples=20)  # for each example file
@given(data=st.data())
def test_edits_of_the_examples_keep_all_other_text(path: Path, data: st.DataObject) -> None:
    """An added endpoint is read, and when it is removed the file has the same bytes as before."""
    before = path.read_text()
    rules = load_rules([path]).rules
    assert rules is not None
    texts = {str(path): before}
    engines = sorted(rules.engines)
    added = data.draw(st.lists(st.tuples(st.sampled_from(engines), st.integers(1, 999)), min_size=1, unique=True))
    for engine, number in added:
        grpc = f"z:{number}" if rules.engines[engine].endpoints[0].speaks_grpc else None
        add_endpoint(texts, engine, f"http://z:{number}", grpc)
    loaded = load_texts(texts)
    assert loaded.rules is not None, loaded.problems
    for engine, spec in rules.engines.items():
        come = [f"http://z:{number}" for name, number in added if name == engine]
        urls = [endpoint.url for endpoint in loaded.rules.engines[engine].endpoints]
        assert urls == [endpoint.url for endpoint in spec.endpoints] + come
    for engine, number in data.draw(st.permutations(added)):
        remove_endpoint(texts, engine, f"http://z:{number}")
    assert texts[str(path)] == before


@settings(deadline=None)
@given(weights=st.dictionaries(st.sampled_from(["control", "candidate"]), st.floats(0.001, 1e6), min_size=1))
def test_any_weight_is_read_back(weights: dict[str, float]) -> None:
    """A weight is read as it was written, to the twelfth decimal."""
    _, rules = edited(lambda texts: set_weights(texts, "e", weights))
    found = {arm.name: arm.weight for arm in rules.experiments["e"].arms}
    assert found == pytest.approx({"control": 90, "candidate": 10} | weights, abs=1e-12)
