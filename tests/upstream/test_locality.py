"""Levels of endpoints, by priority and by zone: who gets work while the first ones are healthy, and afterwards."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from gateway.config.engine_specs import Balance, EndpointSpec, EngineSpec, LocalitySpec, ModelsSpec
from gateway.protocol.advertised_models import read_model_list
from gateway.protocol.engine_load import Readiness
from gateway.upstream.engine import Engine
from gateway.upstream.locality import loads

NEAR = tuple(EndpointSpec(f"http://a{at}:80", zone="a") for at in range(4))
FAR = tuple(EndpointSpec(f"http://b{at}:80", zone="b") for at in range(4))
SPARE = (EndpointSpec("http://spare:80", zone="a", priority=1),)
SPEC = EngineSpec("it", (*NEAR, *FAR, *SPARE), locality=LocalitySpec("a"))


def engine_of(spec: EngineSpec = SPEC) -> Engine:
    engine = Engine(spec)
    for endpoint in engine.endpoints:
        endpoint.condition = Readiness.READY
    return engine


def let_down(engine: Engine, *urls: str) -> None:
    for url in urls:
        endpoint = engine.endpoint(url)
        assert endpoint is not None
        endpoint.condition = Readiness.DOWN


def shares(engine: Engine, number: int = 4000) -> Counter[str]:
    """The part of the requests that each level gets: a, b and s."""
    counts: Counter[str] = Counter()
    for _ in range(number):
        endpoint = engine.choose(None, 0.0)
        assert endpoint is not None
        counts[endpoint.url.removeprefix("http://")[0]] += 1
    return Counter({level: count / number for level, count in counts.items()})


@pytest.mark.parametrize(
    "health, share, expected",
    [
        ([1.0, 1.0], 0.7, [1.0, 0.0]),
        ([0.7, 1.0], 0.7, [1.0, 0.0]),
        ([0.35, 1.0], 0.7, [0.5, 0.5]),
        ([0.0, 1.0], 0.7, [0.0, 1.0]),
        ([0.35, 0.175, 1.0], 0.7, [0.5, 0.25, 0.25]),
        ([0.14, 0.14], 0.7, [0.5, 0.5]),  # short of endpoints: each its part of the whole
        ([0.25, 0.25], 1 / 1.4, [0.5, 0.5]),  # as the table in Envoy's documentation
        ([0.5, 0.0], 1.0, [1.0, 0.0]),
        ([0.9, 1.0], 1.0, [0.9, 0.1]),
    ],
)
def test_loads(health: list[float], share: float, expected: list[float]) -> None:
    assert loads(health, share) == pytest.approx(expected)


def test_the_own_zone_gets_all_work_while_enough_of_it_is_healthy() -> None:
    """Three of four are 75 %; with two of four, the other zone gets what is missing of 70 %."""
    engine = engine_of()
    assert shares(engine) == {"a": 1.0}
    let_down(engine, "http://a0:80")
    assert shares(engine) == {"a": 1.0}
    let_down(engine, "http://a1:80")
    assert shares(engine)["a"] == pytest.approx(0.5 / 0.7, abs=0.05)
    let_down(engine, "http://a2:80", "http://a3:80")
    assert shares(engine) == {"b": 1.0}
    let_down(engine, *(each.url for each in FAR))
    assert shares(engine) == {"s": 1.0}


def test_drained_and_failing_endpoints_are_not_healthy() -> None:
    """Nor do endpoints of weight 0 count, which get no work anyway."""
    engine = engine_of()
    engine.set_drained([("it", each.url) for each in NEAR[:3]])
    assert shares(engine)["a"] == pytest.approx(0.25 / 0.7, abs=0.05)
    engine = engine_of()
    for endpoint in engine.endpoints[:4]:
        for _ in range(engine.spec.breaker.failures):
            endpoint.breaker.failed(0.0)
    assert shares(engine) == {"b": 1.0}
    weightless = tuple(replace(each, weight=0.0) for each in NEAR[:3])
    engine = engine_of(replace(SPEC, endpoints=(*weightless, NEAR[3], *FAR)))
    engine.set_drained([])
    assert shares(engine) == {"a": 1.0}


def test_an_attempt_after_all_of_the_first_level_goes_to_the_next() -> None:
    engine = engine_of()
    chosen = engine.choose(None, 0.0, tried=engine.endpoints[:4])
    assert chosen in engine.endpoints[4:8]


def test_all_are_one_level_without_zone_and_priority() -> None:
    """A zone that the rules do not name the gateway's own changes nothing; discovery may find levels later."""
    engine = engine_of(replace(SPEC, endpoints=(*NEAR, *FAR), locality=LocalitySpec()))
    assert engine.levels is None
    engine.set_endpoints([*NEAR, *SPARE])
    assert engine.levels is not None
    for endpoint in engine.endpoints:
        endpoint.condition = Readiness.READY
    assert shares(engine) == {"a": 1.0}


def test_endpoints_of_the_model_count() -> None:
    """A model that one near endpoint of four serves is served there alone: the far ones wait for it to fail."""
    engine = engine_of(replace(SPEC, endpoints=(*NEAR, *FAR), models=ModelsSpec()))
    for endpoint in engine.endpoints:
        name = "rare" if endpoint.url[7:9] in ("a0", "b0") else "other"
        endpoint.models = read_model_list(b'{"data": [{"id": "%s"}]}' % name.encode())
    engine.lists_changed(engine.endpoints)
    chosen = {engine.choose(None, 0.0, model=("rare", "")) for _ in range(50)}
    assert chosen == {engine.endpoint("http://a0:80")}
    let_down(engine, "http://a0:80")
    assert engine.choose(None, 0.0, model=("rare", "")) is engine.endpoint("http://b0:80")


def test_a_session_keeps_its_level() -> None:
    """With half of the first level down, each session has one endpoint, and about the right part is far."""
    engine = engine_of(replace(SPEC, balance=Balance.SESSION))
    let_down(engine, "http://a0:80", "http://a1:80")
    far = 0
    for number in range(400):
        chosen = {engine.choose(f"s{number}", 0.0) for _ in range(3)}
        assert len(chosen) == 1
        far += chosen <= set(engine.endpoints[4:])
    assert far / 400 == pytest.approx(1 - 0.5 / 0.7, abs=0.08)
