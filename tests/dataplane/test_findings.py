"""Probe results, as the data plane applies them."""

from __future__ import annotations

from pathlib import Path

from gateway.dataplane.context.worker_counters import counters_of
from gateway.observability.stats import PrefixUse
from gateway.protocol.advertised_models import AdvertisedModels
from gateway.protocol.engine_load import Load, Readiness
from tests.dataplane.stage import Engine, load, rules, run, stage

READY, DOWN = Readiness.READY, Readiness.DOWN


def test_endpoints_know_what_probes_found(tmp_path: Path) -> None:
    """Each update has the condition of every endpoint, but only the changed models and loads; new rules keep them
    all."""

    async def scene() -> None:
        llama = AdvertisedModels(frozenset({"llama"}))
        engines = [Engine(), Engine()]
        for engine in engines:
            await engine.start()
        async with stage(rules(*engines), tmp_path) as it:
            one, other = it.endpoints()
            one.in_flight = 1
            keys = ("it", one.url), ("it", other.url)
            found = {keys[0]: READY, keys[1]: READY}
            it.plane.update_health(found, {keys[0]: llama}, {keys[0]: Load(3), keys[1]: Load(2)})
            assert [endpoint.models for endpoint in (one, other)] == [llama, None]
            assert [(endpoint.others, endpoint.condition) for endpoint in (one, other)] == [(2, READY), (2, READY)]
            one.in_flight = 3
            it.plane.update_health({keys[1]: DOWN, ("gone", "http://a:1"): DOWN}, loads={keys[1]: None})
            assert [(endpoint.others, endpoint.condition) for endpoint in (one, other)] == [(2, READY), (0, DOWN)]
            it.plane.use_rules(load(rules(*engines, options="timeout: 5s"), tmp_path), 2)
            assert [endpoint.others for endpoint in it.endpoints()] == [2, 0]
            fresh = rules(*engines, options="connections: {max_connections: 3}")
            it.plane.use_rules(load(fresh, tmp_path), 3)
            assert [endpoint.models for endpoint in it.endpoints()] == [llama, None]
            assert [endpoint.condition for endpoint in it.endpoints()] == [READY, DOWN]
            one.in_flight = 0
        for engine in engines:
            engine.stop()

    run(scene())


def test_what_is_known_of_prompts_survives_new_rules(tmp_path: Path) -> None:
    """An engine keeps its prefix index when new rules are loaded."""

    async def scene() -> None:
        engines = [Engine(), Engine()]
        for engine in engines:
            await engine.start()
        async with stage(rules(*engines, options="balance: prefix"), tmp_path) as it:
            before = it.plane.snapshot.engines["it"]
            chosen = before.choose(None, 1.0, (), 1024 * b"x")
            it.plane.use_rules(load(rules(*engines, options="balance: prefix\n    timeout: 5s"), tmp_path), 2)
            after = it.plane.snapshot.engines["it"]
            assert after is not before and after.prefixes is before.prefixes
            chosen.in_flight = 2
            assert after.choose(None, 1.0, (), 1024 * b"x") is chosen
            chosen.in_flight = 0
            assert counters_of(it.plane).prefixes["it"] == PrefixUse(
                requests=2, followed=1, blocks=8, followed_blocks=4
            )
        for engine in engines:
            engine.stop()

    run(scene())
