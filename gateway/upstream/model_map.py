"""Which endpoints of an engine serve which model: as the endpoints list their models, and as replies have shown."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.config.engine_specs import ModelsSpec
from gateway.protocol.advertised_models import AdvertisedModels, ModelName
from gateway.protocol.remembered_names import MAX_LENGTH
from gateway.upstream.endpoint import Endpoint

_MAX_CACHED = 4096  # names and versions: clients invent them


class ModelMap:
    """The endpoints of each model; an endpoint without a list may serve any.

    `is_needed` is False while all endpoints serve the same: then no request has to look anything up.
    """

    __slots__ = (
        *("_by_model", "_differ", "_endpoints", "_lacks", "_names", "_refuses", "_spec"),
        *("is_complete", "is_needed"),
    )

    def __init__(self, endpoints: Sequence[Endpoint], spec: ModelsSpec) -> None:
        self._endpoints = endpoints
        self._spec = spec
        self._by_model: dict[ModelName, Sequence[Endpoint]] = {}
        self._names: frozenset[str] | None = None
        # Endpoints that have refused a model, until when: by replies, since the lists came
        self._lacks: dict[ModelName, dict[Endpoint, float]] = {}
        self._differ = self._refuses = self.is_needed = False
        self.is_complete = False  # all endpoints list their models
        self.lists_changed()

    def lists_changed(self) -> None:
        """Take over the endpoints' lists."""
        lists = [endpoint.models for endpoint in self._endpoints]
        self._by_model.clear()
        self._names = None
        self.is_complete = bool(lists) and None not in lists
        self._refuses = self._spec.unknown == "refuse" and self.is_complete
        self._differ = not all(_serve_the_same(each, lists[0]) for each in lists)
        self._update_need()

    @property
    def names(self) -> frozenset[str]:
        """The names that the endpoints list."""
        if self._names is None:
            lists = [endpoint.models for endpoint in self._endpoints]
            self._names = frozenset().union(*[each.names for each in lists if each is not None])
        return self._names

    def lacks(self, model: ModelName, endpoint: Endpoint, now: float) -> bool:
        """Whether the endpoint is known to lack a model: it does not list it, or has refused it."""
        if endpoint.models is not None and not endpoint.models.serves(model):
            return True
        return self._lacks.get(model, {}).get(endpoint, 0.0) > now

    def learn(self, model: ModelName, endpoint: Endpoint, now: float) -> None:
        """An endpoint has refused a model."""
        if len(model[0]) + len(model[1]) > MAX_LENGTH:
            return
        if len(self._lacks) >= self._spec.max_remembered and model not in self._lacks:
            self._lacks.clear()
        self._lacks.setdefault(model, {})[endpoint] = now + self._spec.remember
        self._update_need()

    def forget_lacks(self, endpoint: Endpoint) -> None:
        """An endpoint may serve other models from now on."""
        for refused in self._lacks.values():
            refused.pop(endpoint, None)
        self.forget_old(0.0)

    def serving(self, model: ModelName, now: float) -> Sequence[Endpoint]:
        """The endpoints that serve a model; where none is known to, all that may. Empty where all list their models,
        none this one, and `unknown: refuse`."""
        found = self._by_model.get(model)
        if found is None:
            found = [each for each in self._endpoints if each.models is None or each.models.serves(model)]
            if not found and not self._refuses:
                found = self._endpoints
            if len(model[0]) + len(model[1]) <= MAX_LENGTH:
                if len(self._by_model) >= _MAX_CACHED:
                    self._by_model.clear()
                self._by_model[model] = found
        refused = self._lacks.get(model)
        return found if refused is None or not found else self._without(found, refused, now)

    def forget_old(self, now: float) -> None:
        """Forget the refusals whose time is over."""
        for model, refused in list(self._lacks.items()):
            if max(refused.values(), default=0.0) <= now:
                del self._lacks[model]
        self._update_need()

    def _without(self, found: Sequence[Endpoint], refused: dict[Endpoint, float], now: float) -> Sequence[Endpoint]:
        """Those that have not refused the model; where all have, those that do not list it: lists may be old."""
        for endpoints in (found, self._endpoints):
            left = [endpoint for endpoint in endpoints if refused.get(endpoint, 0.0) <= now]
            if left:
                return left
        return found

    def _update_need(self) -> None:
        self.is_needed = self._differ or bool(self._lacks) or self._refuses


def _serve_the_same(one: AdvertisedModels | None, other: AdvertisedModels | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.names == other.names and one.versions == other.versions
