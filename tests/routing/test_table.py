"""The compiled rules: decisions from facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.experiment_specs import ArmSpec, ExperimentSpec
from gateway.config.specs import InputMatch, MatchSpec
from gateway.protocol.operations import Operation
from gateway.protocol.sequence import AnySession, Sequence
from gateway.routing import matchers
from gateway.routing import table as table_module
from gateway.routing.decision import NO_BODY, BodyFacts, Decision, Facts, InputFacts, Target, Undecided
from gateway.routing.explain import explain
from gateway.routing.table import Table
from tests.routing.tables import by, split, table, to

NEEDS_BODY, NO_ROUTE = Undecided.NEEDS_BODY, Undecided.NO_ROUTE
SESSION = {"x-session-id": "s1"}
PRIORITY = MatchSpec(parameter={"priority": ("1",)})


def no_chance() -> float:
    raise AssertionError("chance was asked")


def decide(one: Table, facts: Facts, chance: Callable[[], float] = no_chance) -> Decision:
    decision = one.decide(facts, chance)
    assert isinstance(decision, Decision)
    return decision


def test_a_route_renames_the_model_or_keeps_it() -> None:
    """The target names the engine and the model's name there; None keeps the requested name."""
    one = table(to("gpu", "llama", MatchSpec(model=("llama",)), model="llama-3"), to("cpu", "rest"))
    assert decide(one, Facts("llama")) == Decision(Target("llama", "gpu", "llama-3"))
    assert decide(one, Facts("other")) == Decision(Target("rest", "cpu"))


@pytest.mark.parametrize("model, route", [("chat", "exact"), ("chat-2", "glob"), ("x", "late"), ("y", "rest")])
def test_the_first_route_that_matches_wins(model: str, route: str) -> None:
    """Exact names, globs and routes for any model keep the one order of the files."""
    one = table(
        to("cpu", "grpc-only", MatchSpec(protocol=("grpc",))),
        to("cpu", "exact", MatchSpec(model=("chat",))),
        to("cpu", "glob", MatchSpec(model=("chat*",))),
        to("cpu", "shadowed", MatchSpec(model=("chat-2",))),
        to("cpu", "late", MatchSpec(model=("x", "z*"))),
        to("cpu", "rest"),
    )
    assert decide(one, Facts(model)).target.route == route
    assert decide(one, Facts(model, protocol="grpc")).target.route == "grpc-only"


def test_no_route_is_an_answer() -> None:
    """A model without a route yields NO_ROUTE, with and without globs."""
    assert table(to("cpu", match=MatchSpec(model=("a",)))).decide(Facts("b"), no_chance) is NO_ROUTE
    assert table(to("cpu", match=MatchSpec(model=("a*",)))).decide(Facts("b"), no_chance) is NO_ROUTE
    assert table().decide(Facts("b"), no_chance) is NO_ROUTE


def test_the_body_is_asked_for_only_where_a_route_could_still_match() -> None:
    """A failed condition on the head, or an earlier unconditional route, avoids reading the body."""
    one = table(
        to("cpu", "early", MatchSpec(model=("light",))),
        to("gpu", "images", MatchSpec(protocol=("rest",), input=(InputMatch(rank=4),))),
        to("cpu", "rest"),
    )
    image = BodyFacts(inputs=(InputFacts("x", "FP32", (1, 3, 8, 8), 768),))
    assert decide(one, Facts("light")).target.route == "early"
    assert decide(one, Facts("m", protocol="grpc")).target.route == "rest"
    assert one.decide(Facts("m"), no_chance) is NEEDS_BODY
    assert decide(one, Facts("m", body=image)).target.route == "images"
    assert decide(one, Facts("m", body=NO_BODY)).target.route == "rest"


def test_only_an_inference_has_a_body_to_ask_for() -> None:
    """Metadata and control operations match no condition on the body, and are decided by their head."""
    one = table(to("gpu", "priority", PRIORITY), to("sticky", "rest"))
    decision = decide(one, Facts("m", operation=Operation.MODEL_METADATA))
    assert decision == Decision(
        Target("rest", "sticky", is_sticky=True, sticky_endpoint=True), session=None, repeatable=True
    )


