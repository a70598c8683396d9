"""The host returns the same responses as a real Triton from the same repository, with each client.

Each client sends each scenario to both servers, and the responses are compared completely: names, datatypes, shapes,
values, parameters, statuses, messages. `CONFORMANCE_OF=triton` compares Triton with itself instead.
"""

from collections.abc import Iterator

import pytest

from tests.engines.conformance import scenarios_of_queues, scenarios_of_streams
from tests.engines.conformance.asking import CLIENTS, Answers, Server, is_refusal
from tests.engines.conformance.differences import assert_alike
from tests.engines.conformance.pair import Pair
from tests.engines.conformance.scenarios import SCENARIOS, Scenario

pytestmark = pytest.mark.triton

assert scenarios_of_queues and scenarios_of_streams  # which fill SCENARIOS

# On a busy machine Triton takes a stub process for dead that does not respond within its health check, and does not
# start another one.
_MAX_STUB_RESTARTS = 3


def cases() -> Iterator[tuple[str, Scenario, str]]:
    """Consecutive scenarios use the same models, so that few models have to be loaded at a time."""
    for name, scenario in SCENARIOS.items():
        for client in scenario.clients:
            yield name, scenario, client


@pytest.mark.parametrize("name, scenario, client", [pytest.param(*case, id=f"{case[0]}-{case[2]}") for case in cases()])
def test_scenario(name: str, scenario: Scenario, client: str, pair: Pair) -> None:
    """Both servers return the same responses, and Triton fails as the scenario expects."""
    pair.load(scenario.models)

    def put(server: Server) -> Answers:
        return CLIENTS[client](server, scenario.asks, scenario.together)

    triton, host = pair.ask(put)
    for _ in range(_MAX_STUB_RESTARTS):
        if "' is not healthy." not in str(triton):
            break
        pair.restart_on_triton(scenario.models)
        triton, host = pair.ask(put)
    if not scenario.together:
        expected = [ask.is_refused for ask in scenario.asks]
        assert [has_refusal(answer) for answer in triton] == expected, triton
    if scenario.summary is not None:
        triton, host = scenario.summary(triton), scenario.summary(host)
    assert_alike(f"{name}-{client}", triton, host)


def has_refusal(answer: object) -> bool:
    """Whether a response is an error; of a stream, whether any response is one."""
    return is_refusal(answer) or (isinstance(answer, list) and any(map(is_refusal, answer)))
