"""Choosing among endpoints."""

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from gateway.config.specs import Balance, EndpointSpec, EngineSpec
from gateway.protocol.condition import Condition
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.engine import Engine


def engine(balance: Balance, num_endpoints: int = 3) -> Engine:
    urls = tuple(EndpointSpec(f"http://e{number}:80") for number in range(num_endpoints))
    return Engine(EngineSpec("it", urls, balance=balance))


def choices(it: Engine, number: int = 300, session: Callable[[int], str | None] = lambda number: None) -> Counter[str]:
    found: Counter[str] = Counter()
    for turn in range(number):
        chosen = it.choose(session(turn), 0.0)
        assert chosen is not None
        found[chosen.url] += 1
    return found


def test_round_robin_takes_turns() -> None:
    """Every endpoint gets the same number of requests."""
    assert set(choices(engine(Balance.ROUND_ROBIN)).values()) == {100}


@pytest.mark.parametrize("balance", list(Balance))
def test_equal_endpoints_share_the_work(balance: Balance) -> None:
    """While all are alike none is preferred: nobody's bookkeeping pins one of them."""
    counts = choices(engine(balance), session=lambda turn: f"s{turn}")
    assert min(counts.values()) > 50, counts


@pytest.mark.parametrize("balance", [Balance.LEAST_OUTSTANDING, Balance.POWER_OF_TWO, Balance.LATENCY])
def test_a_busy_endpoint_gets_less(balance: Balance) -> None:
    """Requests in flight turn further ones away."""
    it = engine(balance)
    for endpoint in it.endpoints:
        endpoint.latency = 0.01
    it.endpoints[0].in_flight = 50
    counts = choices(it)
    assert counts["http://e0:80"] == 0


def test_a_slow_endpoint_gets_less() -> None:
    """`latency` turns requests away from an endpoint whose replies take longer, by the time to their first byte."""
    it = engine(Balance.LATENCY, 2)
    it.endpoints[0].observe_latency(0.5)
    it.endpoints[1].observe_latency(0.01)
    assert choices(it)["http://e1:80"] > 200
    for _ in range(100):
        it.endpoints[0].observe_latency(0.001)
    assert choices(it)["http://e0:80"] > 200


def test_sessions_stay_and_move_as_little_as_they_must() -> None:
    """A session always finds the same endpoint; when one goes, only its own sessions move, and come back with it."""
    it = engine(Balance.SESSION)

    def assignment() -> dict[str, str]:
        found = {}
        for number in range(300):
            chosen = it.choose(f"s{number}", 0.0)
            assert chosen is not None
            found[f"s{number}"] = chosen.url
        return found

    before = assignment()
    assert before == assignment()
    it.endpoints[1].condition = Condition.DOWN
    during = assignment()
    assert all(during[session] == url for session, url in before.items() if url != "http://e1:80")
    assert "http://e1:80" not in during.values()
    it.endpoints[1].condition = None
    assert assignment() == before


def test_who_may_be_chosen() -> None:
    """Ready before unready, never who is down, never who was tried; open breakers last, but not never."""
    it = engine(Balance.POWER_OF_TWO)
    one, two, three = it.endpoints

    def chosen(*tried: Endpoint) -> set[Endpoint | None]:
        return {it.choose(None, 0.0, tried) for _ in range(100)}

    assert chosen() == {one, two, three}
    assert chosen(one) == {two, three}
    one.condition = Condition.UNREADY
    assert chosen() == {two, three}
    assert chosen(two, three) == {one}
    two.condition = three.condition = Condition.DOWN
    assert chosen() == {one}
    one.condition = Condition.DOWN
    assert chosen() == {None}
    one.condition = two.condition = three.condition = Condition.READY
    for _ in range(5):
        one.breaker.failed(0.0)
    assert chosen() == {two, three}
    for endpoint in (two, three):
        for _ in range(5):
            endpoint.breaker.failed(0.0)
    assert chosen() == {one, two, three}


def test_a_new_declaration_keeps_what_fits() -> None:
    """An endpoint that is declared as before lives on with its state; one whose limits changed is made anew."""

    async def scene() -> None:
        before = engine(Balance.ROUND_ROBIN)
        before.endpoints[0].in_flight = 7
        known = {endpoint.url: endpoint for endpoint in before.endpoints}
        same = Engine(EngineSpec("it", before.spec.endpoints, timeout=5.0), known)
        assert same.endpoints == before.endpoints
        other = Engine(EngineSpec("it", before.spec.endpoints, breaker=type(before.spec.breaker)(failures=1)), known)
        assert not set(other.endpoints) & set(before.endpoints)

    asyncio.run(scene())
