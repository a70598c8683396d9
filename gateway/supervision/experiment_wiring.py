"""The experiment controller of one gateway, connected to its workers, rules and Redis."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from gateway.config.settings import Settings
from gateway.config.specs import RulesSpec
from gateway.control.messages import SetWeights
from gateway.experiments.controller import ExperimentController, GatewayActions, RulesNotWritten
from gateway.experiments.coordination import LocalCoordination
from gateway.experiments.redis_coordination import RedisCoordination
from gateway.observability.arm_stats import ArmCounts, ArmKey
from gateway.redis.bounded_client import Store
from gateway.rule_versions.editor import Edit, RuleTexts, set_weights
from gateway.rule_versions.version import EditError, RulesRefused
from gateway.supervision.redis_setup import data_dir_of
from gateway.supervision.replicas import Replicas
from gateway.supervision.worker_pool import WorkerPool


class ApplyEdit(Protocol):
    """Put the edited rules in force. Raises: EditError, RulesRefused."""

    def __call__(self, edit: Edit, author: str, reason: str, source: str) -> Awaitable[object]: ...


def make_experiments(
    settings: Settings,
    workers: WorkerPool,
    replicas: Replicas,
    store: Store | None,
    change: ApplyEdit,
    rules: Callable[[], RulesSpec],
) -> ExperimentController:
    """Experiments are coordinated through Redis; without it they are this gateway's, stored in its data folder."""
    actions = GatewayActions(
        _counter(workers),
        lambda weights, runs: workers.set(SetWeights(weights, runs)),
        _writer(change),
        replicas.experiment_changed,
        lambda: _in_flight(workers, rules()),
    )
    if store is not None:
        shared = RedisCoordination(store, f"{replicas.name}:{secrets.token_hex(2)}", tick=settings.experiment_tick)
        return ExperimentController(shared, actions, tick=settings.experiment_tick)
    folder = data_dir_of(settings)
    local = LocalCoordination(folder / "experiments" if folder is not None else None)
    return ExperimentController(local, actions, tick=settings.experiment_tick)


def _counter(workers: WorkerPool) -> Callable[[], Awaitable[Mapping[ArmKey, ArmCounts]]]:
    async def count() -> Mapping[ArmKey, ArmCounts]:
        await workers.count()
        return workers.counters.arms()

    return count


def _in_flight(workers: WorkerPool, rules: RulesSpec) -> Mapping[ArmKey, int]:
    """Requests in flight by arm: all that is seen of an engine that hangs."""
    experiments = {route.name: route.experiment for route in rules.routes if route.experiment is not None}
    found: Counter[ArmKey] = Counter()
    for key, series in workers.counters.series().items():
        if key.route in experiments and key.arm:
            found[ArmKey(experiments[key.route], key.arm)] += series.in_flight
    return found


def _writer(change: ApplyEdit) -> Callable[[str, Mapping[str, float], str, str], Awaitable[None]]:
    async def write(experiment: str, weights: Mapping[str, float], author: str, reason: str) -> None:
        def edit(texts: RuleTexts) -> None:
            set_weights(texts, experiment, weights)

        try:
            await change(edit, author, reason, "experiment")
        except (EditError, RulesRefused) as error:
            raise RulesNotWritten(str(error)) from error

    return write
