"""The `budgets:` and `prices:` sections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.config.limit_specs import AMOUNT_NAMES, BudgetAmounts, BudgetSpec, PriceSpec
from gateway.protocol.credentials import is_credential
from gateway.yaml.nodes import Node
from gateway.yaml.readers import Reading, record_of

if TYPE_CHECKING:
    from gateway.config.specs import RulesSpec

_BUDGET = record_of("a budget", BudgetSpec)
_PRICE = record_of("a price", PriceSpec)
_NO_OVERRIDES = ("session", "route")


def read_budget(node: Node, reading: Reading) -> BudgetSpec | None:
    """Read one budget."""
    budget = _BUDGET(node, reading)
    if budget is None:
        return None
    what = f"budget {budget.name!r}"
    if budget.amounts() == BudgetAmounts() and not budget.overrides:
        reading.error(node.location, f"{what} bounds nothing: it needs one of {', '.join(AMOUNT_NAMES)}")
    if len(set(budget.per)) < len(budget.per):
        reading.error(node.location, f"{what} names something twice in 'per'")
    for name, amounts in budget.overrides.items():
        if amounts == BudgetAmounts():
            reading.error(node.location, f"the override {name!r} of {what} needs one of {', '.join(AMOUNT_NAMES)}")
    if budget.overrides and (len(budget.per) != 1 or budget.per[0] in _NO_OVERRIDES):
        reading.error(node.location, f"{what} has 'overrides': its 'per' must be one of tenant, key, header:NAME")
    elif budget.overrides and budget.per[0] != "key" and is_credential(budget.per[0]):
        what = f"{what} has 'overrides' for {budget.per[0]}, whose values are credentials, known by digests alone"
        reading.error(node.location, f"{what}: name tenants, or keys of 'auth'")
    return budget


def read_price(node: Node, reading: Reading) -> PriceSpec | None:
    """Read one price."""
    return _PRICE(node, reading)


def check_budgets(rules: RulesSpec, reading: Reading) -> None:
    """A spend needs prices, and keys have names where `auth` verifies them."""
    has_spend = False
    has_auth = "auth" in reading.declared.get("section", {})
    for budget in rules.budgets:
        assert budget.location is not None
        amounts = [budget.amounts(), *budget.overrides.values()]
        is_spend = any(each.spend is not None for each in amounts)
        has_spend = has_spend or is_spend
        if is_spend and not rules.prices:
            what = f"budget {budget.name!r} bounds 'spend', and the rules have no 'prices': nothing would cost anything"
            reading.error(budget.location, what)
        if budget.overrides and budget.per == ("key",) and not has_auth:
            what = f"the overrides of budget {budget.name!r} name keys, which have names where the rules have 'auth'"
            reading.error(budget.location, what)
    if has_spend and rules.prices and not any("*" in price.models for price in rules.prices):
        location = rules.prices[-1].location
        assert location is not None
        what = (
            "models without a price cost nothing, and no budget bounds their spend: end 'prices' with 'models: \"*\"'"
        )
        reading.warn(location, what)
