"""The ready language models, as `/v1/models` lists them: by their names, and by those of their adapters."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from engines.core.errors import EngineError
from engines.host.model import HostedModel
from engines.host.service import Service
from gateway.protocol.errors import ErrorKind, GatewayError

BACKEND = "paged"
# The parameter with the engine's description.
_PLACEMENT = "PLACEMENT"


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """A ready version, and its engine's description."""

    served: HostedModel
    description: Mapping[str, Any]

    @property
    def adapters(self) -> tuple[str, ...]:
        return tuple(self.description.get("adapters") or ())

    def card(self, name: str, since: int) -> dict[str, Any]:
        """Its entry in `/v1/models` under this name."""
        card = {"id": name, "object": "model", "created": since, "owned_by": "pointsman", "root": self.served.name}
        if name != self.served.name:
            card["parent"] = self.served.name
        if self.description.get("max_context"):
            card["max_model_len"] = self.description["max_context"]
        return card


class LanguageModels:
    """The host's language models. `since` is the time of creation, in seconds since 1970."""

    def __init__(self, service: Service, since: int) -> None:
        self._service = service
        self._since = since
        self._cached: dict[tuple[str, str], LanguageModel] = {}

    def __bool__(self) -> bool:
        """Whether there is any."""
        return next(self._all(), None) is not None

    def find(self, name: str) -> tuple[LanguageModel, str | None]:
        """The model of this name, or the model and its adapter of this name.

        Raises: GatewayError(NOT_FOUND), and GatewayError(UNSUPPORTED) for another kind of model.
        """
        try:
            served = self._service.model(name, "")
        except EngineError:
            served = None
        if served is not None and served.config.backend == BACKEND:
            return self._of(served), None
        for model in self._all():
            if name in model.adapters:
                return model, name
        if served is not None:
            backend = served.config.backend or served.config.platform
            what = f"The model '{name}' is no language model of the paged engine: '{backend}' runs it, and V2 serves it"
            raise GatewayError(ErrorKind.UNSUPPORTED, what)
        raise GatewayError(ErrorKind.NOT_FOUND, f"The model '{name}' does not exist")

    def listed(self) -> bytes:
        """All of them, in OpenAI's list."""
        models: dict[str, LanguageModel] = {}
        for model in self._all():
            for name in (model.served.name, *model.adapters):
                models.setdefault(name, model)
        cards = [model.card(name, self._since) for name, model in models.items()]
        return orjson.dumps({"object": "list", "data": cards})

    def one(self, name: str) -> bytes:
        """Raises: GatewayError, as `find`."""
        return orjson.dumps(self.find(name)[0].card(name, self._since))

    def _all(self) -> Iterator[LanguageModel]:
        for served in self._service.ready_models():
            if served.config.backend == BACKEND:
                yield self._of(served)

    def _of(self, served: HostedModel) -> LanguageModel:
        key = (served.name, served.version)
        cached = self._cached.get(key)
        if cached is None or cached.served is not served:  # it was reloaded
            cached = self._cached[key] = LanguageModel(served, _description(served.config))
        return cached


def _description(config: Any) -> Mapping[str, Any]:
    """The description by the first of a model's instances."""
    if _PLACEMENT not in config.parameters:
        return {}
    by_instance = json.loads(config.parameters[_PLACEMENT].string_value)
    description = next(iter(by_instance.values()), None)
    return description if isinstance(description, dict) else {}
