"""Recognition of language models by their V2 metadata."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.generate_engine_request import GenerateConvention, signature_of
from tests.protocol.llm.v2_models import (
    LLM_API,
    MINILM,
    REPEATER,
    TRTLLM,
    TRTLLM_OF_2023,
    UPPER,
    VLLM,
    VLLM_OF_2024,
    metadata,
)


@pytest.mark.parametrize(
    "model, kind, tensors",
    [
        (VLLM, GenerateConvention.VLLM, ("text_input", "text_output", "stream")),
        (VLLM_OF_2024, GenerateConvention.VLLM, ("text_input", "text_output", "stream")),
        (TRTLLM, GenerateConvention.TRTLLM, ("text_input", "text_output", "stream")),
        (TRTLLM_OF_2023, GenerateConvention.TRTLLM, ("text_input", "text_output", "stream")),
        (LLM_API, GenerateConvention.TRTLLM, ("text_input", "text_output", "streaming")),
        (REPEATER, GenerateConvention.PLAIN, ("text_input", "text_output", "")),
        (UPPER, GenerateConvention.PLAIN, ("TEXT", "UPPER", "")),
        ({"name": "x", "inputs": [], "outputs": []}, GenerateConvention.PLAIN, ("text_input", "text_output", "")),
    ],
)
def test_a_model_is_known_by_its_metadata(
    model: dict[str, Any], kind: GenerateConvention, tensors: tuple[str, str, str]
) -> None:
    """Tensor names identify the backend; any other model with one text input and one text output is plain."""
    signature = signature_of(model)
    assert signature.kind is kind
    assert (signature.text_input, signature.text_output, signature.stream_input) == tensors


def test_what_a_backend_repeats_is_known_too() -> None:
    """Old TensorRT-LLM models repeat the prompt, and the LLM API repeats the text so far; the others do neither."""
    models = [VLLM, TRTLLM, TRTLLM_OF_2023, LLM_API, REPEATER]
    assert [signature_of(model).repeats_prompt for model in models] == [False, False, True, False, False]
    assert [signature_of(model).cumulative for model in models] == [False, False, False, True, False]
    accumulates = {"parameters": {"accumulate_tokens": {"string_value": "True"}}}
    assert signature_of(TRTLLM_OF_2023, accumulates).cumulative


@pytest.mark.parametrize("model", [MINILM, metadata("two", "a:BYTES b:BYTES", "c:BYTES"), metadata("n", "a:FP32", "")])
def test_no_language_model(model: dict[str, Any]) -> None:
    """A model without one text input and one text output is rejected by name."""
    with pytest.raises(GatewayError, match=f"'{model['name']}'") as raised:
        signature_of(model)
    assert raised.value.kind is ErrorKind.UNSUPPORTED