REPEATABLE = [
    (Facts("plain"), True),
    (Facts("header", headers={"x-tier": "gold"}), True),
    (Facts("header", body=NO_BODY), False),
    (Facts("sticky", headers=SESSION), True),
    (Facts("sticky", body=BodyFacts({"session_id": "s1"})), False),
    (Facts("sticky", body=NO_BODY), False),
    (Facts("split", headers=SESSION), True),
    (Facts("split", body=BodyFacts({"session_id": "s1"})), False),
    (Facts("split", body=NO_BODY), False),
    (Facts("anew"), False),
]


@pytest.mark.parametrize("facts, expected", REPEATABLE)
def test_a_decision_by_the_head_alone_is_repeatable(facts: Facts, expected: bool) -> None:
    """A decision by the head alone is cacheable; one by the body or by a random draw is not."""
    one = table(
        to("cpu", "plain", MatchSpec(model=("plain",))),
        to("gpu", "header", MatchSpec(model=("header",), header={"x-tier": ("gold",)})),
        to("gpu", "priority", MatchSpec(model=("header",), parameter={"priority": ("1",)})),
        to("sticky", "sticky", MatchSpec(model=("sticky",))),
        by("split", match=MatchSpec(model=("split",))),
        by("anew", match=MatchSpec(model=("anew",))),
        to("cpu", "rest"),
        experiments=(split("split", cpu=1, gpu=1), split("anew", "request", cpu=1, gpu=1)),
    )
    assert decide(one, facts, lambda: 0.3).repeatable is expected


SESSIONS = [
    (Facts("m", headers=SESSION), "s1"),
    (Facts("m", body=BodyFacts({"sequence_id": 42})), Sequence("42", "m")),
    (Facts("m", body=NO_BODY), None),
]


@pytest.mark.parametrize("facts, session", SESSIONS)
def test_an_engine_that_balances_by_session_is_told_it(facts: Facts, session: AnySession | None) -> None:
    """The session comes from the header, or else from the body, which is then required."""
    one = table(to("sticky"))
    assert one.decide(Facts("m"), no_chance) is NEEDS_BODY
    assert decide(one, facts).session == session


def test_an_experiment_keeps_each_session_on_its_arm() -> None:
    """A session is assigned without a random draw, and to the same arm by header and by body."""
    one = table(by("x"), experiments=(split("x", cpu=50, gpu=50),))
    for number in range(100):
        by_header = decide(one, Facts("m", headers={"x-session-id": f"s{number}"}))
        by_body = decide(one, Facts("m", body=BodyFacts({"session_id": f"s{number}"})))
        assert by_header.target is by_body.target
        assert by_header.session == by_body.session == f"s{number}"


UNITS = [
    ("session", Facts("m"), NEEDS_BODY),
    ("session", Facts("m", body=NO_BODY), "gpu"),
    ("request", Facts("m"), "gpu"),
    ("request", Facts("m", headers=SESSION), "gpu"),
    ("header:x-user", Facts("m"), "gpu"),
    ("parameter:user", Facts("m"), NEEDS_BODY),
    ("parameter:user", Facts("m", body=NO_BODY), "gpu"),
    ("session", Facts("m", operation=Operation.MODEL_READY), "gpu"),
]


@pytest.mark.parametrize("unit, facts, expected", UNITS)
def test_a_request_without_the_unit_is_assigned_by_chance(unit: str, facts: Facts, expected: Undecided | str) -> None:
    """A request without a unit gets a random arm; its body is required first if it could contain the unit."""
    one = table(by("x"), experiments=(split("x", unit, cpu=50, gpu=50),))
    decision = one.decide(facts, lambda: 0.3)
    assert (decision.target.arm if isinstance(decision, Decision) else decision) == expected


def test_chance_is_asked_once_for_a_request() -> None:
    """The body is required before the random draw, since one arm balances by session: each request is drawn once."""
    one = table(by("x"), experiments=(split("x", "request", sticky=50, gpu=50),))
    assert one.decide(Facts("m"), no_chance) is NEEDS_BODY
    throws = [0.1, 0.9]
    arms = Counter(decide(one, Facts("m", body=NO_BODY), lambda: throws.pop()).target.arm for _ in range(2))
    assert arms == {"sticky": 1, "gpu": 1}


