"""The tensors of a language model: those of Triton's vLLM backend, and what else may be asked of our own engine.

Source: triton-inference-server/vllm_backend `src/model.py` (auto_complete_config), `docs/additional_outputs.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.core.errors import EngineError, ErrorCode
from gateway.protocol.datatypes import CONFIG_DATATYPES

# Says to the host that a request which does not set this input has one answer.
_STREAM_INPUT = "STREAM_INPUT"
STREAM = "stream"

# Name -> datatype and length. All are optional: which of the first three is there says what the prompt is.
INPUTS: dict[str, tuple[str, int]] = {
    "text_input": ("BYTES", 1),
    "messages": ("BYTES", 1),  # JSON in OpenAI's form: a chat, which the model's template makes a prompt of
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
# A value a choice, but for what is of the prompt.
OUTPUTS: dict[str, tuple[str, int]] = {
    "text_output": ("BYTES", -1),
    "finish_reason": ("BYTES", -1),  # stop, length, or None while the choice goes on
    "stop_reason": ("BYTES", -1),  # the stop text, or the stop token's id, or None
    "cumulative_logprob": ("FP32", -1),
    "logprobs": ("BYTES", -1),  # JSON: [{token id: {logprob, rank, decoded_token}}], a token's own first
    "prompt_logprobs": ("BYTES", 1),  # JSON as logprobs, in the first answer; of the first token there is none
    "num_input_tokens": ("UINT32", 1),
    "num_output_tokens": ("UINT32", -1),  # since the last answer
    "num_cached_tokens": ("UINT32", 1),  # of the prompt, that needed no work
    "token_ids": ("BYTES", -1),  # JSON: [ids since the last answer]
}


def complete(config: Any, directory: Path, options: Mapping[str, str]) -> None:
    """Fill in tensors and the transaction policy; tensors that the configuration has already stay as they are.

    Raises: EngineError where the configuration wants the host to batch, which the engine does itself.
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
