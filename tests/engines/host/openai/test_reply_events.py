"""A generation as an inference, and its responses as events, between the two formats of OpenAI's front."""

import json
from typing import Any

import pytest

from engines.core.messages import InferRequest, InferResponse, SharedMemory, TensorData
from engines.host.openai.reply_events import AnswerReader
from engines.host.openai.request_builder import infer_request
from gateway.protocol.conversion.tensors import join_elements, split_elements
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm import chat_request, completions
from gateway.protocol.llm.canonical import Finished, Generation, Started, TextDelta, TokenUsage

USER = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def chat(**fields: Any) -> Generation:
    body = {"model": "m", "messages": [USER], **fields}
    return chat_request.read_request(json.dumps(body).encode())


def completion(**fields: Any) -> Generation:
    return completions.read_request(json.dumps({"model": "m", "prompt": "Once", **fields}).encode())


def infer(generation: Generation, adapter: str | None = None) -> InferRequest:
    return infer_request(generation, model="m", adapter=adapter, id="x", trace={})


def inputs(request: InferRequest) -> dict[str, Any]:
    """The tensors' values: texts are parsed as JSON where possible, flags are True."""
    return {tensor.name: _value(tensor) for tensor in request.inputs}


def _value(tensor: TensorData) -> Any:
    data = tensor.data
    assert not isinstance(data, SharedMemory)
    if tensor.datatype == "BYTES":
        (text,) = split_elements(data, 1)
        return text.decode() if tensor.name == "text_input" else json.loads(text)
    if tensor.datatype == "INT64":
        return list(memoryview(data).cast("q"))
    assert (tensor.datatype, bytes(data)) == ("BOOL", b"\x01")
    return True


ALWAYS = {
    "exclude_input_in_output",
    *("return_finish_reason", "return_stop_reason", "return_num_input_tokens"),
    *("return_num_output_tokens", "return_num_cached_tokens"),
}


def test_a_chat_is_one_parsed_value() -> None:
    """Messages and tools go as one parsed value, in the form of the model's template, and not as tensors."""
    request = infer(chat(tools=[TOOL], stream=True, temperature=0, max_completion_tokens=5))
    read = inputs(request)
    assert read.keys() - ALWAYS == {"stream", "sampling_parameters"}
    assert request.chat == {
        "messages": [USER],
        "tools": [{**TOOL, "function": {**TOOL["function"], "description": ""}}],
    }
    assert read["sampling_parameters"] == {"temperature": 0, "max_tokens": 5}


def test_tool_choice_none_leaves_tools_out() -> None:
    """`tool_choice` none leaves the tools out of the prompt."""
    assert infer(chat(tools=[TOOL], tool_choice="none")).chat == {"messages": [USER], "tools": []}


def test_a_completion_has_its_prompt_as_a_tensor() -> None:
    """A prompt is a text or token ids, and 16 tokens are the default."""
    read = inputs(infer(completion(logprobs=2, stop="x")))
    assert read["text_input"] == "Once"
    assert read["sampling_parameters"] == {"max_tokens": 16, "stop": ["x"], "logprobs": 2}
    assert read["return_logprobs"]
    assert inputs(infer(completion(prompt=[5, 6])))["input_ids"] == [5, 6]


def test_what_is_no_field_of_sampling_goes_beside() -> None:
    """Adapter, salt and priority become fields of the request. A user's name and metadata are ignored."""
    request = infer(chat(lora_name="sql", cache_salt="s", priority=5, user="me", metadata={"a": "b"}))
    assert request.parameters == {"tell_at_end": True, "adapter": "sql", "cache_salt": "s"}
    assert request.priority == 105
    assert inputs(request)["sampling_parameters"] == {}
    assert infer(chat(), "sql").parameters["adapter"] == "sql"
    assert infer(chat(priority=-1000)).priority == 1


REFUSED = [
    (
        lambda: infer(chat(tools=[TOOL], tool_choice="required")),
        ErrorKind.UNSUPPORTED,
        "'tool_choice' can be auto or none",
    ),
    (lambda: infer(chat(lora_name="a"), "b"), ErrorKind.BAD_REQUEST, "two adapters are named, 'a' and 'b'"),
    (lambda: infer(chat(cache_salt=5)), ErrorKind.BAD_REQUEST, "'cache_salt' must be a string"),
    (
        lambda: infer(completion(prompt=[2**63])),
        ErrorKind.BAD_REQUEST,
        "'prompt' holds numbers that are no token ids",
    ),
    (
        lambda: infer(completion(prompt=[1], echo=True, stream=True)),
        ErrorKind.BAD_REQUEST,
        "'echo' of a prompt of token",
    ),
    (lambda: completions.read_requests(b"[]"), ErrorKind.BAD_REQUEST, "the body must be a JSON object"),
    (
        lambda: completions.read_requests(b'{"prompt": ["a", "b"], "stream": true}'),
        ErrorKind.BAD_REQUEST,
        "'prompt' holds 2 prompts, of which a stream can tell one",
    ),
]


@pytest.mark.parametrize("send, kind, error_text", REFUSED)
def test_what_has_no_place_is_refused_by_name(send: Any, kind: ErrorKind, error_text: str) -> None:
    """An unsupported option is named in the error."""
    with pytest.raises(GatewayError) as failure:
        send()
    assert failure.value.kind is kind
    assert failure.value.message.startswith(error_text)


