"""An engine's outputs as responses to a request."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from engines.backends.paged.request_parser import ParsedRequest
from engines.backends.paged.response_stream import LogprobWriter, ResponseStream
from engines.core.errors import ErrorCode
from engines.paged.base.types import FinishReason, Output, TokenLogprob, Usage
from tests.engines.backends.support import Request

STOP, LENGTH, CANCELLED = FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED


@dataclass
class Stream(Request):
    """Keeps all answers: outputs as lists, their parameters, and whether each was the last."""

    sent: list[tuple[dict[str, Any], Any, bool]] = field(default_factory=list)

    def respond(
        self, outputs: Mapping[str, Any], *, is_final: bool = True, parameters: Mapping[str, Any] | None = None
    ) -> None:
        assert self.error is None
        assert not (self.sent and self.sent[-1][2]), "answered after the last"
        lists = {name: [_plain(each) for each in array.tolist()] for name, array in outputs.items()}
        self.sent.append((lists, parameters, is_final))


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def sent(steps: list[Output], *, n: int = 1, prompt: str = "", first: int = 0, **requested: Any) -> Stream:
    stream = Stream(inputs={})
    writer = LogprobWriter(lambda token_id: bytes([token_id]))
    request = ParsedRequest("", {}, **requested)
    answering = ResponseStream(stream, request, num_choices=n, prompt=prompt, logprobs=writer, first_token=first)
    for output in steps:
        answering(output)
    return stream


def more(text: str, *ids: int, choice: int = 0, **rest: Any) -> Output:
    return Output(choice, text, ids, usage=Usage(3, 2, 1), **rest)


COUNTS = {"finish_reason", "stop_reason", "num_input_tokens", "num_output_tokens", "num_cached_tokens"}
TWO = [more("Hel", 72), more("lo", 111, 33, finish_reason=STOP, stop="!", is_final=True)]


def test_a_stream_is_sent_as_it_comes() -> None:
    """Each output is a response with the requested outputs; counts are those since the previous one."""
    assert sent(TWO, streams=True, outputs=frozenset(COUNTS)).sent == [
        (
            {
                "text_output": ["Hel"],
                "finish_reason": ["None"],
                "stop_reason": ["None"],
                "num_input_tokens": [3],
                "num_output_tokens": [1],
                "num_cached_tokens": [1],
            },
            None,
            False,
        ),
        (
            {
                "text_output": ["lo"],
                "finish_reason": ["stop"],
                "stop_reason": ["!"],
                "num_input_tokens": [3],
                "num_output_tokens": [2],
                "num_cached_tokens": [1],
            },
            None,
            True,
        ),
    ]


def test_deferred_outputs_come_at_the_end() -> None:
    """With `defers_outputs` the other outputs come with a choice's last response; token ids stay with their text."""
    stream = sent(TWO, streams=True, defers_outputs=True, outputs=frozenset({"num_output_tokens", "token_ids"}))
    assert [outputs for outputs, _, _ in stream.sent] == [
        {"text_output": ["Hel"], "token_ids": ["[72]"]},
        {"text_output": ["lo"], "token_ids": ["[111, 33]"], "num_output_tokens": [3]},
    ]


def test_a_whole_answer_is_one() -> None:
    """Without a stream there is one response at the end, behind the prompt on demand."""
    (answer,) = sent(TWO, prompt="Say: ", outputs=frozenset({"finish_reason", "num_output_tokens", "token_ids"})).sent
    outputs = {"finish_reason": ["stop"], "num_output_tokens": [3], "token_ids": ["[72, 111, 33]"]}
    assert answer == ({"text_output": ["Say: Hello"]} | outputs, None, True)


def test_choices_of_a_stream_have_their_index() -> None:
    """Where there are several choices, each answer says which it is of."""
    outputs = [
        more("a", 1),
        more("b", 2, choice=1, finish_reason=LENGTH),
        more("c", 3, finish_reason=STOP, is_final=True),
    ]
    assert sent(outputs, n=2, streams=True).sent == [
        ({"text_output": ["a"]}, {"sequence_index": 0}, False),
        ({"text_output": ["b"]}, {"sequence_index": 1}, False),
        ({"text_output": ["c"]}, {"sequence_index": 0}, True),
    ]
    whole = sent(outputs, n=2, prompt="> ", outputs=frozenset({"finish_reason"})).sent
    assert whole == [({"text_output": ["> ac", "> b"], "finish_reason": ["stop", "length"]}, None, True)]


