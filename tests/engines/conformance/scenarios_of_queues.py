"""Scenarios of requests that wait for each other: batches, queues, priorities, instances, the response cache."""

import ast
import itertools
from typing import Any

from tests.engines.conformance.asking import Answers, Ask
from tests.engines.conformance.scenarios import ORDERED, scenario

TOGETHER = ("rest", "grpc", "grpc_aio", "stream")


def rows(model: str, *values: int, **more: Any) -> Ask:
    return Ask(model, {"value": ("INT32", [[value] for value in values])}, **more)


def columns(model: str, *values: int) -> Ask:
    return Ask(model, {"value": ("INT32", [list(values)])})


# Batches: each response has the number of requests and rows in its batch.

scenario("four make a preferred batch", *[rows("batch_preferred", 1)] * 4, together=True, clients=TOGETHER)
scenario(
    "rows make a preferred batch",
    rows("batch_preferred", 1, 2, 3),
    rows("batch_preferred", 4),
    together=True,
    clients=TOGETHER,
)
scenario(
    "a batch larger than preferred",
    rows("batch_preferred", 1, 2, 3, 4),
    rows("batch_preferred", *range(8)),
    clients=TOGETHER,
)
scenario("a delay fills a batch", *[rows("batch_delayed", 1)] * 3, together=True, clients=TOGETHER)
scenario("a batch of one after the delay", rows("batch_delayed", 1, 2), clients=TOGETHER)
scenario("without a batcher each has its own", *[rows("batch_none", 1)] * 3, together=True, clients=TOGETHER)
scenario(
    "shapes that differ do not meet",
    columns("batch_shapes", 1),
    columns("batch_shapes", 1, 2),
    together=True,
    clients=ORDERED,
)
scenario(
    "shapes that are alike meet",
    columns("batch_shapes", 1, 2),
    columns("batch_shapes", 3, 4),
    together=True,
    clients=TOGETHER,
)
scenario(
    "ragged shapes meet", columns("batch_ragged", 1), columns("batch_ragged", 1, 2), together=True, clients=TOGETHER
)

# Queues

scenario(
    "a queue that is full",
    rows("queue_short", 1, has_begun=True),
    *[rows("queue_short", 1)] * 5,
    together=True,
    clients=ORDERED,
)
scenario("a wait that is too long", *[rows("queue_impatient", 1)] * 3, together=True, clients=ORDERED)
scenario(
    "a client cannot make the wait longer",
    *[rows("queue_impatient", 1, options={"timeout": 20_000_000})] * 3,
    together=True,
    clients=ORDERED,
)
scenario(
    "a wait that the client shortens",
    rows("queue_impatient", 1),
    rows("queue_impatient", 1, options={"timeout": 1_000}),
    together=True,
    clients=ORDERED,
)
scenario("late ones are only put back", *[rows("queue_patient", 1)] * 3, together=True, clients=("grpc", "stream"))


def order_of(priorities: list[int]) -> list[Ask]:
    """A first request that keeps the model busy, then one for each priority."""
    first = Ask("queue_priority", {"value": ("INT32", [[0]])}, id="first", options={"priority": 1})
    return [
        first,
        *(
            Ask(
                "queue_priority",
                {"value": ("INT32", [[1]])},
                id=f"{index} of {priority}",
                options={"priority": priority},
            )
            for index, priority in enumerate(priorities)
        ),
    ]


scenario("priorities", *order_of([3, 2, 1, 0, 1]), together=True, clients=ORDERED)
scenario("a priority whose queue is full", *order_of([3, 3, 2]), together=True, clients=ORDERED)
scenario("a priority that is not there", *order_of([9]), together=True, clients=ORDERED)

# Instances


def slept(model: str, seconds: float) -> Ask:
    kind = {"seconds": ("FP32", [[seconds]] if model == "ordered" else [seconds])}
    return Ask(model, kind)


def times_of(answers: Answers) -> dict[str, Any]:
    """The values of all responses, by output."""
    found: dict[str, Any] = {}
    for answer in answers:
        for output in answer["outputs"]:
            found.setdefault(output["name"], []).append(ast.literal_eval(output["data"][2]))
    return found


def at_once(answers: Answers) -> dict[str, Any]:
    """The instances that ran, and whether two ran at the same time."""
    found = times_of(answers)
    spans = sorted(found["times"])
    return {
        "instances": sorted({name for (name,) in found["instance"]}),
        "overlap": any(later[0] < earlier[1] for earlier, later in itertools.pairwise(spans)),
    }


scenario(
    "two instances run at once", *[slept("pair", 0.3)] * 4, together=True, clients=("rest", "grpc"), summary=at_once
)
scenario(
    "one resource for two instances",
    *[slept("limited", 0.15)] * 4,
    together=True,
    clients=("rest", "grpc"),
    summary=lambda answers: at_once(answers)["overlap"],
)
scenario(
    "answers in the order of the requests",
    slept("ordered", 0.3),
    slept("ordered", 0.0),
    together=True,
    clients=ORDERED,
    summary=lambda answers: len(answers[0]),
)

# The response cache: a cached response has the number of an earlier execution.


def cached(*values: float, **more: Any) -> Ask:
    return Ask("cached", {"x": ("FP32", [list(values)])}, **more)


def steps_of(answers: Answers) -> list[int]:
    """The numbers of the executions, relative to the first."""
    counts = [ast.literal_eval(answer["outputs"][0]["data"][2])[0][0] for answer in answers]
    return [count - counts[0] for count in counts]


for number, client in enumerate(("rest", "grpc")):
    scenario(
        f"answers from the cache, {client}",
        *[cached(float(number), 1.0)] * 2,
        cached(float(number), 2.0),
        cached(float(number), 1.0, id="other"),
        cached(float(number), 1.0, parameters={"other": 1}),
        cached(float(number), 2.0, outputs={"executions": 0}),
        clients=(client,),
        summary=steps_of,
    )
scenario(
    "a cached step of an ensemble",
    *[Ask("cached_chain", {"x": ("FP32", [[7.0]])})] * 3,
    clients=("rest",),
    needs=("cached",),
    summary=steps_of,
)
