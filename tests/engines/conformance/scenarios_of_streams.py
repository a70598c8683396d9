"""Scenarios of sequences, of decoupled models, of models that call others, and of models that fail."""

from typing import Any

from tests.engines.conformance.asking import UNARY, Ask
from tests.engines.conformance.scenarios import numbers, scenario, text

# Sequences


def step(model: str, name: int | str, value: int, start: bool = False, end: bool = False, **more: Any) -> Ask:
    options = {"sequence_id": name, "sequence_start": start, "sequence_end": end}
    return Ask(model, {"value": ("INT32", [[value]])}, options=options, **more)


# One model takes sequence ids as texts, which Triton 2.51 refuses; models with numeric ids would get an address.
NAMES = {
    "sequence_direct": (11, 12, 13, 14, 15, 16, 17),
    "sequence_oldest": (21, 22, 23, 24, 25, 26, 27),
    "sequence_text": ("a", "b", "c", "d", "e", "f", "g"),
}
for model, (one, other, brief, again, none, ended, wide) in NAMES.items():
    told = {"is_refused": model == "sequence_text"}
    scenario(
        f"{model}, two interleaved",
        step(model, one, 1, start=True, **told),
        step(model, other, 10, start=True, **told),
        step(model, one, 2, **told),
        step(model, other, 20, end=True, **told),
        step(model, one, 3, end=True, **told),
    )
    scenario(f"{model} of one step", step(model, brief, 5, True, True, **told))
    scenario(f"{model} started anew", step(model, again, 5, True, **told), step(model, again, 7, True, True, **told))
    scenario(f"{model} without a start", step(model, none, 5, is_refused=True))
    scenario(
        f"{model} that has ended", step(model, ended, 5, True, True, **told), step(model, ended, 5, is_refused=True)
    )
    scenario(f"{model} without a name", Ask(model, {"value": ("INT32", [[1]])}, is_refused=True))
    scenario(
        f"{model} of two rows",
        Ask(
            model,
            {"value": ("INT32", [[1], [2]])},
            options={"sequence_id": wide, "sequence_start": True},
            is_refused=True,
        ),
    )
    scenario(
        f"{model}, a control given by the client",
        Ask(
            model,
            {"value": ("INT32", [[1]]), "START": ("FP32", [[1.0]])},
            options={"sequence_id": wide, "sequence_start": True},
            is_refused=True,
        ),
    )
# The model reschedules each request until it has run as often as its value says. Triton's direct scheduler sometimes
# loses such a request on a busy machine; the host's is tested in tests/engines/scheduling.
value = {"value": ("INT32", [[3]])}
started = {"sequence_id": 77, "sequence_start": True}
scenario("iterative sequences without an id", *[Ask("iterative_oldest", value)] * 2)
scenario("iterative sequences with one id", *[Ask("iterative_oldest", value, options=started)] * 2)
scenario(
    "an iterative sequence is over with its request",
    Ask("iterative_oldest", value, options=started),
    Ask("iterative_oldest", value, options={"sequence_id": 77}, is_refused=True),
)
scenario("many iterative sequences at once", *[Ask("iterative_oldest", value)] * 6, together=True)
scenario(
    "a sequence in an ensemble",
    *(
        Ask(
            "summed_sequence",
            {"left": ("INT32", [[value]]), "right": ("INT32", [[1]])},
            options={"sequence_id": 91, "sequence_start": value == 1, "sequence_end": value == 3},
        )
        for value in (1, 2, 3)
    ),
    needs=("adder", "accumulator"),
)

# Decoupled models


def streamed(how: str, count: int, **more: Any) -> Ask:
    return Ask("streamer", numbers("count", count), parameters={"how": how}, **more)


for how in ("flag", "last", "error"):
    for count in (0, 1, 3) if how != "last" else (1, 3):
        scenario(
            f"decoupled, {how} after {count}",
            streamed(how, count, id="i", is_refused=how == "error"),
            clients=("stream",),
        )
        scenario(
            f"decoupled, {how} after {count}, empty final response",
            streamed(how, count, options={"enable_empty_final_response": True}, is_refused=how == "error"),
            clients=("stream",),
        )
