"""The health of an agent, on a clock that the test moves."""

from __future__ import annotations

from itertools import product

import pytest

from engines.fleet.health_state import NEXT, AgentState, HealthState, Probe
from engines.fleet.spec import AgentSpec

SPEC = AgentSpec(
    "llm", ("server",), "llm", ready="http://x/ready", start_timeout=100.0, hang_timeout=10.0, memory_bytes=1000
)
YES, NO, NOTHING = Probe.YES, Probe.NO, Probe.NOTHING

# name, probes as (second, outcome), the last state, the start of the reason to restart
LIVES = [
    ("it starts", [(1, NOTHING), (50, NOTHING)], AgentState.STARTING, None),
    ("it loads", [(1, NO), (99, NO)], AgentState.STARTING, None),
    ("it is ready", [(1, NOTHING), (2, YES)], AgentState.READY, None),
    ("it never gets ready", [(1, NOTHING), (100, NO)], AgentState.STARTING, "it is not ready 100 s after its start"),
    ("it says that it is not ready", [(1, YES), (2, NO), (500, NO)], AgentState.UNREADY, None),
    ("it is silent for a while", [(1, YES), (2, NOTHING), (11, NOTHING)], AgentState.SILENT, None),
    ("it hangs", [(1, YES), (2, NOTHING), (12, NOTHING)], AgentState.SILENT, "it has not answered for 10 s"),
    ("a word ends the silence", [(1, YES), (2, NOTHING), (9, NO), (15, NOTHING)], AgentState.SILENT, None),
    ("it comes back", [(1, YES), (2, NOTHING), (9, YES)], AgentState.READY, None),
]


@pytest.mark.parametrize(("what", "probes", "state", "restart"), LIVES, ids=[row[0] for row in LIVES])
def test_probes(what: str, probes: list[tuple[float, Probe]], state: AgentState, restart: str | None) -> None:
    """Probes without an answer restart an agent that was ready. "Not ready" does not, unless the agent exceeds its
    start time."""
    health = HealthState(SPEC, 0.0)
    for now, probe in probes:
        reason = health.probed(probe, now)
    assert (health.state, reason) == (state, restart)


def test_the_table_of_states() -> None:
    """Every probe has a result in every state of a running agent, and none of a stopped one."""
    running = {AgentState.STARTING, AgentState.READY, AgentState.UNREADY, AgentState.SILENT}
    assert set(NEXT) == set(product(running, Probe))
    after_ready = {YES: AgentState.READY, NO: AgentState.UNREADY, NOTHING: AgentState.SILENT}
    expected = {(state, probe): after_ready[probe] for state, probe in NEXT}
    expected |= {(AgentState.STARTING, probe): AgentState.STARTING for probe in (NO, NOTHING)}
    assert expected == NEXT


@pytest.mark.parametrize(
    ("samples", "restarts"),
    [
        ([1001, 1001, 1001], [False, False, True]),
        ([1001, 1001, 1000, 1001], [False, False, False, False]),
        ([1000, 1000, 1000, 1000], [False] * 4),
    ],
)
def test_memory(samples: list[int], restarts: list[bool]) -> None:
    """An agent restarts after three consecutive samples above its memory budget."""
    health = HealthState(SPEC, 0.0)
    assert [health.memory_sampled(sample) is not None for sample in samples] == restarts


def test_ready_seconds() -> None:
    """The healthy time counts from the first readiness."""
    health = HealthState(SPEC, 0.0)
    health.probed(NO, 5.0)
    assert health.ready_seconds(6.0) == 0.0
    health.probed(YES, 10.0)
    health.probed(NO, 20.0)
    assert health.ready_seconds(30.0) == 20.0