def test_an_arm_without_a_model_takes_the_routes() -> None:
    """An arm's own model name takes precedence, then the route's, then the requested one."""
    arms = (ArmSpec("a", "cpu", 1, "mine"), ArmSpec("b", "gpu", 1))
    one = table(by("x", model="theirs"), by("x", "y"), experiments=(ExperimentSpec("x", arms),))
    assert [(target.route, target.model) for target in one.targets] == [
        ("x", "mine"),
        ("x", "theirs"),
        ("y", "mine"),
        ("y", None),
    ]


def test_a_route_that_resumes_says_so_of_every_arm() -> None:
    """Each target of a route has the route's `resume`."""
    half = split("x", cpu=50, gpu=50)
    one = table(replace(by("x"), resume=True), replace(to("gpu"), resume=True), to("cpu"), experiments=(half,))
    assert [target.resume for target in one.targets] == [True, True, True, False]


def test_a_target_is_one_object_for_each_route_and_arm() -> None:
    """Every decision's target is one of the table's, so that a worker can count and connect by target."""
    one = table(by("x", match=MatchSpec(model=("a",))), to("sticky"), experiments=(split("x", cpu=50, gpu=50),))
    requests = [
        decide(one, Facts(model, headers={"x-session-id": f"s{n}"})).target for model in "ab" for n in range(50)
    ]
    assert {id(target) for target in requests} == {id(target) for target in one.targets}


CONTROLS = [
    ("plain", ["cpu"]),
    ("split", ["cpu", "gpu"]),
    ("by-body", ["gpu", "cpu"]),
    ("gpu-twice", ["gpu"]),
    ("by-header", ["cpu"]),
]


@pytest.mark.parametrize("model, engines", CONTROLS)
def test_a_load_concerns_every_engine_that_requests_may_reach(model: str, engines: list[str]) -> None:
    """A load concerns all arms of an experiment, routes that depend on the body, and each engine once; heads must
    match."""
    one = table(
        by("x", match=MatchSpec(model=("split",))),
        to("gpu", "priority", MatchSpec(model=("by-body", "gpu-twice"), parameter={"priority": ("1",)})),
        to("gpu", "again", MatchSpec(model=("gpu-twice",))),
        to("gpu", "gold", MatchSpec(model=("by-header",), header={"x-tier": ("gold",)})),
        to("cpu", "rest"),
        experiments=(split("x", cpu=100, gpu=0),),
    )
    targets = one.targets_for(Facts(model, operation=Operation.LOAD))
    assert [target.engine for target in targets] == engines


@pytest.mark.pure_python
def test_names_that_callers_invent_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bounded cache holds glob results of the latest names; an evicted name gets the same decision again."""
    monkeypatch.setattr(table_module, "MAX_REMEMBERED_MODELS", 10)
    one = table(to("gpu", match=MatchSpec(model=("m*",))), to("cpu"))
    for _ in range(2):
        assert {decide(one, Facts(f"m{number}")).target.engine for number in range(50)} == {"gpu"}
    assert len(one._by_model) == 10
    monkeypatch.setattr(table_module, "MAX_REMEMBERED_ROUTES", 5)
    decide(one, Facts("m-last"))
    assert list(one._by_model)[-1] == "m-last"
    assert sum(map(len, one._by_model.values())) <= 5


@pytest.mark.pure_python
def test_many_routes_are_compiled_without_asking_each_for_each_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of 2,000 names and globs compares a model with the routes alone whose patterns may match it."""
    compared: list[str] = []

    def text_test(patterns: tuple[str, ...]) -> Callable[[str], object]:
        compared.extend(patterns)
        return lambda text: fnmatchcase(text, patterns[0])

    monkeypatch.setattr(matchers, "text_test", text_test)
    exact = [to("cpu", f"e{at}", MatchSpec(model=(f"name-{at}",))) for at in range(1000)]
    globs = [to("gpu", f"g{at}", MatchSpec(model=(f"glob-{at}-*",))) for at in range(1000)]
    one = table(*exact, *globs, to("cpu", "rest"))
    assert not compared
    assert decide(one, Facts("name-7")).target.route == "e7"
    assert decide(one, Facts("other")).target.route == "rest"
    assert decide(one, Facts("glob-77-x")).target.route == "g77"
    assert compared == ["name-7", "glob-77-*"]


