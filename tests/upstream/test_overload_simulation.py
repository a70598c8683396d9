"""At three times its capacity an engine does what it can, and replies stay fast; in simulated time."""

from random import Random

import pytest

from gateway.config.overload_specs import ConcurrencySpec, OverloadSpec, QueueSpec
from gateway.upstream.engine_admission import Refusal
from tests.upstream.overload_simulation import SimulatedRequest, Simulation, quantile

CAPACITY = 250.0  # ten servers that take 40 ms


def jitter(seconds):
    by_chance = Random(3)
    return lambda: by_chance.uniform(0.75, 1.25) * seconds


def goodput(simulation, since, level=None):
    ended = [each for each in simulation.ended if each.ended_at > since and level in (None, each.level)]
    return len(ended) / (simulation.now - since)


def latencies(simulation, since, level=0):
    return [
        each.ended_at - each.arrived_at for each in simulation.ended if each.ended_at > since and each.level == level
    ]


def test_goodput_stays_near_the_capacity_and_recovers_at_once():
    simulation = Simulation(OverloadSpec(), seconds=jitter(0.04))
    simulation.run(20, 3 * CAPACITY)
    assert goodput(simulation, 5) > 0.95 * CAPACITY
    assert quantile(latencies(simulation, 5), 0.5) < 0.15, "the latest are served first"
    simulation.run(2, CAPACITY / 2)
    fallen_at = simulation.now
    simulation.run(5, CAPACITY / 2)
    assert quantile(latencies(simulation, fallen_at), 0.99) < 0.1
    assert simulation.gate.waiting == {"default": 0}


def test_the_highest_class_hardly_notices_the_overload():
    by_chance = Random(5)

    def request(now):
        return SimulatedRequest(now, by_chance.choices((0, 1, 2), (0.2, 0.3, 0.5))[0])

    simulation = Simulation(OverloadSpec(), seconds=jitter(0.04), classes=("a", "b", "c"), weights=({}, {}, {}))
    simulation.run(40, 3 * CAPACITY, request)
    asked_for = 0.2 * 3 * CAPACITY
    assert goodput(simulation, 20, level=0) > 0.95 * asked_for, "none is refused"
    assert quantile(latencies(simulation, 20), 0.95) < 2 * 0.05
    assert not any(simulation.gate.refused["a", why.value] for why in Refusal)
    assert sum(simulation.gate.refused["c", why.value] for why in Refusal) > 1000


@pytest.mark.parametrize(("servers", "seconds"), [(8, 0.1), (10, 0.04), (24, 0.25)])
def test_the_p99_of_the_highest_class_is_at_most_twice_that_without_load(servers, seconds):
    """While the limit is found, and while trials and measurements change it later."""
    by_chance = Random(5)

    def request(now):
        return SimulatedRequest(now, by_chance.choices((0, 1, 2), (0.2, 0.3, 0.5))[0])

    capacity = servers / seconds
    simulation = Simulation(
        OverloadSpec(), servers=servers, seconds=jitter(seconds), classes=("a", "b", "c"), weights=({}, {}, {})
    )
    simulation.run(20, capacity / 5, request)
    unloaded = quantile(latencies(simulation, 2), 0.99)
    simulation.run(8, 3 * capacity, request)
    for length in (12, 60):
        since = simulation.now
        simulation.run(length, 3 * capacity, request)
        assert quantile(latencies(simulation, since), 0.99) < 2 * unloaded
        assert goodput(simulation, since) > 0.95 * capacity


def test_a_measurement_of_the_unloaded_latency_hardly_holds_requests_back():
    """The first one needs few requests at a time, later ones half of what the endpoint gets."""
    simulation = Simulation(OverloadSpec(ConcurrencySpec(remeasure=20)), seconds=jitter(0.04))
    lowest = []
    for _ in range(100):
        simulation.run(0.5, 3 * CAPACITY)
        lowest.append(simulation.gate.limits["http://e0"])
    assert 3 in lowest[:10]
    assert min(lowest[20:]) >= 5


@pytest.mark.parametrize("servers", [8, 24])
def test_the_limit_is_right_once_the_engine_is_measured(servers):
    """It was more than twice the engine's servers, and fell by a step in each window: for a slow engine in seconds."""
    simulation = Simulation(OverloadSpec(ConcurrencySpec(initial=3 * servers)), servers=servers, seconds=jitter(0.1))
    limits = []
    for _ in range(200):
        simulation.run(0.05, 3 * servers / 0.1)
        limits.append(simulation.gate.limits.get("http://e0", 0))
    after = limits[limits.index(3) :]
    after = after[next(place for place, limit in enumerate(after) if limit != 3) :]
    assert max(after[:10]) < 1.75 * servers


def test_an_engine_that_forms_batches_gets_enough_for_them():
    def batch_seconds(size):
        return 0.02 + 0.001 * size

    capacity = 32 / batch_seconds(32)
    simulation = Simulation(OverloadSpec(), servers=32, batch_seconds=batch_seconds)
    simulation.run(15, 3 * capacity)
    assert goodput(simulation, 5) > 0.9 * capacity, "by latency alone it would get too few"


@pytest.mark.parametrize(("servers", "seconds"), [(2, 0.04), (1, 0.005), (30, 1.0), (64, 5.0)])
def test_engines_of_any_size_and_speed_do_what_they_can(servers, seconds):
    capacity = servers / seconds
    simulation = Simulation(OverloadSpec(), servers=servers, seconds=seconds)
    simulation.run(200 * seconds if seconds > 0.1 else 20, 3 * capacity)
    assert goodput(simulation, simulation.now / 2) > 0.9 * capacity


def test_an_endpoint_that_becomes_slower_gets_fewer_requests():
    seconds = [0.04]
    simulation = Simulation(OverloadSpec(), seconds=lambda: seconds[0])
    simulation.run(5, 3 * CAPACITY)
    seconds[0] = 0.4
    simulation.run(50, 100)
    assert goodput(simulation, 30) > 0.9 * 25, "its unloaded latency is another one, which is found out"
    assert 5 < simulation.gate.limits["http://e0"] < 30


def test_a_limit_that_engines_report_queues_for_falls():
    simulation = Simulation(OverloadSpec(ConcurrencySpec(initial=500)), reports_load=True, seconds=1.0)
    simulation.run(12, 60)
    assert simulation.gate.limits["http://e0"] < 60, "ten at a time is all it can do"


def test_without_overload_nothing_waits():
    simulation = Simulation(OverloadSpec(), seconds=jitter(0.04))
    simulation.run(20, CAPACITY / 3)
    assert simulation.gate.queued == 0, "the unloaded latency is measured where the limit is reached"
    assert not simulation.gate.refused


def test_a_request_that_cannot_be_answered_in_its_time_is_refused_at_once():
    simulation = Simulation(OverloadSpec(queue=QueueSpec(max_wait=30.0, target=20.0)), seconds=0.04)
    simulation.run(3, 3 * CAPACITY)
    simulation.run(1, 3 * CAPACITY, lambda now: SimulatedRequest(now, patience=0.2))
    assert simulation.gate.refused["default", "late"] > 500
    late = [each for each in simulation.ended if each.patience and each.ended_at - each.arrived_at > 0.5]
    assert not late


def test_a_short_queue_refuses_what_is_too_much():
    simulation = Simulation(OverloadSpec(queue=QueueSpec(max_requests=5, max_wait=30.0)), seconds=0.04)
    simulation.run(3, 3 * CAPACITY)
    assert sum(simulation.gate.waiting.values()) <= 5
    assert simulation.gate.refused["default", "full"] + simulation.gate.refused["default", "displaced"] > 500
