"""The rules in force, and their routes, by the admin API."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import FastAPI

from gateway.admin.auth import Viewer
from gateway.admin.redaction import redacted_condition
from gateway.admin.rule_versions import version_json
from gateway.config.specs import MatchSpec, RulesSpec
from gateway.supervision.control_plane import ControlPlane

Json = dict[str, Any]


def add_rules(app: FastAPI, control: ControlPlane) -> None:
    book, manager = control.book, control.rule_manager

    @app.get("/rules", tags=["rules"])
    async def show_rules(_: Viewer) -> Json:
        """The rules in force, the findings of the last reading of their files, and the rules of other gateways."""
        return {
            "number": book.number,
            "version": version_json(book.in_force),
            "shared": manager.is_shared,
            "digest": book.rules.digest,
            "files": list(book.files),
            "problems": list(manager.problems),
            "replicas": [
                {"name": replica.name, "digest": replica.digest, "number": replica.number}
                for replica in control.replicas.known
            ],
            "routes": routes_json(book.rules),
        }

    @app.get("/routes", tags=["rules"])
    async def list_routes(_: Viewer) -> Json:
        """The routes in the order in which they are tried, with their conditions and targets."""
        return {"routes": routes_json(book.rules)}


def routes_json(rules: RulesSpec) -> list[Json]:
    return [
        {
            "name": route.name,
            "match": _match(route.match),
            "engine": route.engine,
            "experiment": route.experiment,
            "model": route.model,
            "fallback": [fallback.text for fallback in route.fallback],
            "resume": route.resume,
            "history": asdict(route.session.history) if route.session.history is not None else None,
            "replay": asdict(route.session.replay) if route.session.replay is not None else None,
            "location": str(route.location) if route.location else None,
        }
        for route in rules.routes
    ]


def _match(match: MatchSpec) -> Json:
    conditions: Json = {name: getattr(match, name) for name in MatchSpec.__slots__ if getattr(match, name)}
    for part in conditions.keys() & {"header", "parameter"}:
        conditions[part] = {name: redacted_condition(name, expected) for name, expected in conditions[part].items()}
    if match.has_image is not None:
        conditions["has_image"] = match.has_image
    if match.input:
        conditions["input"] = [{name: getattr(each, name) for name in each.__slots__} for each in match.input]
    return conditions
