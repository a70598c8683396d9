"""`GET /v1/models`: what clients can name, as the rules send it somewhere."""

from __future__ import annotations

import asyncio
from time import time
from typing import Any

import orjson

from gateway.dataplane.context.prepared_head import PreparedHead
from gateway.dataplane.translation.model_query import fetch_from
from gateway.protocol.advertised_models import AdvertisedModels, read_index, read_model_list
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.operations import Operation
from gateway.routing.decision import Facts, Target
from gateway.upstream.endpoint_client import fetch
from gateway.upstream.engine import Engine

_OPERATIONS = (Operation.CHAT, Operation.COMPLETION, Operation.EMBEDDING)
_SINCE = int(time())
_TIMEOUT_SECONDS = 5.0
_DEFAULT_OWNER = "pointsman"  # who owns the models where clients are told of no engine
_INDEX_PATH = b"/v2/repository/index"
# Of an engine's entry, where clients are told of no engine: a model's `root` may be a path there.
_HARMLESS = ("max_model_len", "parent", "name", "description", "context_length")
# Rules may name many thousands: other requests go on between.
_NAMES_AT_A_TIME = 32


async def list_models(plan: PreparedHead, names_engines: bool) -> bytes:
    """All models, in OpenAI's list: those that rules name outright, and those that engines list, where the rules send
    these names to them."""
    snapshot = plan.snapshot
    engines = list(snapshot.engines.values())
    listed = dict(zip(snapshot.engines, await asyncio.gather(*map(_listed, engines)), strict=True))
    found: dict[str, dict[str, Any]] = {}
    count = 0
    for name in snapshot.table.exact_models:
        if (count := count + 1) % _NAMES_AT_A_TIME == 0:
            await asyncio.sleep(0)
        targets = _targets(plan, name)
        if targets:
            entry = listed[targets[0].engine].get(targets[0].model or name)
            found[name] = _card(name, targets[0].engine, entry, names_engines)
    for engine in engines:
        for name, entry in listed[engine.name].items():
            if (count := count + 1) % _NAMES_AT_A_TIME == 0:
                await asyncio.sleep(0)
            if name not in found and any(_keeps(target, engine, name) for target in _targets(plan, name)):
                found[name] = _card(name, engine.name, entry, names_engines)
    return orjson.dumps({"object": "list", "data": [found[name] for name in sorted(found)]})


async def one_model(plan: PreparedHead, names_engines: bool) -> bytes:
    """One of them.

    Raises: GatewayError(NOT_FOUND).
    """
    name = plan.call.model or ""
    is_named = name in plan.snapshot.table.exact_models
    for target in _targets(plan, name):
        engine = plan.snapshot.engines[target.engine]
        listed = await _listed(engine)
        if is_named or (_keeps(target, engine, name) and name in listed):
            return orjson.dumps(_card(name, engine.name, listed.get(target.model or name), names_engines))
    raise GatewayError(ErrorKind.NOT_FOUND, f"The model '{name}' does not exist")


def _card(name: str, engine: str, entry: bytes | None, names_engines: bool) -> dict[str, Any]:
    """The model's entry as its engine lists it, under the name that clients use."""
    fields: dict[str, Any] = orjson.loads(entry) if entry else {}
    created, owner = fields.get("created"), fields.get("owned_by")
    if not names_engines:
        fields, owner = {field: fields[field] for field in _HARMLESS if field in fields}, _DEFAULT_OWNER
    return {
        **fields,
        "id": name,
        "object": "model",
        "created": created if isinstance(created, int) else _SINCE,
        "owned_by": owner if isinstance(owner, str) and owner else engine,
    }


def _targets(plan: PreparedHead, name: str) -> tuple[Target, ...]:
    """Where a client of this one's kind gets by naming this model."""
    table, headers = plan.snapshot.table, plan.facts.headers
    for operation in _OPERATIONS:
        targets = table.targets_for(Facts(name, None, "openai", operation, headers, principal=plan.principal))
        if targets:
            return targets
    return ()


def _keeps(target: Target, engine: Engine, name: str) -> bool:
    return target.engine == engine.name and target.model in (None, name)


async def _listed(engine: Engine) -> dict[str, bytes]:
    """The models that an engine's endpoints list, each with its entry where it has one: as the probes have found them,
    or queried now where these know nothing. Empty where the engine lists none."""
    known = [endpoint.models for endpoint in engine.endpoints if endpoint.models is not None]
    if not known:
        found = await _query(engine)
        known = [found] if found is not None else []
    return {name: models.entries.get(name, b"") for models in reversed(known) for name in models.names}


async def _query(engine: Engine) -> AdvertisedModels | None:
    models_path = engine.spec.protocol.traits.models_path
    try:
        if models_path is not None:
            fetched = await fetch_from(engine, models_path.format(base=engine.spec.base_path))
            return read_model_list(fetched.body) if fetched.is_good else None
        if engine.spec.protocol.is_v2:
            for endpoint in engine.endpoints:
                fields, timeout = engine.extra_fields, _TIMEOUT_SECONDS
                fetched = await fetch(endpoint, "POST", _INDEX_PATH, b"{}", fields=fields, timeout=timeout)
                if fetched.is_good:
                    return read_index(fetched.body)
    except GatewayError:
        pass
    return None
