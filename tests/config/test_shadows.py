"""The `shadow:` section of a route, read from YAML."""

from __future__ import annotations

import pytest

from gateway.config.experiment_specs import ShadowSpec, ToleranceSpec
from tests.config.conftest import Load

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
    """Shares, sizes and times are written as elsewhere; what is not written has its default."""
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
    """The message names file, line and column, and what would be right."""
    loaded = load(RULES.format(more=text))
    assert loaded.rules is None
    assert [problem for problem in map(str, loaded.errors) if message in problem], loaded.errors


def test_a_candidate_is_used(load: Load) -> None:
    """An engine that only a shadow names is no engine that no route uses."""
    loaded = load(RULES.format(more="shadow: {engine: new}"))
    assert loaded.problems == ()
