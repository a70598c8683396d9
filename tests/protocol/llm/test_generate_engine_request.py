"""Generate requests as written for V2 engines."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.protocol.errors import GatewayError
from gateway.protocol.llm.canonical import (
    Generation,
    Media,
    Message,
    Text,
    Tool,
)
from gateway.protocol.llm.generate_engine_request import signature_of, write_request
from tests.protocol.llm.v2_models import (
    LLM_API,
    REPEATER,
    TRTLLM,
    TRTLLM_OF_2023,
    UPPER,
    VLLM,
    VLLM_OF_2024,
)

SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}


def asked(generation: Generation, model: dict[str, Any], **how: Any) -> tuple[str, dict[str, Any], list[str]]:
    suffix, body, lost = write_request(generation, model="m", signature=signature_of(model), **how)
    return suffix, orjson.loads(body), lost


def test_a_request_to_vllm() -> None:
    """vLLM gets the options as one JSON text, and every flag that adds information to the reply."""
    options = {"max_tokens": 5, "temperature": 0.5, "stop": ["\n"], "seed": 7, "logprobs": 2, "response_format": SCHEMA}
    generation = Generation("x", prompt="Hi", options=options, stream=True, id="42")
    suffix, body, lost = asked(generation, VLLM)
    assert suffix == "generate_stream"
    sampling = orjson.loads(body.pop("sampling_parameters"))
    assert body == {
        "id": "42",
        "text_input": "Hi",
        "stream": True,
        "exclude_input_in_output": True,
        "return_finish_reason": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
        "return_logprobs": True,
    }
    guide = sampling.pop("structured_outputs")
    assert orjson.loads(guide) == {"json": {"type": "object"}}
    assert sampling == {"max_tokens": 5, "temperature": 0.5, "stop": ["\n"], "seed": 7, "logprobs": 2}
    assert lost == []


def test_an_older_vllm_is_asked_only_what_it_knows() -> None:
    """Flags missing from the metadata are left out; guided decoding has its older name."""
    generation = Generation("x", prompt="Hi", options={"max_tokens": 5, "response_format": {"type": "json_object"}})
    suffix, body, _ = asked(generation, VLLM_OF_2024)
    assert suffix == "generate"
    assert body == {
        "text_input": "Hi",
        "stream": False,
        "exclude_input_in_output": True,
        "sampling_parameters": '{"max_tokens":5,"guided_decoding":"{\\"json_object\\":true}"}',
    }


@pytest.mark.parametrize(
    "model, expected",
    [
        (
            TRTLLM,
            {
                "text_input": "Hi",
                "stream": False,
                "exclude_input_in_output": True,
                "return_num_input_tokens": True,
                "return_num_output_tokens": True,
                "max_tokens": 5,
                "stop_words": ["a", "b"],
                "seed": 3,
                "min_tokens": 1,
                "top_k": 4,
                "n": None,
            },
        ),
        (
            TRTLLM_OF_2023,
            {
                "text_input": "Hi",
                "stream": False,
                "max_tokens": 5,
                "stop_words": ["a", "b"],
                "random_seed": 3,
                "min_length": 1,
                "top_k": 4,
            },
        ),
    ],
)
def test_a_request_to_tensorrt_llm(model: dict[str, Any], expected: dict[str, Any]) -> None:
    """Each option has its own tensor, under the name that this version of the backend uses."""
    options = {"max_tokens": 5, "stop": ["a", "b"], "seed": 3, "min_tokens": 1, "top_k": 4}
    _, body, lost = asked(Generation("x", prompt="Hi", options=options), model)
    assert body == {name: value for name, value in expected.items() if value is not None}
    assert lost == []


def test_a_request_to_the_llm_api() -> None:
    """In the LLM API `stop` cancels the request; stop strings go into `sampling_param_stop`."""
    generation = Generation("x", prompt="Hi", options={"stop": ["a"], "max_tokens": 2}, stream=True)
    assert asked(generation, LLM_API) == (
        "generate_stream",
        {
            "text_input": "Hi",
            "streaming": True,
            "return_finish_reason": True,
            "return_stop_reason": True,
            "sampling_param_stop": ["a"],
            "sampling_param_max_tokens": 2,
        },
        [],
    )


def test_a_guide_to_tensorrt_llm() -> None:
    """A JSON schema becomes the backend's decoding guide."""
    _, body, _ = asked(Generation("x", prompt="Hi", options={"response_format": SCHEMA}), TRTLLM)
    assert (body["guided_decoding_guide_type"], body["guided_decoding_guide"]) == ("json_schema", '{"type":"object"}')
    _, body, _ = asked(Generation("x", prompt="Hi", options={"response_format": {"type": "json_object"}}), TRTLLM)
    assert body["guided_decoding_guide_type"] == "json" and "guided_decoding_guide" not in body


