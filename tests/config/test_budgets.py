"""The `budgets:` and `prices:` sections."""

from __future__ import annotations

import pytest

from gateway.config.limit_specs import BudgetAmounts, BudgetSpec, BudgetWindow, PriceSpec
from tests.config.conftest import Load

RULES = "version: 1\nengines: {e: {endpoints: 'http://a'}}\nroutes: [{name: chat, engine: e}]\n"
PRICES = "prices: [{models: '*', input: 1}]\n"


def test_every_key_of_a_budget_and_of_a_price_is_read(load: Load) -> None:
    """Amounts, window, overrides and prices are read; an override leaves the other amounts as they are."""
    loaded = load(
        f"{RULES}budgets: [{{name: m, routes: chat, per: tenant, window: month, spend: 500, tokens: 1000, "
        "overrides: {acme: {spend: 0.5}}}]\nprices: [{models: ['gpt-*', o1], input: 2.5, output: 10, cached: 1.25}, "
        "{models: '*', request: 0.001}]\n"
    )
    assert loaded.problems == ()
    assert loaded.rules is not None
    [budget] = loaded.rules.budgets
    overrides = {"acme": BudgetAmounts(spend=0.5)}
    expected = BudgetSpec("m", BudgetWindow.MONTH, ("chat",), ("tenant",), tokens=1000, spend=500, overrides=overrides)
    assert budget == expected
    assert budget.amounts(("acme",)) == BudgetAmounts(tokens=1000, spend=0.5)
    assert budget.amounts(("other",)) == BudgetAmounts(tokens=1000, spend=500)
    prices = (PriceSpec(("gpt-*", "o1"), 2.5, 10.0, 1.25), PriceSpec(("*",), request=0.001))
    assert loaded.rules.prices == prices


PROBLEMS = [
    ("{name: a, tokens: 1}", "4:11: error: a budget needs 'window'"),
    ("{name: a, window: mnth, tokens: 1}", "4:29: error: unknown window 'mnth': did you mean 'month'?"),
    ("{name: a, window: day}", "4:11: error: budget 'a' bounds nothing: it needs one of requests, tokens, spend"),
    ("{name: a, window: day, tokens: 0}", "4:42: error: 0 is too small: at least 1"),
    ("{name: a, window: day, token: 1}", "4:34: error: unknown key 'token' in a budget: did you mean 'tokens'?"),
    ("{name: a, window: day, tokens: 1, per: [key, key]}", "4:11: error: budget 'a' names something twice in 'per'"),
    ("{name: a, window: day, tokens: 1, routes: chta}", "4:53: error: unknown route 'chta': did you mean 'chat'?"),
    (
        "{name: a, window: day, tokens: 1, overrides: {x: {tokens: 2}}}",
        "4:11: error: budget 'a' has 'overrides': its 'per' must be one of tenant, key, header:NAME",
    ),
    (
        "{name: a, window: day, per: tenant, tokens: 1, overrides: {x: {}}}",
        "4:11: error: the override 'x' of budget 'a' needs one of requests, tokens, spend",
    ),
    (
        "{name: a, window: day, per: 'header:x-auth-token', tokens: 1, overrides: {x: {tokens: 2}}}",
        "4:11: error: budget 'a' has 'overrides' for header:x-auth-token, whose values are credentials, known by "
        "digests alone: name tenants, or keys of 'auth'",
    ),
    (
        "{name: a, window: day, per: key, tokens: 1, overrides: {x: {tokens: 2}}}",
        "4:11: error: the overrides of budget 'a' name keys, which have names where the rules have 'auth'",
    ),
    (
        "{name: a, window: day, spend: 1}",
        "4:11: error: budget 'a' bounds 'spend', and the rules have no 'prices': nothing would cost anything",
    ),
    (
        "{name: a, window: day, tokens: 1}, {name: a, window: day, tokens: 1}",
        "4:46: error: budget 'a' is declared twice",
    ),
]


@pytest.mark.parametrize("text, problem", PROBLEMS)
def test_a_wrong_budget_is_told_with_its_place(load: Load, text: str, problem: str) -> None:
    """Each mistake is an error with file, line and cure."""
    loaded = load(f"{RULES}budgets: [{text}]\n")
    assert [str(each) for each in loaded.problems if f"rules.yaml:{problem}" in str(each)], loaded.problems


def test_models_without_a_price_are_warned_of(load: Load) -> None:
    """A budget of money warns where models may have no price."""
    budgets = "budgets: [{name: a, window: day, spend: 1}]\n"
    assert load(f"{RULES}{budgets}{PRICES}").problems == ()
    [problem] = load(f"{RULES}{budgets}prices: [{{models: gpt, input: 1}}]\n").problems
    assert "rules.yaml:5:10: warning: models without a price cost nothing" in str(problem)
