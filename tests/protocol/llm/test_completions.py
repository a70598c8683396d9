"""Reading completion requests from clients, and writing them for engines."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import Generation, Media, Message, Text, Tool
from gateway.protocol.llm.completions import read_request, write_request

PROMPTS: dict[str, tuple[str, str | Sequence[int]]] = {
    "a text": ('"hi"', "hi"),
    "an empty text": ('""', ""),
    "token ids": ("[1,2]", [1, 2]),
    "one text in a list": ('["hi"]', "hi"),
    "token ids in a list": ("[[1,2]]", [1, 2]),
}


@pytest.mark.parametrize("given, prompt", PROMPTS.values(), ids=PROMPTS)
def test_a_prompt_is_read_and_written(given: str, prompt: str | Sequence[int]) -> None:
    """A request without max_tokens gets the API's default of 16."""
    generation = read_request(f'{{"model":"a","prompt":{given}}}'.encode())
    assert generation == Generation("a", prompt, options={"max_tokens": 16})
    body, lost = write_request(generation, model="m", drop=False)
    assert json.loads(body) == {"model": "m", "prompt": prompt, "max_tokens": 16}
    assert lost == []


@pytest.mark.parametrize(
    "more",
    [
        '"max_tokens":5,"temperature":0,"top_p":0.5,"seed":1,"stop":["a"],"n":3,"best_of":4,"echo":true,"suffix":"s"',
        '"max_tokens":0,"logprobs":0,"echo":true',
        '"max_tokens":5,"logprobs":3,"logit_bias":{"50256":-100},"user":"u","presence_penalty":0.5',
        '"max_tokens":5,"top_k":4,"min_p":0.1,"repetition_penalty":1.1,"stop_token_ids":[2],"ignore_eos":true',
        '"max_tokens":5,"response_format":{"type":"json_object"},"guided_regex":"a","allowed_token_ids":[1]',
    ],
)
def test_options_are_read_and_written(more: str) -> None:
    """Options keep their names."""
    generation = read_request(f'{{"model":"m","prompt":"hi",{more}}}'.encode())
    assert generation.options == json.loads(f"{{{more}}}")
    reply = json.loads(write_request(generation, model="m", drop=False)[0])
    assert reply == {"model": "m", "prompt": "hi", **json.loads(f"{{{more}}}")}


def test_what_says_nothing_is_left_out() -> None:
    """Nulls and default values are left out."""
    more = '"n":1,"best_of":1,"echo":false,"suffix":null,"logprobs":null,"stop":null,"max_tokens":null'
    generation = read_request(f'{{"model":"m","prompt":"hi",{more},"presence_penalty":0,"stream":false}}'.encode())
    assert generation.options == {"max_tokens": 16}


def test_a_stream_always_asks_the_engine_for_usage() -> None:
    """The gateway always requests usage from the engine for streams, even if the client does not."""
    body = b'{"model":"m","prompt":"hi","stream":true,"stream_options":{"include_usage":true}}'
    generation = read_request(body)
    assert (generation.stream, generation.include_usage) == (True, True)
    generation = read_request(b'{"model":"m","prompt":"hi","stream":true}')
    assert (generation.stream, generation.include_usage) == (True, False)
    reply = json.loads(write_request(generation, model="m", drop=False)[0])
    assert (reply["stream"], reply["stream_options"]) == (True, {"include_usage": True})


def test_messages_are_told_as_the_prompt_made_of_them() -> None:
    """Messages are sent as their rendered prompt; without a client limit, max_tokens is null and not 16."""
    messages = (Message("user", (Text("hi"),)),)
    body, _ = write_request(Generation("a", "<user>hi", messages), model="m", drop=False)
    assert json.loads(body) == {"model": "m", "prompt": "<user>hi", "max_tokens": None}
    body, _ = write_request(Generation("a", "<user>hi", messages, options={"max_tokens": 5}), model="m", drop=False)
    assert json.loads(body) == {"model": "m", "prompt": "<user>hi", "max_tokens": 5}


PICTURE = Message("user", (Media("image", "data:image/png;base64,AA=="),))


@pytest.mark.parametrize(
    "generation, what",
    [
        (Generation("m", messages=(Message("user", (Text("hi"),)),)), "'chat_template'"),
        (Generation("m", "hi", (PICTURE,)), "images"),
        (Generation("m", "hi", tools=(Tool("f"),)), "'tools' cannot be told"),
        (Generation("m", "hi", options={"tool_choice": "required"}), "'tool_choice'"),
        (Generation("m", "hi", options={"prompt_logprobs": 1}), "'prompt_logprobs'"),
        (read_request(b'{"model":"m","prompt":"hi","frobnicate":1}'), "'frobnicate'"),
    ],
)
def test_what_an_engine_has_no_place_for_is_refused_by_name(generation: Generation, what: str) -> None:
    """An option that the engine does not support is rejected by name, not dropped silently."""
    with pytest.raises(GatewayError, match=what) as refused:
        write_request(generation, model="m", drop=False)
    assert refused.value.kind is ErrorKind.UNSUPPORTED


def test_options_are_dropped_where_they_may_be() -> None:
    """With `drop`, unsupported options are left out and listed."""
    generation = Generation("m", "hi", tools=(Tool("f"),), options={"tool_choice": "auto", "seed": 1})
    body, lost = write_request(generation, model="m", drop=True)
    assert json.loads(body) == {"model": "m", "prompt": "hi", "seed": 1}
    assert sorted(lost) == ["tool_choice", "tools"]


MALFORMED = {
    '"model":"m"': "'prompt' must be a string or a list of token ids",
    '"model":"m","prompt":[]': "'prompt' must be",
    '"model":"m","prompt":[1,"a"]': "'prompt' must be",
    '"model":"m","prompt":[[]]': "'prompt' must be",
    '"model":"m","prompt":[true]': "'prompt' must be",
    '"model":"m","prompt":["a","b","c"]': "'prompt' holds 3 prompts",
    '"model":"m","prompt":[[1],[2]]': "'prompt' holds 2 prompts",
    '"prompt":"a"': "'model' is missing",
    '"model":"m","prompt":"a","logprobs":true': "'logprobs' must be an integer",
    '"model":"m","prompt":"a","echo":1': "'echo' must be true or false",
}


@pytest.mark.parametrize("fields, what", MALFORMED.items(), ids=MALFORMED)
def test_what_is_malformed_is_named(fields: str, what: str) -> None:
    """The error names the malformed field and what is expected."""
    with pytest.raises(GatewayError, match=what) as refused:
        read_request(f"{{{fields}}}".encode())
    assert refused.value.kind is ErrorKind.BAD_REQUEST
