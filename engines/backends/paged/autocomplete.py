"""The tensors of a language model: those of Triton's vLLM backend, and more of our own engine.

Source: triton-inference-server/vllm_backend `src/model.py` (auto_complete_config), `docs/additional_outputs.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.core.errors import EngineError, ErrorCode
from gateway.protocol.datatypes import CONFIG_DATATYPES

# Names the input without which a request has one response.
_STREAM_INPUT = "STREAM_INPUT"
STREAM = "stream"

# Name -> datatype and length. All are optional; one of the first three is the prompt.
INPUTS: dict[str, tuple[str, int]] = {
    "text_input": ("BYTES", 1),
    "messages": ("BYTES", 1),  # JSON in OpenAI's form: a chat, rendered by the model's template
    "input_ids": ("INT64", -1),
    "tools": ("BYTES", 1),  # JSON in OpenAI's form, beside messages
    STREAM: ("BOOL", 1),
    "sampling_parameters": ("BYTES", 1),  # JSON: fields of vLLM's SamplingParams
    "exclude_input_in_output": ("BOOL", 1),
    "return_finish_reason": ("BOOL", 1),
    "return_stop_reason": ("BOOL", 1),
    "return_cumulative_logprob": ("BOOL", 1),
    "return_logprobs": ("BOOL", 1),
    "return_prompt_logprobs": ("BOOL", 1),
    "return_num_input_tokens": ("BOOL", 1),
    "return_num_output_tokens": ("BOOL", 1),
    "return_num_cached_tokens": ("BOOL", 1),
    "return_token_ids": ("BOOL", 1),
}
# One value per choice, except those of the prompt.
OUTPUTS: dict[str, tuple[str, int]] = {
    "text_output": ("BYTES", -1),
    "finish_reason": ("BYTES", -1),  # stop, length, or None while the choice goes on
    "stop_reason": ("BYTES", -1),  # the stop string, the stop token's id, or None
    "cumulative_logprob": ("FP32", -1),
    "logprobs": ("BYTES", -1),  # JSON: [{token id: {logprob, rank, decoded_token}}], the token itself first
    "prompt_logprobs": ("BYTES", 1),  # JSON as logprobs, in the first response; the first token has none
    "num_input_tokens": ("UINT32", 1),
    "num_output_tokens": ("UINT32", -1),  # since the last response
    "num_cached_tokens": ("UINT32", 1),  # prompt tokens without prefill
    "token_ids": ("BYTES", -1),  # JSON: [ids since the last response]
}


def complete(config: Any, directory: Path, options: Mapping[str, str]) -> None:
    """Fill in tensors and the transaction policy; tensors in the configuration stay as they are.

    Raises: EngineError where the configuration enables the host's batching: the engine batches itself.
    """
    if config.max_batch_size or config.HasField("dynamic_batching") or config.HasField("sequence_batching"):
        raise EngineError(
            ErrorCode.INVALID_ARG,
            f"model '{config.name}' has a max_batch_size, dynamic_batching or sequence_batching: the paged engine "
            "batches what is under way itself, at every token; leave them out, and set the parameter MAX_SEQUENCES",
        )
    _fill(config.input, INPUTS, optional=True)
    _fill(config.output, OUTPUTS, optional=False)
    config.model_transaction_policy.decoupled = True
    config.parameters[_STREAM_INPUT].string_value = STREAM


def _fill(tensors: Any, declared: Mapping[str, tuple[str, int]], *, optional: bool) -> None:
    named = {tensor.name for tensor in tensors}
    for name, (datatype, length) in declared.items():
        if name not in named:
            added = tensors.add(name=name, data_type=CONFIG_DATATYPES.index(datatype), dims=(length,))
            if optional:
                added.optional = True