@pytest.mark.parametrize(
    "match_of",
    [
        lambda at: MatchSpec(model=("chat",), header={"x-user": (f"user-{at}",)}),
        lambda at: MatchSpec(tenant=(f"tenant-{at}-*",), protocol=("rest",)),
    ],
)
def test_one_model_may_have_many_routes(match_of: Callable[[int], MatchSpec], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 2,000 routes that differ in a header or in the tenant, few are asked."""
    asked = []
    all_hold = table_module.all_hold
    monkeypatch.setattr(table_module, "all_hold", lambda *args: asked.append(args) or all_hold(*args))
    one = table(*(to("cpu", f"r{at}", match_of(at)) for at in range(2000)), to("gpu", "rest"))
    headers = {"x-user": "user-1777", "x-tenant": "tenant-1777-a"}
    assert decide(one, Facts("chat", headers=headers)).target.route == "r1777"
    assert decide(one, Facts("chat", headers={"x-user": "u", "x-tenant": "t"})).target.route == "rest"
    assert len(asked) <= 3


TEXTS = st.lists(st.sampled_from(["a", "b", "a*", "?", "*", "ab"]), max_size=2).map(tuple)
MATCHES = st.builds(
    MatchSpec,
    model=TEXTS,
    version=st.sampled_from([(), (), ("1",)]),
    operation=st.sampled_from([(), (), ("infer",), ("metadata", "generate")]),
    header=st.dictionaries(st.sampled_from(["x-a", "x-b"]), st.just(("1", "2*")), max_size=1),
    parameter=st.dictionaries(st.sampled_from(["p", "q"]), st.just(("1", "true")), max_size=1),
    input=st.sampled_from([(), (), (InputMatch(rank=1),), (InputMatch(datatype=("FP32",)),)]),
    tenant=st.sampled_from([(), (), ("acme",)]),
    has_image=st.sampled_from([None, None, True, False]),
)
ROUTES = st.lists(
    st.one_of(
        st.builds(to, st.sampled_from(["cpu", "gpu", "sticky"]), match=MATCHES),
        st.builds(by, st.sampled_from(["by-session", "by-chance", "by-parameter"]), match=MATCHES),
    ),
    max_size=6,
)
EXPERIMENTS = (
    split("by-session", cpu=3, gpu=1),
    split("by-chance", "request", cpu=1, sticky=2),
    split("by-parameter", "parameter:p", gpu=1, sticky=1),
)
FACTS = st.builds(
    Facts,
    model=st.sampled_from(["a", "b", "ab", "abc", "z"]),
    version=st.sampled_from([None, "1"]),
    operation=st.sampled_from([Operation.INFER, Operation.GENERATE, Operation.MODEL_METADATA]),
    headers=st.dictionaries(
        st.sampled_from(["x-a", "x-b", "x-tenant", "x-session-id"]), st.sampled_from(["1", "22", "acme"])
    ),
    body=st.builds(
        BodyFacts,
        parameters=st.dictionaries(st.sampled_from(["p", "q", "session_id"]), st.sampled_from([0, 1, True, "x"])),
        inputs=st.sampled_from([(), (InputFacts("i", "FP32", (2,), 8),), (InputFacts("i", "BYTES", (2, 2), 8),)]),
        has_image=st.booleans(),
    ),
)


@pytest.mark.parametrize("many", [-1, 64], ids=["by all fields", "by model"])
@given(routes=ROUTES, facts=FACTS, chance=st.floats(0, 1, exclude_max=True))
def test_the_fast_path_decides_as_the_slow_one(routes: list, facts: Facts, chance: float, many: int) -> None:  # type: ignore[type-arg]
    """Indexes, cache and shortcuts of the table change no decision: `explain` checks all routes in order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "MANY_ROUTES", many)
        one = table(*routes, experiments=EXPERIMENTS)
    slow = explain(one, facts, lambda: chance).decision
    assert one.decide(facts, lambda: chance) == slow
    assert one.decide(facts, lambda: chance) == slow


@given(ROUTES, FACTS, st.floats(0, 1, exclude_max=True))
def test_what_the_head_decides_the_body_does_not_change(routes: list, facts: Facts, chance: float) -> None:  # type: ignore[type-arg]
    """A decision made without the body equals the one made with it, and only a repeatable one may skip the body."""
    one = table(*routes, experiments=EXPERIMENTS)
    with_body = one.decide(facts, lambda: chance)
    facts.body = None
    without = one.decide(facts, lambda: chance)
    assert without is NEEDS_BODY or without == with_body
    if isinstance(with_body, Decision) and with_body.repeatable:
        assert without == with_body
