"""`GET /v1/models`: what clients can name, as the rules send it somewhere."""

from __future__ import annotations

import asyncio
from time import time
from typing import Any

import orjson

from gateway.dataplane.context.prepared_head import PreparedHead
from gateway.dataplane.translation.model_description import fetch_from
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.operations import Operation
from gateway.routing.decision import Facts, Target
from gateway.upstream.endpoint_client import fetch
from gateway.upstream.engine import Engine
from gateway.upstream.probe import read_models

_OPERATIONS = (Operation.CHAT, Operation.COMPLETION, Operation.EMBEDDING)
_SINCE = int(time())
_TIMEOUT_SECONDS = 5.0
_DEFAULT_OWNER = "pointsman"  # who owns the models where clients are told of no engine
# Rules may name many thousands: other requests go on between.
_NAMES_AT_A_TIME = 32


async def list_models(plan: PreparedHead, names_engines: bool) -> bytes:
    """All models, in OpenAI's list: those that rules name outright, and those that engines say they serve, where the
    rules send these names to them."""
    snapshot = plan.snapshot
    found: dict[str, str] = {}
    for count, name in enumerate(snapshot.table.exact_models):
        if count % _NAMES_AT_A_TIME == 0:
            await asyncio.sleep(0)
        targets = _targets(plan, name)
        if targets:
            found[name] = targets[0].engine
    engines = list(snapshot.engines.values())
    for engine, served in zip(engines, await asyncio.gather(*map(_served, engines)), strict=True):
        for name in served:
            if name not in found and any(_keeps(target, engine, name) for target in _targets(plan, name)):
                found[name] = engine.name
    cards = [_card(name, owner if names_engines else _DEFAULT_OWNER) for name, owner in sorted(found.items())]
    return orjson.dumps({"object": "list", "data": cards})


async def one_model(plan: PreparedHead, names_engines: bool) -> bytes:
    """One of them.

    Raises: GatewayError(NOT_FOUND).
    """
    name = plan.call.model or ""
    targets = _targets(plan, name)
    if targets:
        if name in plan.snapshot.table.exact_models:
            return orjson.dumps(_card(name, targets[0].engine if names_engines else _DEFAULT_OWNER))
        for target in targets:
            engine = plan.snapshot.engines[target.engine]
            if _keeps(target, engine, name) and name in await _served(engine):
                return orjson.dumps(_card(name, engine.name if names_engines else _DEFAULT_OWNER))
    raise GatewayError(ErrorKind.NOT_FOUND, f"The model '{name}' does not exist")


def _card(name: str, owner: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": _SINCE, "owned_by": owner}


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


async def _served(engine: Engine) -> list[str]:
    """What an engine says that it serves; nothing where it does not say."""
    try:
        models_path = engine.spec.protocol.traits.models_path
        if models_path is not None:
            fetched = await fetch_from(engine, models_path.format(base=engine.spec.base_path))
            return sorted(read_models(fetched.body) or ())
        if engine.spec.protocol.is_v2:
            return await _index(engine)
    except GatewayError:
        pass
    return []


async def _index(engine: Engine) -> list[str]:
    for endpoint in engine.endpoints:
        path = b"/v2/repository/index"
        fetched = await fetch(endpoint, "POST", path, b"{}", fields=engine.extra_fields, timeout=_TIMEOUT_SECONDS)
        if fetched.is_good:
            return sorted(_ready_models(fetched.body))
    return []


def _ready_models(index: bytes) -> set[str]:
    """The names in a repository index of models that are ready; none where it is malformed."""
    try:
        listed = orjson.loads(index)
    except orjson.JSONDecodeError:
        return set()
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    return {
        entry["name"]
        for entry in entries
        if isinstance(entry.get("name"), str) and entry.get("state", "READY") == "READY"
    }
