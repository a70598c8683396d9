"""Several servers' answers as one: what a fleet says where Triton speaks for one server.

Source: Triton's statistics and model repository extensions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Json = dict[str, Any]


def merge_statistics(answers: Iterable[Json]) -> Json:
    """Add up `{"model_stats": [...]}` by model and version: counts and times are summed, the last inference is the
    latest, batch sizes and memory uses are joined."""
    merged: dict[tuple[str, str], Json] = {}
    for answer in answers:
        for model in _objects(answer.get("model_stats")):
            key = (str(model.get("name")), str(model.get("version")))
            merged[key] = _add(merged[key], model) if key in merged else model
    return {"model_stats": [merged[key] for key in sorted(merged)]}


def merge_index(answers: Iterable[list[Json]]) -> list[Json]:
    """Join repository indexes: each model and version once, READY where some server has it ready."""
    merged: dict[tuple[str, str], Json] = {}
    for answer in answers:
        for model in _objects(answer):
            key = (str(model.get("name")), str(model.get("version", "")))
            known = merged.get(key)
            if known is None or (known.get("state") != "READY" and model.get("state") == "READY"):
                merged[key] = model
    return [merged[key] for key in sorted(merged)]


def merge_regions(answers: Iterable[list[Json]]) -> list[Json]:
    """Join shared-memory registrations: each region once."""
    merged: dict[str, Json] = {}
    for answer in answers:
        for region in _objects(answer):
            merged.setdefault(str(region.get("name")), region)
    return [merged[name] for name in sorted(merged)]


def _objects(listed: Any) -> list[Json]:
    """The entries of a list that have the protocol's shape."""
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []


def _add(one: Json, other: Json) -> Json:
    return {key: _add_field(key, one.get(key), other.get(key)) for key in one | other}


def _add_field(key: str, one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    if key == "last_inference":
        return max(one, other)
    if key == "batch_stats":
        return _add_batches(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return _add(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return one + other
    if isinstance(one, int | float) and isinstance(other, int | float) and key != "batch_size":
        return one + other
    return one


def _add_batches(one: list[Json], other: list[Json]) -> list[Json]:
    by_size: dict[int, Json] = {}
    for batch in [*one, *other]:
        size = batch.get("batch_size", 0)
        by_size[size] = _add(by_size[size], batch) if size in by_size else batch
    return [by_size[size] for size in sorted(by_size)]
