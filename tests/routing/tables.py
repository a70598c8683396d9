"""Snapshots built by hand: routes and engines without files."""

from __future__ import annotations

from gateway.config.engine_specs import Balance, EndpointSpec, EngineSpec
from gateway.config.experiment_specs import ArmSpec, ExperimentSpec, ForcingSpec, LayerSpec
from gateway.config.specs import IdentitySpec, MatchSpec, RouteSpec, RulesSpec
from gateway.routing.table import Table

ENGINES = {
    "cpu": EngineSpec("cpu", (EndpointSpec("http://cpu:8000"),)),
    "gpu": EngineSpec("gpu", (EndpointSpec("http://gpu:8000"),)),
    "sticky": EngineSpec("sticky", (EndpointSpec("http://sticky:8000"),), balance=Balance.SESSION),
}


def table(
    *routes: RouteSpec,
    experiments: tuple[ExperimentSpec, ...] = (),
    number: int = 1,
    layers: tuple[LayerSpec, ...] = (),
    forcing: ForcingSpec | None = None,
) -> Table:
    """Compile the routes over the engines cpu, gpu (power of two) and sticky (by session)."""
    named = {experiment.name: experiment for experiment in experiments}
    named_layers = {layer.name: layer for layer in layers}
    rules = RulesSpec(
        ENGINES, routes, named, IdentitySpec(), digest="d1", layers=named_layers, forcing=forcing or ForcingSpec()
    )
    return Table(rules, number)


def to(engine: str, name: str = "", match: MatchSpec | None = None, model: str | None = None) -> RouteSpec:
    """A route to an engine, named for it unless named otherwise."""
    return RouteSpec(name or engine, match or MatchSpec(), engine=engine, model=model)


def by(experiment: str, name: str = "", match: MatchSpec | None = None, model: str | None = None) -> RouteSpec:
    """A route to the arms of an experiment, named for it unless named otherwise."""
    return RouteSpec(name or experiment, match or MatchSpec(), experiment=experiment, model=model)


def split(name: str, unit: str = "session", **weights: float) -> ExperimentSpec:
    """An experiment with one arm for each engine, named for it."""
    return ExperimentSpec(name, tuple(ArmSpec(engine, engine, weight) for engine, weight in weights.items()), unit)