def test_logprobs_are_written_as_vllm_writes_them() -> None:
    """The token itself comes first, with its rank among the likeliest; bytes that are no text are listed."""
    scores = (TokenLogprob(65, -1.0, ((66, -0.5), (65, -1.0))), TokenLogprob(0xC3, float("-inf"), ((66, 0.0),)))
    outputs = [more("A", 65, 0xC3, logprobs=scores, finish_reason=STOP, is_final=True, cumulative_logprob=-1.0)]
    (answer,) = sent(outputs, outputs=frozenset({"logprobs", "cumulative_logprob"})).sent
    assert answer[0]["cumulative_logprob"] == [-1.0]
    first, second = json.loads(answer[0]["logprobs"][0])
    assert list(first) == ["65", "66"]
    assert first["65"] == {"logprob": -1.0, "rank": 2, "decoded_token": "A"}
    assert second["195"] == {
        "logprob": -9999.0,
        "rank": 2,
        "decoded_token": "\N{REPLACEMENT CHARACTER}",
        "bytes": [0xC3],
    }


def test_prompt_logprobs_come_with_the_first_response() -> None:
    """The prompt's first token has no logprob: its entry has only the token's text."""
    first = more("a", 1, prompt_logprobs=(None, TokenLogprob(66, -2.0)))
    stream = sent([first, TWO[1]], streams=True, outputs=frozenset({"prompt_logprobs"}), first=65)
    assert [sorted(outputs) for outputs, _, _ in stream.sent] == [
        ["prompt_logprobs", "text_output"],
        ["text_output"],
    ]
    assert json.loads(stream.sent[0][0]["prompt_logprobs"][0]) == [
        {"65": {"logprob": None, "rank": None, "decoded_token": "A"}},
        {"66": {"logprob": -2.0, "rank": 1, "decoded_token": "B"}},
    ]


FAILURES = [
    (Output(0, finish_reason=CANCELLED, is_final=True), ErrorCode.CANCELLED, "inference request is cancelled"),
    (
        Output(0, finish_reason=FinishReason.DEADLINE, is_final=True, usage=Usage(1, 7)),
        ErrorCode.UNAVAILABLE,
        "Request timeout expired after 7 tokens",
    ),
    (Output(0, finish_reason=FinishReason.ERROR, is_final=True, error="NaN"), ErrorCode.INTERNAL, "NaN"),
]


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("output, code, text", FAILURES)
def test_what_ends_before_its_time_is_an_error(output: Output, code: ErrorCode, text: str, streams: bool) -> None:
    """A cancelled, late or failed request ends with an error, after what a stream has sent."""
    stream = sent([more("a", 1), output], streams=streams)
    assert stream.error is not None
    assert (stream.error.code, stream.error.message) == (code, text)
    assert len(stream.sent) == (1 if streams else 0)


def test_one_failed_choice_fails_the_request_once_all_have_ended() -> None:
    """If one choice fails, the others continue and the request's error is sent last."""
    failed = Output(0, finish_reason=FinishReason.ERROR, error="NaN")
    stream = sent([failed, more("b", 2, choice=1, finish_reason=STOP, is_final=True)], n=2)
    assert stream.error is not None
    assert stream.error.message == "NaN"


def test_a_response_that_cannot_be_sent_affects_no_other_request() -> None:
    """A host that is gone is no reason for the engine's thread to end."""

    class Gone(Request):
        def respond(self, outputs: Any, **rest: Any) -> None:
            raise OSError("the host is gone")

    answering = ResponseStream(
        Gone(inputs={}), ParsedRequest("", {}), num_choices=1, prompt="", logprobs=LogprobWriter(bytes)
    )
    answering(more("a", 1, finish_reason=STOP, is_final=True))
