"""The tests of rule files, run: rules that do not say what their own tests expect are not served by."""

from __future__ import annotations

from dataclasses import replace

from gateway.config.rules import LoadedRules
from gateway.config.specs import RulesSpec, RuleTestSpec
from gateway.dry_run.recording import RoutingOutcome, facts_of, outcome_of
from gateway.routing.decision import Facts
from gateway.routing.explain import RouteVerdict, explain
from gateway.routing.table import Table
from gateway.yaml.problems import Location, Problem


def tested(loaded: LoadedRules) -> LoadedRules:
    """The rules, without those that fail a test of their own."""
    if loaded.rules is None or not loaded.rules.tests:
        return loaded
    failed = failed_tests(loaded.rules)
    if not failed:
        return loaded
    return replace(loaded, rules=None, problems=(*loaded.problems, *failed))


def failed_tests(rules: RulesSpec) -> list[Problem]:
    """Failed tests, at the location of the expectation, with the actual decision. Weights are the rules'."""
    table = Table(rules)
    found = (_run(test, table) for test in rules.tests)
    return [problem for problem in found if problem is not None]


def _run(test: RuleTestSpec, table: Table) -> Problem | None:
    try:
        facts = facts_of(test.request, table.identity)
    except ValueError as error:
        return Problem(_place(test, ""), f"test {test.name!r}: force: {error}")
    outcome = outcome_of(table, facts)
    key, why = _difference(test, outcome, facts, table)
    return Problem(_place(test, key), f"test {test.name!r} fails: {why}") if why else None


def _difference(test: RuleTestSpec, outcome: RoutingOutcome, facts: Facts, table: Table) -> tuple[str, str]:
    """The first expectation that is not met, and why; two empty texts where all are."""
    expect = test.expect
    if outcome.route is None:
        return ("", "") if expect.no_route else ("", f"no route takes the request{_reason(expect.route, facts, table)}")
    if expect.no_route:
        return "no_route", f"route {outcome.route!r} takes the request, and none was expected"
    if expect.route not in (None, outcome.route):
        return "route", f"route is {outcome.route!r}, not {expect.route!r}{_reason(expect.route, facts, table)}"
    if expect.experiment not in (None, outcome.experiment):
        return "experiment", f"experiment is {outcome.experiment!r}, not {expect.experiment!r}"
    if outcome.by_chance and expect.needs_arm:
        return _by_chance(test, outcome)
    if expect.arm not in (None, outcome.arm):
        arm = repr(outcome.arm) if outcome.arm is not None else "none, since the experiment has not got its unit"
        return "arm", f"arm is {arm}, not {expect.arm!r}"
    if expect.engine is not None and expect.engine not in outcome.engines:
        return "engine", f"engine is {' and '.join(map(repr, sorted(outcome.engines)))}, not {expect.engine!r}"
    if expect.model is not None and expect.model not in outcome.models:
        return "model", f"model is {' and '.join(map(repr, sorted(outcome.models)))}, not {expect.model!r}"
    return "", ""


def _by_chance(test: RuleTestSpec, outcome: RoutingOutcome) -> tuple[str, str]:
    """For a request that is assigned at random, only what is the same for all arms can be expected."""
    expect, experiment = test.expect, outcome.experiment
    unless = f"by chance, since the request has no unit of experiment {experiment!r}: give it one, or expect no more"
    if expect.arm is not None:
        return "arm", f"its arm is {unless} than the experiment"
    if expect.engine is not None and outcome.engines != {expect.engine}:
        return "engine", f"its engine is {unless} than the experiment"
    if expect.model is not None and outcome.models != {expect.model}:
        return "model", f"its model is {unless} than the experiment"
    return "", ""


def _reason(wanted: str | None, facts: Facts, table: Table) -> str:
    """Why the route that was expected did not take it."""
    for step in explain(table, facts, lambda: 0.0).steps:
        if step.route == wanted and step.verdict is RouteVerdict.SKIPPED:
            return ", which stands before it"
        if step.route == wanted and step.verdict is RouteVerdict.MATCHED:
            return ", whose 'allow' or 'refuse' keeps this caller out"
        if step.route == wanted and step.failed:
            check = step.failed[0]
            actual = "is missing" if check.actual is None else f"is {check.actual}"
            return f": {check.key} {actual}, wanted {check.expected}"
    return ""


def _place(test: RuleTestSpec, key: str) -> Location:
    return test.places.get(key) or test.location or Location("rules", 1, 1)
