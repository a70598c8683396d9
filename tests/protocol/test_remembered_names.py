"""What is remembered by the names of models has a bound, whatever names clients invent."""

from __future__ import annotations

import pytest

from gateway.config.rules import load_texts
from gateway.config.settings import Settings
from gateway.dataplane.context.call_head import CallHead, CallPlan
from gateway.dataplane.context.prepared_head import PreparedHead
from gateway.dataplane.context.snapshot import Snapshot
from gateway.limits.prices import Prices
from gateway.observability.metrics import Metrics
from gateway.protocol.infer_message_head import Names
from gateway.protocol.remembered_names import MAX_LENGTH, RememberedNames
from gateway.routing.decision import Facts
from gateway.wire.http1.head import head_of_lines

RULES = """
version: 1
engines: {it: {protocol: openai, endpoints: ['http://127.0.0.1:9']}}
routes: [{name: all, match: {model: ['m*', 'x*']}, engine: it}]
"""
FIELDS = [(b":path", b"/inference.GRPCInferenceService/ModelReady"), (b":authority", b"x")]


@pytest.fixture
def snapshot() -> Snapshot:
    return Snapshot(load_texts({"rules.yaml": RULES}).rules, 1, Settings(), Metrics())


def rest_plan(snapshot: Snapshot, via: str = "v") -> PreparedHead:
    head = head_of_lines(b"POST /v1/chat/completions HTTP/1.1", [b"host: h", b"via: " + via.encode()])
    return PreparedHead(head, snapshot, Settings())


def decide(plan: CallPlan, model: bytes, version: bytes = b"") -> None:
    plan.decide(Names(model, version, b"", ()), None, CallHead(plan, []))


@pytest.mark.parametrize("model", ["x" * (MAX_LENGTH + 1), "x" * 60_000])
def test_a_long_name_is_not_remembered(snapshot: Snapshot, model: str) -> None:
    """A name of more than 256 bytes is decided on each time, as are a name and a version together."""
    plan, call = rest_plan(snapshot), CallPlan(FIELDS, snapshot, Settings())
    assert plan.for_model(model).route_target is not None
    decide(call, model.encode())
    decide(call, model[:MAX_LENGTH].encode(), b"1")
    snapshot.table.candidates(model)
    prices = Prices(())
    prices.of(model)
    remembered = (plan._models, call._decided, snapshot.table._by_model, prices._by_model)
    assert [[name for name in names if name not in ("", model[:MAX_LENGTH])] for names in remembered] == [[]] * 4
    plan.for_model("m")
    decide(call, b"m")
    assert (list(plan._models), list(call._decided)) == (["m"], [(b"m", b"")])
    assert plan.for_model("m") is plan.for_model("m")


def test_the_names_of_all_heads_have_one_bound(snapshot: Snapshot) -> None:
    """The plans of all heads share a number of bytes: where names invented for one take it, all begin anew, and a plan
    that is gone is not kept."""
    snapshot.remembered_names = RememberedNames(max_bytes=1_000_000)
    plans = [rest_plan(snapshot, f"{number}" + "v" * 3000) for number in range(20)]
    call = CallPlan(FIELDS, snapshot, Settings())
    for number in range(40):
        for plan in plans:
            plan.for_model(f"m{number}")
        decide(call, b"m%d" % number)
        assert sum(len(plan._models) for plan in plans) * 11_000 + len(call._decided) * 1024 <= 1_000_000
    assert sum(len(plan._models) for plan in plans) > 0
    del plan, plans
    assert len(snapshot.remembered_names._holders) <= 1


def test_the_routes_of_a_long_name_are_the_same_each_time(snapshot: Snapshot) -> None:
    """A table finds the routes of a name that it does not remember."""
    for model in ("m" * 300, "m", "m" * 300):
        assert [route.place for route in snapshot.table.candidates(model)] == [0]
    assert snapshot.table.decide(Facts("n" * 300), lambda: 0.0).name == "NO_ROUTE"  # type: ignore[union-attr]
