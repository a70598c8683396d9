"""The one list of the host's intended differences from Triton, each with its reason."""

import difflib
import fnmatch
import pprint
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

Even = Callable[[Any], Any]


def without_texts(answer: Any) -> Any:
    """A reply without its error messages; errors keep their status."""
    match answer:
        case {"refused": status}:
            return {"refused": status}
        case dict():
            return {key: without_texts(value) for key, value in answer.items()}
        case list() | tuple():
            return [without_texts(value) for value in answer]
        case _:
            return answer


def in_any_order(answers: Any) -> Any:
    """Answers with their outputs sorted by name, those of streams too."""
    if isinstance(answers, list):
        return [in_any_order(answer) for answer in answers]
    return {**answers, "outputs": sorted(answers["outputs"], key=lambda output: output["name"])}


# Their configurations have the step of an ensemble.
ENSEMBLES = [
    "cached_chain",
    "chain",
    "doomed",
    "echoes",
    "fan",
    "nested",
    "newest",
    "partial",
    "ranked",
    "reshaped_chain",
    "rows",
    "summed_sequence",
]


def without_younger_fields(answer: Any) -> Any:
    scheduling = answer["config"]["ensemble_scheduling"]
    kept = {name: value for name, value in scheduling.items() if name != "max_inflight_requests"}
    return {**answer, "config": {**answer["config"], "ensemble_scheduling": kept}}


def without_reasons(answer: Any) -> Any:
    """The result of a load without the reasons of failures."""
    index = [{name: value for name, value in entry.items() if name != "reason"} for entry in answer["index"]]
    return without_texts({**answer, "index": index})


def without_responses(answer: Any) -> Any:
    """Statistics without those of single responses."""
    match answer:
        case dict():
            return {key: without_responses(value) for key, value in answer.items() if key != "response_stats"}
        case list():
            return [without_responses(value) for value in answer]
        case _:
            return answer


def without_history(answer: Any) -> Any:
    """Model statistics without those that depend on earlier requests."""
    models = [{**model, "batch_stats": []} for model in without_responses(answer)["model_stats"]]
    return {**answer, "model_stats": models}


def without_ends(answer: Any) -> Any:
    """Stream responses without end markers: responses without outputs, and the flag of the final response."""
    match answer:
        case dict():
            return {key: without_ends(value) for key, value in answer.items() if key != "triton_final_response"}
        case list():
            is_end = [isinstance(value, dict) and value.get("outputs") == [] for value in answer]
            return [without_ends(value) for value, ends in zip(answer, is_end, strict=True) if not ends]
        case _:
            return answer


@dataclass(frozen=True)
class Difference:
    """`calls` is a pattern of test names (as of a shell); `even` removes from both replies what may differ. None means
    that they have nothing in common."""

    calls: str
    reason: str
    even: Even | None = without_texts
    is_always: bool = True  # False where it depends on earlier requests


RESPONSE_STATISTICS = (
    "Statistics tell each response of a decoupled model, as later Tritons do; 2.51 tells none of this backend."
)

DIFFERENCES: list[Difference] = [
    Difference(
        "request: escapes are not resolved",
        "A model's name may be written with escapes (%61dder), as in any URL; Triton takes them as they stand.",
        None,
    ),
    Difference(
        "grpc: refusals",
        "A gRPC message has no blanks at its end (RFC 9113, 8.2.1); Triton's shape refusals end in one.",
        lambda answer: [(status, text.rstrip()) for status, text in answer],
    ),
    *(
        Difference(
            f"sequence_text{calls}-*",
            "The control CORRID may be text, as its documentation says; Triton 2.51 refuses its own (core#339).",
            None,
        )
        for calls in (", two interleaved", " of one step", " started anew", " that has ended")
    ),
    *(
        Difference(
            f"{calls}-*",
            "An ensemble's outputs come in the order of its configuration; Triton's in that of a hash table.",
            in_any_order,
        )
        for calls in ("ensemble, fan out and in", "ensemble of versions")
    ),
    Difference(
        "ensemble, only the other step is wanted-*",
        "Only the steps run that the wanted outputs need; Triton runs into a deadlock of its own making.",
        None,
    ),
    Difference(
        "answers from the cache, *",
        "A cached answer is one to the same question: parameters and the outputs that are named count. In Triton's key "
        "are the inputs alone.",
        None,
    ),
    *(
        Difference(
            f"{calls}-stream",
            "The end of an ensemble with decoupled steps comes with its last answer or alone, in Triton as here, by "
            "what is still in flight.",
            without_ends,
            is_always=False,
        )
        for calls in ("ensemble with a decoupled step", "ensemble with parameters")
    ),
    *(
        Difference(
            f"plain model with a sender, {calls}",
            "A model that is not decoupled has one answer, which is the last; Triton lets a second one follow, over "
            "REST into the same body.",
            None,
        )
        for calls in ("twice-*", "twice on a stream-*", "in two steps-stream")
    ),
    Difference(
        "call of repeater, decoupled_failing-*",
        "A model that calls a decoupled one is told of its error; Triton's generator drops it.",
        None,
    ),
    *(
        Difference(
            f"wrong: {calls}-*",
            "The refusal names the class by our module, not by pybind11's.",
            without_texts,
        )
        for calls in ("answers_no_list", "answers_tensors")
    ),
    *(
        Difference(
            f"description: {model}",
            "Configurations have the fields of today's Triton; 2.51 does not know max_inflight_requests.",
            without_younger_fields,
        )
        for model in ENSEMBLES
    ),
    Difference(
        "broken: unknown_backend",
        "The reason says that the host has no such backend; Triton's speaks of libraries and runtimes.",
        without_reasons,
    ),
    Difference(
        "counted: failing",
        "A request that is answered with an error counts as failed; Triton counts it as a success.",
        None,
    ),
    Difference(
        "counted: warmed",
        "Warm-up is no client's request and is not counted; Triton counts it.",
        None,
    ),
    Difference(
        "rest: statistics_of_all",
        f"{RESPONSE_STATISTICS} This run's Triton has also run what other tests asked it.",
        without_history,
        is_always=False,
    ),
    Difference(
        "counted: decoupled*",
        RESPONSE_STATISTICS,
        without_responses,
    ),
]


def difference_of(name: str) -> Difference | None:
    return next((each for each in DIFFERENCES if fnmatch.fnmatchcase(name, each.calls)), None)


def assert_alike(name: str, triton: Any, host: Any) -> None:
    """The two replies are equal except for the listed difference of this call. A difference that no longer exists fails
    as well."""
    difference = difference_of(name)
    if difference is not None:
        if triton == host and difference.is_always:
            pytest.fail(f"{name}: both answer alike, so its row is out of date: {difference.reason}", pytrace=False)
        if difference.even is None:
            return
        triton, host = difference.even(triton), difference.even(host)
    if triton != host:
        pytest.fail(f"{name}:\n{told_apart(triton, host)}", pytrace=False)


def told_apart(triton: Any, host: Any) -> str:
    """A diff of the two replies: lines with `-` are Triton's, with `+` the host's."""
    lines = [pprint.pformat(answer, width=110).splitlines() for answer in (triton, host)]
    return "\n".join(difflib.unified_diff(*lines, "triton", "host", lineterm="", n=2))