@pytest.mark.parametrize(
    "prompt, prompts",
    [
        ("a", ["a"]),
        (["a"], ["a"]),
        ([1, 2], [[1, 2]]),
        (["a", "b"], ["a", "b"]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_several_prompts_are_several_requests(prompt: Any, prompts: list[Any]) -> None:
    """Each request has all options of the original; a list of numbers is one prompt of token ids."""
    body = json.dumps({"model": "m", "prompt": prompt, "n": 2}).encode()
    read = completions.read_requests(body)
    assert [(each.prompt, each.options["n"]) for each in read] == [(each, 2) for each in prompts]


def test_a_prompt_that_is_repeated_is_scored_where_the_answer_is() -> None:
    """`echo` with logprobs also requests the prompt's logprobs. For a prompt of ids the model returns the prompt's
    text."""
    read = inputs(infer(completion(echo=True, logprobs=1)))
    assert read["return_prompt_logprobs"]
    assert read["exclude_input_in_output"]
    assert read["sampling_parameters"] == {"max_tokens": 16, "logprobs": 1, "prompt_logprobs": 1}
    assert "exclude_input_in_output" not in inputs(infer(completion(prompt=[1], echo=True)))


# Responses


def answer(index: int | None = None, /, **outputs: list[Any]) -> InferResponse:
    tensors = []
    for name, values in outputs.items():
        if isinstance(values[0], str):
            tensors.append(
                TensorData(name, "BYTES", (len(values),), join_elements([value.encode() for value in values]))
            )
        else:
            data = b"".join(value.to_bytes(4, "little") for value in values)
            tensors.append(TensorData(name, "UINT32", (len(values),), data))
    return InferResponse(tuple(tensors), {} if index is None else {"sequence_index": index})


def ending(reason: str, tokens: int, stop: str = "None", n: int = 1) -> dict[str, list[Any]]:
    return {
        "finish_reason": [reason] * n,
        "stop_reason": [stop] * n,
        "num_input_tokens": [4],
        "num_output_tokens": [tokens] * n,
        "num_cached_tokens": [2],
    }


def test_a_stream_becomes_events() -> None:
    """Text is passed on as it arrives, followed by the end and the usage."""
    reader = AnswerReader(chat(stream=True))
    assert reader.read(answer(text_output=["Hel"])) == [Started(), TextDelta("Hel")]
    assert reader.read(answer(text_output=[""])) == []
    assert reader.read(answer(text_output=["lo"], **ending("stop", 3, "!"))) == [
        TextDelta("lo"),
        Finished("stop", 0, "!"),
    ]
    assert reader.used == TokenUsage(4, 3, 2)


def test_choices_of_a_stream_are_separate() -> None:
    """Each response belongs to one choice; usage counts the tokens of all choices."""
    reader = AnswerReader(chat(stream=True, n=2))
    assert reader.read(answer(1, text_output=["b"])) == [Started(), TextDelta("b", 1)]
    assert reader.read(answer(0, text_output=["a"], **ending("length", 1))) == [TextDelta("a"), Finished("length", 0)]
    assert reader.read(answer(1, text_output=["c"], **ending("stop", 2, "7"))) == [
        TextDelta("c", 1),
        Finished("stop", 1),
    ]
    assert reader.used == TokenUsage(4, 3, 2)


def test_a_whole_answer_becomes_events() -> None:
    """One response has all choices."""
    reader = AnswerReader(completion(n=2, echo=True))
    events = reader.read(answer(text_output=["a", ""], **ending("length", 1, n=2)))
    assert events == [Started(), TextDelta("Oncea"), TextDelta("Once", 1), Finished("length", 0), Finished("length", 1)]
    assert reader.used == TokenUsage(4, 2, 2)


def test_the_prompts_logprobs_stand_before_the_answers() -> None:
    """The prompt's first token has no logprob."""
    none = {"79": {"logprob": None, "rank": None, "decoded_token": "O"}}
    some = {"110": {"logprob": -1.0, "rank": 1, "decoded_token": "n"}}
    reader = AnswerReader(completion(echo=True, logprobs=1), first_choice=3)
    outputs = {"prompt_logprobs": [json.dumps([none, some])], "logprobs": [json.dumps([some])]}
    events = reader.read(answer(text_output=["n"], **outputs, **ending("length", 1)))
    assert isinstance(events[1], TextDelta)
    assert (events[1].text, events[1].index) == ("Oncen", 3)
    assert [(each["token"], each["logprob"], len(each["top_logprobs"])) for each in events[1].logprobs or ()] == [
        ("O", None, 0),
        ("n", -1.0, 1),
        ("n", -1.0, 1),
    ]
    assert events[2] == Finished("length", 3)


def test_logprobs_become_openais() -> None:
    """A token's own logprob and the likeliest, in the form of chat completions; bytes where they are no text."""
    token = {
        "65": {"logprob": -1.5, "rank": 2, "decoded_token": "A"},
        "66": {"logprob": -0.5, "rank": 1, "decoded_token": "B"},
    }
    part = {"195": {"logprob": -2.0, "rank": 2, "decoded_token": "\N{REPLACEMENT CHARACTER}", "bytes": [195]}}
    reader = AnswerReader(chat(logprobs=True, top_logprobs=1))
    events = reader.read(answer(text_output=["A"], logprobs=[json.dumps([token, part])], **ending("stop", 2)))
    assert isinstance(events[1], TextDelta)
    assert events[1].logprobs == [
        {
            "token": "A",
            "logprob": -1.5,
            "bytes": [65],
            "top_logprobs": [{"token": "B", "logprob": -0.5, "bytes": [66]}],
        },
        {"token": "\N{REPLACEMENT CHARACTER}", "logprob": -2.0, "bytes": [195], "top_logprobs": []},
    ]
