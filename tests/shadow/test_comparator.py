"""The rules of the shadow process."""

from __future__ import annotations

from gateway.config.rules import LoadedRules, load_rules
from gateway.config.specs import RulesSpec
from gateway.routing.table import Table
from gateway.shadow.comparator import shadow_rules, shadows

RULES = """
version: 1
engines:
  old: {endpoints: ["http://a:1"]}
  newer: {endpoints: ["http://b:1"]}
  newest: {endpoints: ["http://c:1"], balance: session}
experiments:
  split:
    unit: session
    arms:
      - {name: a, engine: old, weight: 1}
      - {name: b, engine: newer, weight: 1, model: m-b}
routes:
  - {name: plain, match: {model: p}, engine: old}
  - {name: renamed, match: {model: r}, engine: old, model: r2, shadow: {engine: newer}}
  - {name: given, match: {model: g}, engine: old, model: g2, shadow: {engine: newest, model: g3}}
  - {name: both, experiment: split, shadow: {engine: newest}}
limits:
  - {name: tight, requests_per_second: 1}
"""


def rules(tmp_path: object) -> RulesSpec:
    path = tmp_path / "rules.yaml"  # type: ignore[operator]
    path.write_text(RULES)
    loaded: LoadedRules = load_rules([path], {})
    assert loaded.rules is not None, loaded.problems
    return loaded.rules


def test_each_mirrored_route_leads_to_its_candidate(tmp_path: object) -> None:
    """Each mirrored route has a target at its candidate, with the model name of the engine that answered unless the
    shadow sets one; an experiment has one target per model name of its arms. The targets have no limits, experiments or
    assignments."""
    derived, places = shadow_rules(rules(tmp_path))
    table = Table(derived)
    found = {key: table.targets[place] for key, place in places.items()}
    assert {key: (each.route, each.engine, each.model) for key, each in found.items()} == {
        ("renamed", "r2"): ("renamed", "newer", "r2"),
        ("given", "g2"): ("given", "newest", "g3"),
        ("both", None): ("both", "newest", None),
        ("both", "m-b"): ("both", "newest", "m-b"),
    }
    assert len(table.targets) == len(places)
    assert derived.engines.keys() == {"newer", "newest"}
    assert derived.limits == ()
    assert derived.experiments == {}


def test_shadows_are_known_by_their_routes(tmp_path: object) -> None:
    """Only routes with a shadow are listed."""
    assert {name: each.engine for name, each in shadows(rules(tmp_path)).items()} == {
        "renamed": "newer",
        "given": "newest",
        "both": "newest",
    }
