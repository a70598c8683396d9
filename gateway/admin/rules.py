"""The rules in force by the admin API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Protocol

from fastapi import FastAPI

from gateway.admin.auth import Viewer
from gateway.admin.redaction import expected_cut
from gateway.admin.rule_versions import version_told
from gateway.config.specs import HistorySpec, MatchSpec, RulesSpec
from gateway.rule_versions.version import Version

Json = dict[str, Any]


class ReplicaDescription(Protocol):
    """A gateway that shares its Redis with others, and the rules that it has in force."""

    @property
    def name(self) -> str: ...

    @property
    def digest(self) -> str: ...

    @property
    def number(self) -> int: ...


class RulesState(Protocol):
    """Whoever has rules in force."""

    @property
    def rules(self) -> RulesSpec: ...

    @property
    def rules_number(self) -> int: ...

    @property
    def version_in_force(self) -> Version: ...

    @property
    def is_shared(self) -> bool:
        """Whether the gateways that share its Redis know what was put in force here."""
        ...

    @property
    def rule_files(self) -> Sequence[str]: ...

    @property
    def problems(self) -> Sequence[str]:
        """What the last reading of the rule files found, a line each, and what other gateways have."""
        ...

    @property
    def replicas(self) -> Sequence[ReplicaDescription]:
        """Those that share its Redis, itself first."""
        ...


def add_rules(app: FastAPI, state: RulesState) -> None:
    """Answer for `/rules`."""

    @app.get("/rules", tags=["rules"])
    async def rules(_: Viewer) -> Json:
        """The rules in force, what was wrong with the last reading of their files, and what other gateways use."""
        return {
            "number": state.rules_number,
            "version": version_told(state.version_in_force),
            "shared": state.is_shared,
            "digest": state.rules.digest,
            "files": list(state.rule_files),
            "problems": list(state.problems),
            "replicas": [
                {"name": replica.name, "digest": replica.digest, "number": replica.number} for replica in state.replicas
            ],
            "routes": routes_told(state.rules),
        }


def routes_told(rules: RulesSpec) -> list[Json]:
    return [
        {
            "name": route.name,
            "match": _match(route.match),
            "engine": route.engine,
            "experiment": route.experiment,
            "model": route.model,
            "resume": route.resume,
            "history": _history(route.session.history),
            "replay": asdict(route.session.replay) if route.session.replay is not None else None,
            "location": str(route.location) if route.location else None,
        }
        for route in rules.routes
    ]


def _history(history: HistorySpec | None) -> Json | None:
    """What is kept of conversations; None where nothing is."""
    return asdict(history) if history is not None else None


def _match(match: MatchSpec) -> Json:
    """The conditions that are set."""
    told: Json = {name: getattr(match, name) for name in MatchSpec.__slots__ if getattr(match, name)}
    for part in told.keys() & {"header", "parameter"}:
        told[part] = {name: expected_cut(name, expected) for name, expected in told[part].items()}
    if match.has_image is not None:
        told["has_image"] = match.has_image
    if match.input:
        told["input"] = [{name: getattr(each, name) for name in each.__slots__} for each in match.input]
    return told
