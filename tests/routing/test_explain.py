"""Explanations of routing decisions."""

from __future__ import annotations

from dataclasses import replace

from gateway.config.experiment_specs import LayerSpec
from gateway.config.specs import MatchSpec
from gateway.protocol.operations import Operation
from gateway.routing.decision import BodyFacts, Decision, Facts, Target, Undecided
from gateway.routing.explain import Assignment, Check, RouteVerdict, Step, explain
from tests.routing.tables import by, split, table, to

GOLD = MatchSpec(model=("chat*",), header={"x-tier": ("gold",)}, parameter={"priority": ("1", "2")})


def test_each_route_is_told_with_its_conditions() -> None:
    """Routes before the match list their failed conditions with both sides; routes after it are skipped."""
    one = table(to("gpu", "gold", GOLD), to("cpu", "rest"), to("cpu", "never"))
    explanation = explain(one, Facts("chat", body=BodyFacts({"priority": 3})), lambda: 0.0)
    gold = (
        Check("model", "chat*", "chat", True),
        Check("header x-tier", "gold", None, False),
        Check("parameter priority", "1 or 2", "3", False),
    )
    assert explanation.steps == (
        Step("gold", RouteVerdict.FAILED, gold),
        Step("rest", RouteVerdict.MATCHED),
        Step("never", RouteVerdict.SKIPPED),
    )
    assert explanation.steps[0].failed == gold[1:]
    assert explanation.decision == Decision(Target("rest", "cpu"))
    assert explanation.assignment is None


def test_an_unread_body_says_nothing() -> None:
    """Without a body, conditions on the body fail, so an explanation always has a result."""
    one = table(to("gpu", "gold", MatchSpec(parameter={"p": ("1",)})))
    assert explain(one, Facts("m"), lambda: 0.0).decision is Undecided.NO_ROUTE


def test_a_load_meets_no_condition_on_the_body() -> None:
    """Conditions on parameters of an inference do not match those of a load."""
    one = table(to("gpu", "p", MatchSpec(parameter={"p": ("1",)})))
    facts = Facts("m", operation=Operation.LOAD, body=BodyFacts({"p": 1}))
    assert explain(one, facts, lambda: 0.0).steps[0].failed == (Check("parameter p", "1", None, False),)
    imageless = table(to("gpu", "p", MatchSpec(has_image=False)))
    assert explain(imageless, facts, lambda: 0.0).steps[0].failed == (Check("has_image", "false", None, False),)


def test_an_arm_is_told_with_its_intervals() -> None:
    """The unit's position lies in an interval of its arm, and the explanation lists the intervals of all arms."""
    one = table(by("x"), experiments=(split("x", cpu=75, gpu=25),))
    explanation = explain(one, Facts("m", headers={"x-session-id": "s1"}), lambda: 0.0)
    assert isinstance(explanation.decision, Decision)
    assignment = explanation.assignment
    assert assignment is not None
    assert (assignment.experiment, assignment.unit_kind, assignment.unit) == ("x", "session", "s1")
    assert [(each.name, each.share, each.intervals) for each in assignment.arm_spans] == [
        ("cpu", 0.75, ((0.25, 1.0),)),
        ("gpu", 0.25, ((0.0, 0.25),)),
    ]
    assert assignment.position is not None
    assert assignment.arm == ("gpu" if assignment.position < 0.25 else "cpu") == explanation.decision.target.arm


def test_an_arm_by_chance_has_no_position() -> None:
    """A request without a unit gets a random arm and has no position."""
    one = table(by("x"), experiments=(split("x", cpu=50, gpu=50),))
    explanation = explain(one, Facts("m"), lambda: 0.3)
    assert explanation.assignment == Assignment("x", "session", None, "gpu", one.splits["x"].arm_spans())


def test_a_layer_is_told_with_its_parts() -> None:
    """The explanation lists the layer's experiments and holdout, and the unit's position among them."""
    layer = LayerSpec("l", "session", holdout=1.0)
    one = table(by("x"), experiments=(replace(split("x", cpu=50, gpu=50), layer="l", share=0.0),), layers=(layer,))
    explanation = explain(one, Facts("m", headers={"x-session-id": "s1"}), lambda: 0.3)
    assert isinstance(explanation.decision, Decision)
    target = explanation.decision.target
    assert (target.experiment, target.arm, target.engine, target.is_outside) == ("x", None, "cpu", True)
    assignment = explanation.assignment
    assert assignment is not None
    assert (assignment.arm, assignment.layer) == (None, "l")
    assert [(part.name, part.share) for part in assignment.parts] == [("holdout", 1.0), ("x", 0.0)]
    assert assignment.place is not None


def test_a_load_has_no_arm() -> None:
    """A load goes to every engine that the model's requests may reach, including routes that depend on the body."""
    one = table(to("gpu", "p", MatchSpec(parameter={"p": ("1",)})), by("x"), experiments=(split("x", cpu=90, gpu=10),))
    explanation = explain(one, Facts("m", operation=Operation.LOAD), lambda: 0.0)
    assert explanation.targets == one.targets_for(Facts("m", operation=Operation.LOAD))
    assert [target.engine for target in explanation.targets] == ["gpu", "cpu"]
    assert explanation.assignment is None
    assert explanation.has_target


def test_a_load_that_only_bodies_lead_anywhere() -> None:
    """No route matches a load by its head, but the load reaches the engine that inferences can reach."""
    one = table(to("gpu", "p", MatchSpec(parameter={"p": ("1",)})))
    explanation = explain(one, Facts("m", operation=Operation.LOAD), lambda: 0.0)
    assert explanation.decision is Undecided.NO_ROUTE
    assert explanation.has_target
    assert not explain(one, Facts("m"), lambda: 0.0).has_target