def test_a_request_to_any_other_model() -> None:
    """An option goes into the tensor of its name or becomes a parameter; values that are no scalars are sent as JSON
    text."""
    options = {"temperature": 0.5, "max_tokens": 5, "stop": ["a"], "metadata": {"k": "v"}}
    _, body, lost = asked(Generation("x", prompt="Hi", options=options), REPEATER)
    assert body == {
        "text_input": "Hi",
        "temperature": 0.5,
        "parameters": {"max_tokens": 5, "stop": '["a"]', "metadata": '{"k":"v"}'},
    }
    assert lost == []
    assert asked(Generation("x", prompt="Hi"), UPPER)[1] == {"TEXT": "Hi"}


@pytest.mark.parametrize("model", [VLLM, TRTLLM])
def test_without_a_limit_a_backend_gets_one(model: dict[str, Any]) -> None:
    """Without max_tokens, a completion gets OpenAI's default of 16 and a chat gets 1024."""

    def limit(generation: Generation, **how: Any) -> int:
        _, body, _ = asked(generation, model, **how)
        number: int = (body | orjson.loads(body.get("sampling_parameters", "{}")))["max_tokens"]
        return number

    chat = Generation("x", prompt="<u>Hi<a>", messages=(Message("user", (Text("Hi"),)),))
    assert limit(Generation("x", prompt="Hi")) == 16
    assert limit(chat) == 1024


def test_images_go_beside_the_prompt() -> None:
    """vLLM gets the images in base64; remote URLs and models without an image input are rejected."""
    parts = (Text("what is it"), Media("image", "data:image/png;base64,AAAA"), Media("image", "data:x;base64,BBBB"))
    generation = Generation("x", prompt="p", messages=(Message("user", parts),))
    assert asked(generation, VLLM)[1]["image"] == ["AAAA", "BBBB"]
    with pytest.raises(GatewayError, match="'image' cannot be told to a TensorRT-LLM"):
        asked(generation, TRTLLM)
    _, body, lost = asked(generation, TRTLLM, drop=True)
    assert lost == ["image"] and "image" not in body
    remote = Generation("x", prompt="p", messages=(Message("user", (Media("image", "https://a/b.png"),)),))
    with pytest.raises(GatewayError, match="base64 'data:' URL"):
        asked(remote, VLLM)


REFUSED = [
    (Generation("x", prompt=[1, 2]), VLLM, "token ids"),
    (Generation("x", messages=(Message("user", (Text("Hi"),)),)), VLLM, "chat_template"),
    (
        Generation("x", prompt="p", options={"logit_bias": {"5": 1}}),
        VLLM,
        "'logit_bias' cannot be told to Triton's vLLM",
    ),
    (Generation("x", prompt="p", options={"logprobs": 0}), VLLM_OF_2024, "'logprobs'"),
    (Generation("x", prompt="p", options={"logprobs": 0, "min_p": 1}), TRTLLM, "'logprobs', 'min_p'"),
    (Generation("x", prompt="p", options={"frequency_penalty": 1}), TRTLLM_OF_2023, "'frequency_penalty'"),
    (
        Generation("x", prompt="p", options={"never_heard": 1}),
        REPEATER,
        "'never_heard' cannot be told to a V2 generate",
    ),
    (Generation("x", prompt="p", tools=(Tool("f"),)), REPEATER, "'tools'"),
    (Generation("x", prompt="p", options={"response_format": {"type": "grammar"}}), VLLM, "'response_format' must be"),
]


@pytest.mark.parametrize("generation, model, words", REFUSED)
def test_what_an_engine_has_no_place_for(generation: Generation, model: dict[str, Any], words: str) -> None:
    """Input or options that the engine does not support are rejected by name."""
    with pytest.raises(GatewayError, match=words):
        asked(generation, model)


def test_what_has_no_place_may_be_dropped() -> None:
    """With `drop`, unsupported options are left out and listed; `user` changes no answer."""
    _, body, lost = asked(Generation("x", prompt="p", options={"min_p": 1, "user": "u"}), TRTLLM, drop=True)
    assert lost == ["min_p"]
    assert body.keys().isdisjoint({"min_p", "user"})
