"""Endpoints that join and leave an engine, and the share of those that join."""

import random
from collections import Counter
from dataclasses import replace
from time import monotonic

import pytest

from gateway.config.engine_specs import Balance, EndpointSpec, EngineSpec, HealthSpec
from gateway.protocol.engine_load import Readiness
from gateway.upstream.balancing import BY_WEIGHT, EVENLY
from gateway.upstream.engine import Engine

SPEC = EngineSpec("it", tuple(EndpointSpec(f"http://e{at}:80") for at in range(2)), slow_start=10.0)
NEW = EndpointSpec("http://new:80")


def ready(engine: Engine) -> Engine:
    for endpoint in engine.endpoints:
        endpoint.condition = Readiness.READY
    return engine


def chosen(engine: Engine, number: int = 4000) -> float:
    """The new endpoint's share of sequential requests."""
    counts: Counter[str] = Counter()
    for _ in range(number):
        endpoint = engine.choose(None, 0.0)
        assert endpoint is not None
        counts[endpoint.url] += 1
    return counts[NEW.url] / number


def test_endpoints_that_stay_keep_their_state() -> None:
    """Those that stay are the same objects; those that left are returned, and found by no URL any more."""
    engine = Engine(replace(SPEC, slow_start=0.0))
    one, other = engine.endpoints
    one.in_flight = 3
    left = engine.set_endpoints([NEW, EndpointSpec(one.url)])
    assert left == [other] and engine.endpoint(other.url) is None
    assert engine.endpoints[1] is one and one.in_flight == 3
    assert engine.set_endpoints([]) and engine.choose("s", 0.0) is None and not engine.is_ready
    other_name = EndpointSpec(one.url, host="name.test")
    assert engine.set_endpoints([other_name]) == [] and engine.endpoints[0] is not one


@pytest.mark.parametrize("balance", [Balance.POWER_OF_TWO, Balance.ROUND_ROBIN, Balance.LEAST_OUTSTANDING])
def test_a_new_endpoint_gets_little_at_first(balance: Balance) -> None:
    """Its share grows from a tenth of that of the others to the same, counted from when it is ready."""
    random.seed(3)
    engine = ready(Engine(replace(SPEC, balance=balance)))
    engine.ramp(100.0)
    assert engine._draw is EVENLY  # those that started together have equal shares
    engine.ramp(200.0)
    engine.set_endpoints([*SPEC.endpoints, NEW])
    new = engine.endpoint(NEW.url)
    assert new is not None
    engine.ramp(300.0)
    assert new.weight == pytest.approx(0.1)  # it is not ready yet
    ready(engine)
    engine.ramp(400.0)
    assert chosen(engine) == pytest.approx(0.1 / 2.1, abs=0.02)
    engine.ramp(405.0)
    assert chosen(engine) == pytest.approx(0.5 / 2.5, abs=0.03)
    engine.ramp(410.0)
    assert engine._draw is EVENLY and chosen(engine) == pytest.approx(1 / 3, abs=0.03)


def test_an_endpoint_that_recovers_starts_slowly() -> None:
    """One that was down, and is ready again, starts with a tenth; its sessions stay where hashing has them."""
    engine = ready(Engine(SPEC))
    engine.ramp(100.0)
    engine.ramp(200.0)
    one = engine.endpoints[0]
    names = [f"s{at}" for at in range(50)]
    before = [engine.by_session(engine.endpoints, name) for name in names]
    one.condition = Readiness.DOWN
    engine.ramp(300.0)
    one.condition = Readiness.READY
    engine.ramp(301.0)
    assert (one.weight, one.share, engine._draw) == (pytest.approx(0.1), 1.0, BY_WEIGHT)
    assert [engine.by_session(engine.endpoints, name) for name in names] == before
    engine.ramp(312.0)
    assert one.weight == 1.0


def test_without_probes_an_endpoint_starts_when_it_joins() -> None:
    """Where nothing is probed, the ramp begins at once; weights of the rules are multiplied."""
    engine = Engine(replace(SPEC, health=HealthSpec(interval=0.0)))
    for endpoint in engine.endpoints:
        endpoint.ready_since = monotonic() - 100.0
    engine.set_endpoints([*SPEC.endpoints, replace(NEW, weight=4.0)])
    new = engine.endpoint(NEW.url)
    assert new is not None and new.ready_since is not None
    assert new.weight == pytest.approx(0.1 * 4 / 2, rel=0.01)
