"""V2's repository index from what the gateway knows: the lists that its probes read.

A query has the lists read again, at most once a second for each engine and worker, however many clients poll, and then
answers from them. Endpoints whose index is not known are queried with the client's own fields, as all are with
`models: {index: live}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any

import orjson

from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.rest.fleet import Question
from gateway.protocol.engine_load import Readiness
from gateway.protocol.grpc_status import OK
from gateway.protocol.merge_replies import merge_index
from gateway.upstream.endpoint_client import HttpReply
from gateway.upstream.engine import Engine

_READY = "READY"
_CONTENT_TYPE = "application/json"


def wants_ready(body: bytes) -> bool | None:
    """Whether a query is for the models alone that are ready; None where engines have to read it."""
    if not body:
        return False
    try:
        query = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if (
        not isinstance(query, dict)
        or query.get("repository_name", "") != ""
        or query.keys() - {"repository_name", "ready"}
    ):
        return None
    ready = query.get("ready", False)
    return ready if isinstance(ready, bool) else None


async def known_indexes(
    plane: DataPlane, questions: Sequence[Question], by_grpc: bool
) -> tuple[list[HttpReply], list[Question]]:
    """The indexes that are known, and the questions that are left. Endpoints that are down are left out, where others
    are known."""
    now = monotonic()
    engines = {engine for engine, _, _ in questions if _is_known(engine)}
    read = {engine for engine in engines if engine.is_due("indexes", now)}
    keys = {(engine.name, endpoint.url) for engine, endpoint, _ in questions if engine in read}
    if plane.by_control_models is None or (keys and not await plane.models_changed(keys)):
        return [], list(questions)
    known: list[HttpReply] = []
    left: list[Question] = []
    down: list[Question] = []
    for question in questions:
        engine, endpoint, _ = question
        models = endpoint.models if engine in engines else None
        if models is None or not models.index:
            left.append(question)
        elif endpoint.condition is Readiness.DOWN:
            down.append(question)
        else:
            known.append(HttpReply(endpoint, 200, _CONTENT_TYPE, models.index, OK if by_grpc else None))
    return known, left if known else [*left, *down]


def merge_ready(answers: list[Any]) -> list[dict[str, Any]]:
    """Join repository indexes to one of the models that are ready."""
    return [entry for entry in merge_index(answers) if entry.get("state") == _READY]


def _is_known(engine: Engine) -> bool:
    models = engine.spec.models
    return models.index == "known" and models.source == "probe" and bool(engine.spec.health.interval)
