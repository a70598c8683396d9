"""What is used of a source's answers, over time."""

from gateway.config.engine_specs import EndpointSpec
from gateway.config.source_specs import KubernetesSpec, SourceSpec
from gateway.discovery.discovery import merge
from gateway.discovery.source_state import FoundEndpoint, SourceState

DNS = SourceSpec(dns="triton:8000", empty_grace=60.0, drain=30.0, max_endpoints=3)


def found(*names: str) -> list[FoundEndpoint]:
    return [FoundEndpoint(EndpointSpec(f"http://{name}:8000")) for name in names]


def used(state: SourceState) -> dict[str, bool]:
    """Which endpoints there are, and whether they are leaving."""
    return {each.spec.url[7:-5]: each.is_leaving for each in state.endpoints}


def test_a_failure_changes_nothing() -> None:
    """A source that fails keeps its endpoints, however long; the same error is new once."""
    state = SourceState(DNS)
    state.answered(found("a", "b"), 0.0)
    assert [state.failed("timeout"), state.failed("timeout"), state.failed("refused")] == [True, False, True]
    state.expire(1e6)
    assert used(state) == {"a": False, "b": False}
    status = state.status("it", 1000.0)
    assert (status.answered_at, status.failures, status.error) == (1000.0, 3, "refused")
    state.answered(found("a", "b"), 5.0)
    assert state.error == "" and state.failed("refused")


def test_what_leaves_is_drained() -> None:
    """An endpoint that has left is leaving for the time of `drain`; one that returns meanwhile is back."""
    state = SourceState(DNS)
    state.answered(found("a", "b"), 0.0)
    state.answered(found("b", "c"), 10.0)
    assert used(state) == {"b": False, "c": False, "a": True}
    assert state.expires_at == 40.0
    state.answered(found("a", "b", "c"), 20.0)
    assert used(state) == {"a": False, "b": False, "c": False}
    state.answered(found("b"), 30.0)
    state.expire(59.0)
    assert set(used(state)) == {"a", "b", "c"}
    state.expire(60.0)
    assert (used(state), state.expires_at) == ({"b": False}, None)


def test_an_empty_answer_keeps_endpoints_for_a_time() -> None:
    """A name without addresses keeps those that it had for `empty_grace`, then drains them; Kubernetes' slices are
    believed at once."""
    state = SourceState(DNS)
    state.answered(found("a"), 0.0)
    for now in (10.0, 20.0):
        state.answered([], now)
    assert state.is_empty and used(state) == {"a": False} and state.expires_at == 70.0
    state.expire(70.0)
    assert not state.is_empty and used(state) == {"a": True}
    state.answered([], 75.0)
    state.expire(100.0)
    assert used(state) == {}
    state.answered(found("b"), 110.0)
    state.answered([], 111.0)
    state.answered(found("b"), 112.0)
    assert not state.is_empty and used(state) == {"b": False}
    slices = SourceState(SourceSpec(kubernetes=KubernetesSpec("triton")))
    slices.answered(found("a"), 0.0)
    slices.answered([], 1.0)
    assert used(slices) == {}


def test_a_long_answer_is_cut() -> None:
    """Endpoints beyond `max_endpoints` are left out, the same ones in whatever order the answer has them."""
    state = SourceState(DNS)
    state.answered(found("d", "b", "a", "c"), 0.0)
    first = used(state)
    state.answered(found("c", "a", "d", "b"), 1.0)
    assert first == used(state) == {"a": False, "b": False, "c": False}
    assert state.left_out == 1 and state.expires_at is None


def test_an_endpoint_of_two_sources_is_one() -> None:
    """As rules list it; else it stays where one source has it and another drops it."""
    listed = EndpointSpec("http://a:8000", weight=3.0)
    leaving = [each._replace(is_leaving=True) for each in found("a", "b", "c")]
    merged = merge([listed], [*leaving, *found("b")])
    assert [(each.spec.url, each.spec.weight, each.is_leaving) for each in merged] == [
        ("http://a:8000", 3.0, False),
        ("http://b:8000", 1.0, False),
        ("http://c:8000", 1.0, True),
    ]


def test_what_is_drained_is_bounded() -> None:
    """Of a name that has other addresses each time at most `max_endpoints` are drained, the latest."""
    state = SourceState(DNS)
    for number in range(20):
        state.answered(found(f"a{number}", f"b{number}"), float(number))
    assert used(state) == {"a19": False, "b19": False, "b17": True, "a18": True, "b18": True}
