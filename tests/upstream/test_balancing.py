"""Choosing among endpoints."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from gateway.config.engine_specs import Balance, EndpointSpec, EngineSpec
from gateway.upstream import balancing
from gateway.upstream.balancing import EVENLY, POLICIES, Choose
from gateway.upstream.endpoint import Endpoint


def endpoints(number: int = 3, latency: float = 0.0) -> list[Endpoint]:
    """http://e0:80, http://e1:80 and so on, all idle."""
    made = [Endpoint(EngineSpec("it", ()), EndpointSpec(f"http://e{index}:80"), None) for index in range(number)]
    for endpoint in made:
        endpoint.latency = latency
    return made


def choices(
    choose: Choose,
    among: list[Endpoint],
    number: int = 300,
    session: Callable[[int], str | None] = lambda number: None,
) -> Counter[str]:
    """How often each endpoint is chosen, where no request stays in flight."""
    return Counter(choose(among, session(turn)).url for turn in range(number))


def test_round_robin_takes_turns() -> None:
    """Every endpoint gets the same number of requests, in turns."""
    among = endpoints()
    choose = balancing.round_robin(EVENLY)
    turns = [choose(among, None) for _ in range(300)]
    assert set(Counter(turns).values()) == {100}
    assert all(one is not next_one for one, next_one in pairwise(turns))


def test_round_robin_of_workers_is_not_in_step() -> None:
    """Workers start anywhere in the round, so that the first endpoint does not get every worker's first request."""
    among = endpoints()
    assert len({balancing.round_robin(EVENLY)(among, None) for _ in range(100)}) == 3


@pytest.mark.parametrize("balance", list(Balance))
def test_equal_endpoints_share_the_work(balance: Balance) -> None:
    """Among equal endpoints none is preferred."""
    counts = choices(POLICIES[balance](EVENLY), endpoints(), session=lambda turn: f"s{turn}")
    assert min(counts.values()) > 50, counts


@pytest.mark.parametrize("balance", list(Balance))
def test_a_single_endpoint_is_chosen(balance: Balance) -> None:
    """A single endpoint is chosen, however busy it is."""
    among = endpoints(1)
    among[0].in_flight = 1000
    assert POLICIES[balance](EVENLY)(among, "s") is among[0]


@pytest.mark.parametrize("balance", [Balance.LEAST_OUTSTANDING, Balance.POWER_OF_TWO, Balance.LATENCY])
def test_a_busy_endpoint_gets_less(balance: Balance) -> None:
    """An endpoint with many requests in flight gets no further ones."""
    among = endpoints(latency=0.01)
    among[0].in_flight = 50
    assert choices(POLICIES[balance](EVENLY), among)["http://e0:80"] == 0


@pytest.mark.parametrize(
    "in_flight, chosen",
    [
        ((0, 0, 0), {0, 1, 2}),
        ((1, 0, 1), {1}),
        ((2, 2, 5), {0, 1}),
        ((9, 8, 8), {1, 2}),
    ],
)
def test_least_outstanding(in_flight: tuple[int, ...], chosen: set[int]) -> None:
    """The endpoint with the fewest requests in flight is chosen, at random among equals."""
    among = endpoints()
    for endpoint, number in zip(among, in_flight, strict=True):
        endpoint.in_flight = number
    assert set(choices(balancing.least_outstanding(EVENLY), among)) == {f"http://e{index}:80" for index in chosen}


@pytest.mark.parametrize("balance", [Balance.LEAST_OUTSTANDING, Balance.POWER_OF_TWO, Balance.LATENCY, Balance.PREFIX])
def test_what_others_have_there_counts(balance: Balance) -> None:
    """Requests of other gateways, as the engine reports them, count like the worker's own."""
    among = endpoints(2, latency=0.01)
    among[0].others, among[1].in_flight = 3, 2
    assert choices(POLICIES[balance](EVENLY), among) == {"http://e1:80": 300}


def test_power_of_two_avoids_the_busiest() -> None:
    """The less busy one of two random endpoints is chosen: never the busiest of all, the others by their rank."""
    among = endpoints(4)
    for index, endpoint in enumerate(among):
        endpoint.in_flight = index
    counts = choices(balancing.power_of_two(EVENLY), among, 600)
    assert counts["http://e3:80"] == 0
    assert counts["http://e0:80"] > counts["http://e1:80"] > counts["http://e2:80"] > 0


def test_a_slow_endpoint_gets_less() -> None:
    """`latency` sends fewer requests to an endpoint whose first bytes take longer."""
    among = endpoints(2)
    among[0].observe_latency(0.5)
    among[1].observe_latency(0.01)
    assert choices(POLICIES[Balance.LATENCY](EVENLY), among)["http://e1:80"] > 200
    for _ in range(100):
        among[0].observe_latency(0.001)
    assert choices(POLICIES[Balance.LATENCY](EVENLY), among)["http://e0:80"] > 200


def test_a_slow_endpoint_helps_a_busy_one() -> None:
    """The expected completion decides: ten in flight at 10 ms are worse than one at 50 ms."""
    among = endpoints(2)
    among[0].latency, among[1].latency = 0.01, 0.05
    among[0].in_flight = 10
    assert choices(POLICIES[Balance.LATENCY](EVENLY), among) == {"http://e1:80": 300}


def test_a_new_endpoint_is_tried_by_one_request() -> None:
    """An endpoint without a measured latency gets one request, and no second one before its first reply."""
    among = endpoints(2)
    among[0].latency = 0.5
    choose = POLICIES[Balance.LATENCY](EVENLY)
    assert choose(among, None) is among[1]
    among[1].in_flight = 1
    assert choices(choose, among) == {"http://e0:80": 300}
    among[0].in_flight = 1000
    assert choices(choose, among) == {"http://e0:80": 300}


def test_all_endpoints_are_new() -> None:
    """While no latency is measured the less busy one of two endpoints is chosen."""
    among = endpoints(2)
    among[0].in_flight, among[1].in_flight = 5, 4
    assert choices(POLICIES[Balance.LATENCY](EVENLY), among) == {"http://e1:80": 300}


def assignment(among: list[Endpoint]) -> dict[str, str]:
    return {f"s{number}": balancing.by_session(EVENLY)(among, f"s{number}").url for number in range(300)}


def test_sessions_stay_and_move_as_little_as_they_must() -> None:
    """A session always maps to the same endpoint, in any order of declaration. Removing an endpoint moves only its own
    sessions; adding one takes a share from all and moves none between the others."""
    among = endpoints()
    before = assignment(among)
    assert assignment(among[::-1]) == before
    during = assignment([among[0], among[2]])
    assert {session for session in before if during[session] != before[session]} == {
        session for session, url in before.items() if url == "http://e1:80"
    }
    after = assignment(endpoints(4))
    moved = {session: url for session, url in after.items() if url != before[session]}
    assert set(moved.values()) == {"http://e3:80"}
    assert 40 < len(moved) < 115
    assert {before[session] for session in moved} == {"http://e0:80", "http://e1:80", "http://e2:80"}


def test_sessions_are_the_same_everywhere() -> None:
    """All workers and machines, in every version, send a session to the same endpoint."""
    assert [balancing.by_session(EVENLY)(endpoints(), session).url for session in ("", "a", "session-0", "жук")] == [
        "http://e1:80",
        "http://e0:80",
        "http://e2:80",
        "http://e0:80",
    ]


def test_requests_without_a_session() -> None:
    """Without a session the less busy one of two endpoints is chosen."""
    among = endpoints()
    among[0].in_flight = 50
    assert choices(balancing.by_session(EVENLY), among)["http://e0:80"] == 0
