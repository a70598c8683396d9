"""`overload:` of engines and `classes:`: what is read, and what is refused, with the place."""

import pytest

from gateway.config.overload_specs import ConcurrencySpec, OverloadSpec, QueueSpec
from gateway.config.rules import load_texts
from gateway.dataplane.context.priority_classes import PriorityClasses
from gateway.protocol.request_urgency import NO_URGENCY, Urgency

RULES = """version: 1
engines:
  e:
    endpoints: http://e:8000
    overload: %s
routes: [{name: all, engine: e}]
%s
"""


def loaded(overload="{}", more=""):
    return load_texts({"rules.yaml": RULES % (overload, more)})


def test_an_empty_section_is_enough():
    assert loaded().rules.engines["e"].overload == OverloadSpec()
    text = "{concurrency: {min: 2, max: 8, initial: 4, tolerance: 2}, queue: {max_requests: 5, max_wait: 2s}}"
    assert loaded(text).rules.engines["e"].overload == OverloadSpec(
        ConcurrencySpec(2, 8, 4, 2.0), QueueSpec(5, max_wait=2.0)
    )


@pytest.mark.parametrize(
    ("overload", "message"),
    [
        ("{concurrency: {min: 9, max: 8}}", "has min 9 above max 8"),
        ("{concurrency: {tolerance: 0.5}}", "0.5"),
        ("{queue: {max_wait: 0s}}", "0s"),
        ("{queues: {}}", "unknown key 'queues'"),
        ("{queue: {target: 2s}}", "its order never changes"),
    ],
)
def test_contradictions_are_named_with_their_place(overload, message):
    problems = [problem for problem in loaded(overload).problems if message in problem.message]
    assert problems
    assert problems[0].location.line == 5


def test_classes_are_unique_and_few():
    assert "is declared twice" in loaded(more="classes: [{name: a}, {name: a}]").errors[0].message
    many = ", ".join(f"{{name: c{number}}}" for number in range(17))
    assert "at most 16" in loaded(more=f"classes: [{many}]").errors[0].message
    named = loaded(more="classes: [{name: a, tenant: x}]")
    assert named.rules is not None
    assert "all other callers have the last one, 'a'" in named.problems[0].message


def classes_of(more):
    return PriorityClasses(loaded(more=more).rules)


CLASSES = """
classes:
  - {name: gold, tenant: [acme, gold-*], weights: {acme: 3}}
  - {name: normal}
  - {name: batch, tenant: crawler}
"""


def requested(classes, urgency=NO_URGENCY, **fields):
    values = {name.replace("_", "-").encode(): value.encode() for name, value in fields.items()}
    return classes.names[classes.of_request(values.get, urgency)]


def test_a_request_has_its_callers_class_or_a_lower_one():
    classes = classes_of(CLASSES)
    assert requested(classes) == "normal"
    assert requested(classes, x_tenant="acme") == requested(classes, x_tenant="gold-7") == "gold"
    assert requested(classes, x_tenant="crawler") == "batch"
    assert requested(classes, x_tenant="acme", x_request_class="batch") == "batch"
    assert requested(classes, x_request_class="gold") == "normal", "nobody is in a class above its own"
    assert requested(classes, x_request_class="unknown") == "normal"
    assert requested(classes, Urgency(class_number=0), x_tenant="crawler") == "batch"
    assert requested(classes, Urgency(class_number=99), x_tenant="acme") == "batch"
    assert requested(classes, Urgency(classes_below=1), x_tenant="acme") == "normal"
    assert requested(classes, Urgency(classes_below=-1), x_tenant="acme") == "batch"
    assert classes.weights[0] == {b"acme": 3}


def test_without_classes_all_requests_are_in_one():
    assert requested(classes_of(""), Urgency(class_number=5), x_request_class="gold") == "default"
