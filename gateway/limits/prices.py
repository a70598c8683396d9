"""What the use of models costs, by the `prices:` of the rules."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate

from gateway.config.limit_specs import PriceSpec
from gateway.limits.budget_window import BILLION
from gateway.protocol.llm.canonical import TokenUsage
from gateway.protocol.remembered_names import MAX_LENGTH

# Billionths for a token, of a price for a million of them.
_OF_A_TOKEN = BILLION // 10**6
# A bound for clients that invent names.
_MAX_MODELS = 1024


class Prices:
    """Finds the price of a model, and the cost of a request."""

    __slots__ = ("_by_model", "_patterns", "are_for_requests")

    def __init__(self, specs: Sequence[PriceSpec]) -> None:
        self._patterns = [(re.compile("|".join(translate(pattern) for pattern in spec.models)), spec) for spec in specs]
        self.are_for_requests = any(spec.request for spec in specs)  # some, beside tokens
        self._by_model: dict[str, PriceSpec | None] = {}

    def of(self, model: str) -> PriceSpec | None:
        """The first price that names the model; None: it costs nothing."""
        found = self._by_model.get(model)
        if found is not None or model in self._by_model:
            return found
        price = next((spec for pattern, spec in self._patterns if pattern.match(model)), None)
        if len(model) <= MAX_LENGTH:
            if len(self._by_model) >= _MAX_MODELS:
                self._by_model.clear()
            self._by_model[model] = price
        return price

    def cost(self, model: str, used: TokenUsage) -> int:
        """What a request's tokens cost, in billionths."""
        price = self.of(model)
        if price is None:
            return 0
        cached = min(used.cached, used.prompt)
        of_cached = price.input if price.cached is None else price.cached
        cost = (used.prompt - cached) * price.input + cached * of_cached + used.completion * price.output
        return round(cost * _OF_A_TOKEN)

    def cost_of_request(self, model: str) -> int:
        """What a request costs apart from its tokens, in billionths."""
        price = self.of(model)
        return round(price.request * BILLION) if price is not None else 0
