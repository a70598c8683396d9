"""Parsing of a request's tensors and parameters."""

import json
from typing import Any

import numpy as np
import pytest

from engines.backends.paged.chat import Chat
from engines.backends.paged.request_parser import ParsedRequest, read_request
from engines.core.errors import EngineError
from tests.engines.backends.support import Request


def texts(*values: str) -> Any:
    array = np.empty(len(values), object)
    array[:] = [value.encode() for value in values]
    return array


def flag(value: bool) -> Any:
    return np.array([value])


def request(parameters: dict[str, Any] | None = None, **inputs: Any) -> ParsedRequest:
    return read_request(Request(inputs=inputs, parameters=parameters or {}))


HELLO = {"text_input": texts("Hello")}
USER = {"role": "user", "content": "Hi"}


def test_a_text_alone() -> None:
    """A prompt and nothing else is answered once, with the prompt before the text, as vLLM's backend does."""
    assert request(**HELLO) == ParsedRequest("Hello", {}, repeats_prompt=True)


def test_flags_add_outputs() -> None:
    """Each `return_` flag that is true adds the output of its name."""
    read = request(
        **HELLO,
        stream=flag(True),
        return_finish_reason=flag(True),
        return_logprobs=flag(True),
        return_token_ids=flag(False),
    )
    assert read.streams
    assert not read.repeats_prompt
    assert read.outputs == {"finish_reason", "logprobs"}


@pytest.mark.parametrize(
    "stream, excludes, repeats", [(None, None, True), (None, True, False), (None, False, True), (True, None, False)]
)
def test_when_the_prompt_is_repeated(stream: bool | None, excludes: bool | None, repeats: bool) -> None:
    """A whole answer begins with the prompt unless it is excluded; a stream never does."""
    inputs = {
        name: flag(value)
        for name, value in (("stream", stream), ("exclude_input_in_output", excludes))
        if value is not None
    }
    assert request(**HELLO, **inputs).repeats_prompt == repeats


def test_sampling_fields_stand_in_json_or_among_the_parameters() -> None:
    """`sampling_parameters` is a JSON text. Without it the request's parameters are used, with lists and objects as
    JSON."""
    results = {"temperature": 0.5, "stop": ["a", "b"], "logit_bias": {"5": -1}}
    assert request(**HELLO, sampling_parameters=texts(json.dumps(results))).fields == results
    scalars = {"temperature": 0.5, "stop": '["a", "b"]', "logit_bias": '{"5": -1}', "bad": "[x"}
    assert request(scalars, **HELLO).fields == {**results, "bad": "[x"}
    guided = json.dumps({"guided_decoding": json.dumps({"json_object": True})})
    assert request(**HELLO, sampling_parameters=texts(guided)).fields == {"guided_decoding": {"json_object": True}}
    assert request({"temperature": 1.0}, **HELLO, sampling_parameters=texts("{}")).fields == {}


def test_what_is_no_field_of_sampling() -> None:
    """Adapter, salt, level and time may stand as parameters, the first two in the JSON too."""
    read = request(
        {"adapter": "sql", "cache_salt": "s", "priority": 3, "timeout": 1_500_000, "tell_at_end": True}, **HELLO
    )
    assert (read.adapter, read.cache_salt, read.priority, read.timeout_seconds) == ("sql", "s", 97, 1.5)
    assert read.defers_outputs
    assert not read.fields
    written = json.dumps({"lora_name": "sql", "cache_salt": "s", "add_special_tokens": False, "n": 2})
    read = request(**HELLO, sampling_parameters=texts(written))
    assert (read.adapter, read.cache_salt, read.adds_special_tokens, read.fields) == ("sql", "s", False, {"n": 2})


def test_a_lower_level_goes_first() -> None:
    """V2's level 1 goes before 2, and requests without one between 99 and 101."""
    priorities = [request({"priority": level}, **HELLO).priority for level in (1, 2, 99, 0, 101)]
    assert priorities == sorted(priorities, reverse=True)
    assert len(set(priorities)) == 5


def test_token_ids_are_a_prompt() -> None:
    """A prompt can be given as token ids."""
    assert request(input_ids=np.array([3, 4], np.int64)).prompt == (3, 4)


def test_a_chat_is_a_prompt() -> None:
    """Messages and tools are JSON in OpenAI's form, or parsed by the host. Options of the template are not sampling
    fields."""
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    sampling = {"chat_template_kwargs": {"enable_thinking": False}, "add_generation_prompt": True, "top_k": 3}
    read = request(
        messages=texts(json.dumps([USER])),
        tools=texts(json.dumps([tool])),
        sampling_parameters=texts(json.dumps(sampling)),
    )
    function = {"name": "f", "description": "", "parameters": {"type": "object"}}
    chat = {"messages": [USER], "tools": [{"type": "function", "function": function}]}
    assert read.prompt == Chat(**chat, options={"enable_thinking": False})
    assert read.fields == {"top_k": 3}
    sent = Request(inputs={"sampling_parameters": texts(json.dumps(sampling))}, chat=chat)
    assert read_request(sent).prompt == read.prompt


MANY = "one of 'text_input' (the prompt as text)"
WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, MANY),
    ({**HELLO, "input_ids": np.array([1])}, "'text_input' and 'input_ids' are given; one of"),
    ({**HELLO, "sampling_parameters": texts("{")}, "'sampling_parameters' is no JSON: "),
    ({**HELLO, "sampling_parameters": texts("[1]")}, "'sampling_parameters' must be the text of a JSON object"),
    ({**HELLO, "sampling_parameters": texts('{"cache_salt": 1}')}, "'cache_salt' must be a text"),
    ({**HELLO, "sampling_parameters": texts('{"lora_name": ["a"]}')}, "'lora_name' must be a text"),
    (
        {**HELLO, "sampling_parameters": texts('{"lora_name": "a", "adapter": "b"}')},
        "'adapter' and 'lora_name' name two adapters, b and a; give one",
    ),
    (
        {**HELLO, "stream": flag(True), "exclude_input_in_output": flag(False)},
        "When streaming, `exclude_input_in_output` = False is not allowed.",
    ),
    ({"messages": texts("nope")}, "'messages' is no JSON: "),
    ({"messages": texts("[]")}, "'messages' is missing; it must be a list of at least one message"),
    ({"messages": texts('[{"role": "king"}]')}, "'messages[0].role' must be one of system, developer, user"),
    (
        {"messages": texts('[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]')},
        "'messages' hold an image, a sound or a file, and this engine's models read text alone",
    ),
    ({"text_input": np.array([b"\xff"], object)}, "'text_input' is no text in UTF-8: invalid start byte at byte 0"),
]


@pytest.mark.parametrize("inputs, error_text", WRONG)
def test_what_is_wrong_is_named(inputs: dict[str, Any], error_text: str) -> None:
    """A request that cannot be read is refused by the name of the tensor or the field."""
    with pytest.raises(EngineError) as failure:
        request(**inputs)
    assert failure.value.message.startswith(error_text)
