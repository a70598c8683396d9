"""Endpoints of different weights get their share of the requests, with every balance."""

import random
from collections import Counter
from itertools import count

import pytest

from gateway.config.engine_specs import Balance, EndpointSpec, EngineSpec
from gateway.upstream.balancing import BY_WEIGHT, EVENLY, by_session, shares
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.engine import Engine

NOW = 100.0


def engine(balance: Balance, *weights: float) -> Engine:
    """http://e0:80 and so on, with these weights."""
    endpoints = tuple(EndpointSpec(f"http://e{index}:80", weight=weight) for index, weight in enumerate(weights))
    made = Engine(EngineSpec("it", endpoints, balance=balance))
    for endpoint in made.endpoints:
        endpoint.latency = 0.01
        endpoint.is_draining = not endpoint.engine.endpoints[int(endpoint.url[8])].weight
    return made


def parts(counts: Counter[str], number: int) -> list[float]:
    total = sum(counts.values())
    return [counts[f"http://e{index}:80"] / total for index in range(number)]


@pytest.mark.parametrize("balance", list(Balance))
@pytest.mark.parametrize("weights", [(1, 3), (1, 2, 5), (0.1, 0.1, 0.2), (10, 10, 20, 40)])
def test_idle_endpoints_get_their_part(balance: Balance, weights: tuple[float, ...]) -> None:
    """Sequential requests with distinct sessions and prompts are distributed in proportion to the weights."""
    random.seed(1)
    it = engine(balance, *weights)
    counts: Counter[str] = Counter()
    for turn in range(6000):
        prompt = b"%d " % turn * 400 if turn % 2 else None
        chosen = it.choose(f"s{turn}", NOW, prompt=prompt)
        assert chosen is not None
        counts[chosen.url] += 1
    assert parts(counts, len(weights)) == pytest.approx([weight / sum(weights) for weight in weights], abs=0.03)


@pytest.mark.parametrize("balance", [Balance.LEAST_OUTSTANDING, Balance.POWER_OF_TWO, Balance.LATENCY, Balance.PREFIX])
def test_busy_endpoints_have_requests_by_their_weights(balance: Balance) -> None:
    """Under a load of sixty concurrent requests, each endpoint has about its share of them."""
    random.seed(2)
    it = engine(balance, 1, 2, 3)
    under_way: list[Endpoint] = []
    seen: Counter[str] = Counter()
    for turn in range(6000):
        chosen = it.choose(None, NOW)
        assert chosen is not None
        chosen.in_flight += 1
        under_way.append(chosen)
        if len(under_way) > 60:
            under_way.pop(random.randrange(len(under_way))).in_flight -= 1
        if turn > 500:
            for endpoint in it.endpoints:
                seen[endpoint.url] += endpoint.in_flight
    assert parts(seen, 3) == pytest.approx([1 / 6, 2 / 6, 3 / 6], abs=0.06)


def test_turns_are_as_even_as_weights_allow() -> None:
    """Turns are as even as the weights allow: 3 and 1 make rounds of four."""
    it = engine(Balance.ROUND_ROBIN, 3, 1)
    turns = [it.choose(None, NOW) for _ in range(400)]
    rounds = [Counter(turns[start : start + 4]) for start in range(0, 400, 4)]
    assert all(counted[it.endpoints[1]] == 1 for counted in rounds)


@pytest.mark.parametrize("balance", list(Balance))
def test_a_weight_of_zero_gets_nothing_while_there_is_another(balance: Balance) -> None:
    """An endpoint of weight 0 is treated like a drained one: it serves only where no other can."""
    it = engine(balance, 1, 0)
    chosen = {it.choose(f"s{turn}", NOW) for turn in range(200)}
    assert chosen == {it.endpoints[0]}
    assert it.choose("s", NOW, tried=(it.endpoints[0],)) is it.endpoints[1]


@pytest.mark.parametrize("balance", list(Balance))
def test_weights_of_zero_alone_share_the_work(balance: Balance) -> None:
    """Endpoints of weight 0 are equal where all have it, and where all others are excluded."""
    it = engine(balance, 1, 0, 0)
    gone = (it.endpoints[0],)
    found = Counter(it.choose(f"s{turn}", NOW, tried=gone) for turn in range(300))
    assert set(found) == set(it.endpoints[1:]) and min(found.values()) > 50
    assert shares([EndpointSpec("http://a:1", weight=0), EndpointSpec("http://b:1", weight=0)]) is None


def test_a_changed_weight_moves_its_own_sessions_alone() -> None:
    """A higher weight only takes sessions from the others; with equal weights sessions are where they are without
    weights."""
    sessions = [f"s{number}" for number in range(3000)]
    before, after = engine(Balance.SESSION, 1, 1, 1), engine(Balance.SESSION, 1, 1, 2)
    at = {session: before.by_session(before.endpoints, session).url for session in sessions}
    then = {session: after.by_session(after.endpoints, session).url for session in sessions}
    moved = [session for session in sessions if at[session] != then[session]]
    assert {then[session] for session in moved} == {"http://e2:80"}
    assert len(moved) / len(sessions) == pytest.approx(1 / 2 - 1 / 3, abs=0.03)
    assert all(
        by_session(BY_WEIGHT)(before.endpoints, session) is by_session(EVENLY)(before.endpoints, session)
        for session in sessions
    )


def test_equal_weights_are_as_none() -> None:
    """Equal weights of any value count as no weights."""
    assert [endpoint.weight for endpoint in engine(Balance.POWER_OF_TWO, 7, 7).endpoints] == [1.0, 1.0]
    assert shares([EndpointSpec("http://a:1", weight=7), EndpointSpec("http://b:1", weight=7)]) is None


def test_prompts_stay_where_they_were_seen_whatever_the_weights() -> None:
    """A prompt goes to the endpoint that served its beginning, unless that one is too busy for its weight."""
    it = engine(Balance.PREFIX, 1, 3)
    for number in range(50):
        prompt = b"%d" % number * 3000
        first = it.choose(None, NOW, prompt=prompt)
        assert it.choose(None, NOW, prompt=prompt + b"more") is first


def test_an_endpoint_lives_on_with_its_new_weight() -> None:
    """An endpoint with a new weight keeps its connections and its breaker."""
    before = engine(Balance.POWER_OF_TWO, 1, 1)
    known = {endpoint.url: endpoint for endpoint in before.endpoints}
    specs = (EndpointSpec("http://e0:80"), EndpointSpec("http://e1:80", weight=3))
    after = Engine(EngineSpec("it", specs, balance=Balance.POWER_OF_TWO), known)
    assert after.endpoints == before.endpoints
    assert [endpoint.weight for endpoint in after.endpoints] == [0.5, 1.5]


def test_turns_begin_anywhere() -> None:
    """Workers start anywhere in the round."""
    firsts = Counter(engine(Balance.ROUND_ROBIN, 2, 1).choose(None, NOW).url for _ in zip(range(200), count()))  # type: ignore[union-attr]
    assert len(firsts) == 2