scenario(
    "decoupled, a response after the final one",
    streamed("too_late", 0),
    streamed("tell_too_late", 0, is_refused=True),
    clients=("stream",),
)
scenario(
    "decoupled, several at once",
    *(streamed("flag", count, id=str(count)) for count in (1, 2, 3, 4)),
    clients=("stream",),
    together=True,
)
scenario("decoupled, unary", streamed("flag", 1, is_refused=True), clients=UNARY)
scenario(
    "plain, empty final response",
    Ask("sender", numbers("INPUT0", 1), options={"enable_empty_final_response": True}),
    clients=("stream",),
)
scenario("plain model with a sender", Ask("sender", numbers("INPUT0", 1, 2)))
scenario(
    "plain model with a sender, in two steps", Ask("sender", numbers("INPUT0", 1), parameters={"how": "in two steps"})
)
scenario(
    "plain model with a sender, twice",
    Ask("sender", numbers("INPUT0", 1), parameters={"how": "twice"}, is_refused=True),
    clients=UNARY,
)
scenario(
    "plain model with a sender, twice on a stream",
    Ask("sender", numbers("INPUT0", 1), parameters={"how": "twice"}),
    clients=("stream",),
)
scenario(
    "plain model with a sender, never",
    Ask("sender", numbers("INPUT0", 1), parameters={"how": "never"}, is_refused=True),
)

# Models that call others


def called(model: str, how: str, *values: int, **more: Any) -> Ask:
    return Ask(
        "caller", {**text("model", model), **text("how", how), "value": ("INT32", [list(values or (1, 2))])}, **more
    )


CALLED = {
    "adder": ("sync", "twice", "parallel", "versioned", "unknown_output", "missing_input"),
    "chain": ("renamed",),
    "fan": ("renamed",),
    "text": ("parameters",),
    "repeater": ("decoupled", "decoupled_parallel", "decoupled_failing", "decoupled_as_plain"),
    "accumulator": ("sequence",),
    "failer": ("parameters",),
    "crashing_streamer": ("missing_input",),
}
for model, ways in CALLED.items():
    for how in ways:
        scenario(f"call of {model}, {how}", called(model, how), clients=("rest", "grpc"), needs=(model, "adder"))
scenario("call of nobody", called("nobody", "sync"), clients=("rest", "grpc"))
scenario(
    "call of an unknown way", called("adder", "nohow", is_refused=True), clients=("rest", "grpc"), needs=("adder",)
)
scenario("decoupled call of no answer", called("repeater", "decoupled", 0), clients=("grpc",), needs=("repeater",))
scenario(
    "calls from many at once",
    *(called("adder", "parallel", number) for number in range(6)),
    together=True,
    clients=("grpc_aio",),
    needs=("adder",),
)

# Models that fail

WRONG = [
    "raises_model_exception",
    "raises_value_error",
    "raises_own_error",
    "raises_from_below",
    "answers_error",
    "answers_no_list",
    "answers_empty_list",
    "answers_too_many",
    "answers_tensors",
    "answers_text",
    "answers_unknown_dtype",
    "answers_error_beside_tensors",
    "UNKNOWN",
    "INTERNAL",
    "NOT_FOUND",
    "INVALID_ARG",
    "UNAVAILABLE",
    "UNSUPPORTED",
    "ALREADY_EXISTS",
    "CANCELLED",
]
NOT_SO_WRONG = [
    "right",
    "answers_wrong_datatype",
    "answers_no_outputs",
    "answers_unknown_output",
    "answers_wrong_rank",
    "answers_columns",
    "answers_empty_tensor",
    "answers_half_floats",
    "answers_text_tensor",
    "answers_scalar",
]
for how in (*WRONG, *NOT_SO_WRONG):
    scenario(
        f"wrong: {how}",
        Ask("wanderer", numbers("INPUT0", 1, 2, 3), parameters={"how": how}, is_refused=how in WRONG),
        Ask("wanderer", numbers("INPUT0", 1, 2, 3)),
    )
scenario(
    "wrong: answers_output_twice",
    Ask("wanderer", numbers("INPUT0", 1, 2, 3), parameters={"how": "answers_output_twice"}),
    clients=("rest", "rest_json"),  # Triton's gRPC client cannot read such a response
)
for how in ("right", "more rows", "fewer columns", "no batch axis", "no columns", "another datatype"):
    scenario(
        f"wrong batch: {how}", Ask("batch_breaker", {"INPUT0": ("INT32", [[1, 2], [3, 4]])}, parameters={"how": how})
    )
scenario(
    "wrong: an output that it was not asked for",
    Ask("wanderer", numbers("INPUT0", 1), outputs={"OUTPUT0": 0}, parameters={"how": "answers_unknown_output"}),
)
