"""New rules in a worker that serves: compiled in steps, and the old ones freed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

from gateway.config.settings import Settings
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.snapshot import Snapshot
from gateway.dataplane.context.worker_counters import counters_in_parts, counters_of
from gateway.observability.metrics import SeriesKey
from gateway.protocol.advertised_models import AdvertisedModels
from gateway.protocol.engine_load import Load, Readiness
from gateway.upstream.endpoint import Endpoint
from tests.dataplane.grpc.peers import GrpcClient, GrpcEngine
from tests.dataplane.grpc.stage import GrpcStage, grpc_rules, many, request
from tests.dataplane.grpc.test_engine_peers import scene
from tests.dataplane.grpc.test_unary_call import answer
from tests.dataplane.stage import Engine, load, post, until

INFER = "/inference.GRPCInferenceService/ModelInfer"
TENSOR = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}'
ONE = "  - {name: all, engine: it}\n"
EXPERIMENT = """
  - {name: split, match: {model: "*"}, experiment: x}
  - {name: all, engine: it}
experiments:
  x:
    unit: 'header:x-user'
    arms: [{name: one, engine: it, weight: 1}, {name: two, engine: it, weight: 1}]
"""


@contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_requests_are_served_between_the_steps_of_a_reload(tmp_path: Path) -> None:
    """There is a step for each route and each engine; until the last of them requests are served by the old rules."""
    many = "".join(f"  - {{name: r{at}, match: {{model: m{at}}}, engine: it}}\n" for at in range(200))

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        steps = it.plane.change_rules(load(grpc_rules(engine, routes=many), tmp_path), 2)
        served_by = [number_of_routes(it) for _ in steps]
        assert served_by == sorted(served_by)
        assert served_by.count(1) > 3 * 200  # compiled, with a target, with the fields that it uses
        call = client.call(INFER)
        await call.send(request("m7"), ended=True)
        assert (await call.over()).value("x-pointsman-route") == "r7"

    scene(tmp_path, play, GrpcEngine(answer))


URL = "http://127.0.0.1:1"
KEY = "it", URL
# Kinds of changes that come while rules are compiled: what makes one, and what shows it.
CHANGES: dict[str, tuple[Callable[[DataPlane], None], Callable[[Snapshot], object]]] = {
    "drained": (lambda plane: plane.set_drained(frozenset({KEY})), lambda it: endpoint_of(it).is_draining),
    "condition": (
        lambda plane: plane.update_health({KEY: Readiness.DOWN}),
        lambda it: endpoint_of(it).condition is Readiness.DOWN,
    ),
    "health": (
        lambda plane: plane.set_health({KEY: Readiness.DOWN}),
        lambda it: endpoint_of(it).condition is Readiness.DOWN,
    ),
    "models": (
        lambda plane: plane.update_health({}, {KEY: AdvertisedModels(frozenset("m"))}),
        lambda it: endpoint_of(it).models is not None,
    ),
    "load": (
        lambda plane: plane.update_health({}, {}, {KEY: Load(running=7)}),
        lambda it: endpoint_of(it).pressure == 7,
    ),
    "weights": (
        lambda plane: plane.set_weights({"x": {"one": 0.0, "two": 1.0}}, {"x": 3}),
        lambda it: it.table.splits["x"].shares == {"one": 0.0, "two": 1.0},
    ),
}


def endpoint_of(snapshot: Snapshot) -> Endpoint:
    return snapshot.engines["it"].endpoints[0]


@pytest.mark.parametrize("kind", CHANGES)
def test_what_changes_during_a_reload_holds_at_once_and_afterwards(tmp_path: Path, kind: str) -> None:
    """At whichever step of a reload it comes: requests by the old rules see it at once, those by the new ones later."""
    arms = "arms: [{name: one, engine: it, weight: 1}, {name: two, engine: it, weight: 1}]"
    text = (
        f"version: 1\nengines: {{it: {{endpoints: ['{URL}'], connections: {{max_connections: %d}}}}}}\n"
        f"routes: [{{name: r, experiment: x}}]\nexperiments: {{x: {{unit: 'header:x-user', {arms}}}}}\n"
    )
    before, after = load(text % 1, tmp_path), load(text % 2, tmp_path)  # the new rules have an endpoint of their own
    change, is_seen = CHANGES[kind]

    async def scene() -> None:
        at, steps_left = 1, True
        while steps_left:
            plane = DataPlane(Settings(), before, 1, {})
            steps = plane.change_rules(after, 2)
            steps_left = len(list(islice(steps, at))) == at
            assert not is_seen(plane.snapshot)
            change(plane)
            assert is_seen(plane.snapshot)
            for _ in steps:
                assert is_seen(plane.snapshot)
            assert plane.snapshot.number == 2
            assert is_seen(plane.snapshot)
            plane.close()
            at += 1
        assert at > 10

    asyncio.run(scene())


def number_of_routes(it: GrpcStage) -> int:
    return len(it.plane.snapshot.table.routes)


@pytest.mark.pure_python
def test_replaced_rules_are_freed_at_once(tmp_path: Path) -> None:
    """When the last connection that had requests under old rules has closed, nothing keeps them: no circle that waits
    for the collector, which does not look at what a worker has compiled."""

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        async def ask() -> None:
            client = await it.grpc()  # a connection keeps the last heads that it had
            rest = await it.client()
            for user in ("ann", "bob", "ann"):
                call = client.call(INFER, ("x-user", user))
                await call.send(request(), ended=True)
                assert (await call.over()).status == 0
                assert (await rest.ask(post("/v2/models/m/infer", TENSOR, f"x-user: {user}"))).status == 200
                assert (await rest.ask(post("/v2/models/rest/infer", b"{}", f"x-user: {user}"))).status == 200
            client.abort()
            rest.close()
            await until(lambda: len(it.plane.connections) == 1)

        def rules(routes: str) -> Any:
            text = many(
                {"it": engine, "rest": plain}, "  - {name: rest, match: {model: rest}, engine: rest}\n" + routes
            )
            return load(text, tmp_path)

        plain = Engine()
        await plain.start()
        for number, routes in enumerate((EXPERIMENT, ONE, EXPERIMENT), 2):
            it.plane.use_rules(rules(routes), number)
            await ask()
            with no_collector():
                old = [ref(it.plane.snapshot), ref(it.plane.snapshot.table.routes[-1])]
                it.plane.use_rules(rules(ONE), number)
                await until(lambda old=old: not any(each() for each in old))
        plain.stop()

    scene(tmp_path, play, GrpcEngine(answer))


def test_counters_of_many_series_come_in_parts(tmp_path: Path) -> None:
    """No part has more than a few dozen series; together they are all, and the last has the rest."""

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        for at in range(500):
            it.plane.metrics.series(SeriesKey(f"r{at}"))
        *parts, last = counters_in_parts(it.plane)
        assert max(len(part.series) for part in parts) <= 32
        assert sum(len(part.series) for part in parts) == 501
        assert (last.series, last.connections) == ({}, 1)
        assert counters_of(it.plane).series == it.plane.metrics.by_key
        assert list(counters_of(it.plane).breakers_open.values()) == [False]

    scene(tmp_path, play, GrpcEngine(answer))
