"""Metadata of language models as Triton reports it, shortened to what identifies each backend.

Source: vllm_backend `src/model.py`; TensorRT-LLM `triton_backend/all_models` (inflight_batcher_llm/ensemble and its
forerunners, llmapi/tensorrt_llm).
"""

from __future__ import annotations

from typing import Any


def metadata(name: str, inputs: str, outputs: str) -> dict[str, Any]:
    """`inputs` and `outputs` are "name:DATATYPE", followed by the axes if not 1, for example "stop_words:BYTES:-1"."""
    return {"name": name, "versions": ["1"], "platform": "x", "inputs": _tensors(inputs), "outputs": _tensors(outputs)}


def _tensors(written: str) -> list[dict[str, Any]]:
    tensors = []
    for each in written.split():
        name, datatype, *shape = each.split(":")
        tensors.append({"name": name, "datatype": datatype, "shape": [int(axis) for axis in shape] or [1]})
    return tensors


_FLAGS = "return_finish_reason:BOOL return_cumulative_logprob:BOOL return_num_output_tokens:BOOL"
_NEW_FLAGS = "return_logprobs:BOOL return_num_input_tokens:BOOL"

VLLM = metadata(
    "vllm_model",
    f"text_input:BYTES image:BYTES:-1 stream:BOOL sampling_parameters:BYTES exclude_input_in_output:BOOL {_FLAGS} "
    f"{_NEW_FLAGS} embedding_request:BYTES",
    "text_output:BYTES:-1 finish_reason:BYTES:-1 cumulative_logprob:FP32:-1 logprobs:BYTES:-1 num_input_tokens:UINT32 "
    "num_output_tokens:UINT32:-1",
)
VLLM_OF_2024 = metadata(
    "old_vllm",
    "text_input:BYTES stream:BOOL sampling_parameters:BYTES exclude_input_in_output:BOOL",
    "text_output:BYTES:-1",
)
TRTLLM = metadata(
    "ensemble",
    "text_input:BYTES:-1:1 decoder_text_input:BYTES:-1:1 max_tokens:INT32:-1:1 num_return_sequences:INT32:-1:1 "
    "bad_words:BYTES:-1:-1 stop_words:BYTES:-1:-1 exclude_input_in_output:BOOL:-1:1 end_id:INT32:-1:1 "
    "pad_id:INT32:-1:1 top_k:INT32:-1:1 top_p:FP32:-1:1 temperature:FP32:-1:1 length_penalty:FP32:-1:1 "
    "repetition_penalty:FP32:-1:1 min_tokens:INT32:-1:1 presence_penalty:FP32:-1:1 frequency_penalty:FP32:-1:1 "
    "seed:UINT64:-1:1 return_log_probs:BOOL:-1:1 return_num_input_tokens:BOOL:-1:1 "
    "return_num_output_tokens:BOOL:-1:1 beam_width:INT32:-1:1 stream:BOOL:-1:1 "
    "guided_decoding_guide_type:BYTES:-1:1 guided_decoding_guide:BYTES:-1:1",
    "text_output:BYTES:-1:-1 cum_log_probs:FP32:-1:-1 output_log_probs:FP32:-1:-1:-1 sequence_index:INT32:-1:1 "
    "num_input_tokens:INT32:-1:1 num_output_tokens:INT32:-1:1",
)
TRTLLM_OF_2023 = metadata(
    "tensorrt_llm_bls",
    "text_input:BYTES:-1:1 max_tokens:INT32:-1:1 bad_words:BYTES:-1:-1 stop_words:BYTES:-1:-1 end_id:INT32:-1:1 "
    "top_k:INT32:-1:1 top_p:FP32:-1:1 temperature:FP32:-1:1 min_length:INT32:-1:1 random_seed:UINT64:-1:1 "
    "stream:BOOL:-1:1 stop:BOOL:-1:1",
    "text_output:BYTES:-1:-1 cum_log_probs:FP32:-1:-1",
)
LLM_API = metadata(
    "tensorrt_llm",
    "text_input:BYTES:-1 streaming:BOOL sampling_param_temperature:FP32 sampling_param_top_k:INT32 "
    "sampling_param_max_tokens:INT32 sampling_param_stop:BYTES:-1 sampling_param_seed:UINT64 "
    "return_finish_reason:BOOL return_stop_reason:BOOL stop:BOOL",
    "text_output:BYTES:-1 finish_reason:BYTES:-1 stop_reason:BYTES:-1",
)
REPEATER = metadata("repeater", "text_input:BYTES count:INT32 temperature:FP32", "text_output:BYTES")
UPPER = metadata("upper", "TEXT:BYTES LENGTH:INT32", "UPPER:BYTES SCORE:FP32")
MINILM = metadata("embedding", "text:BYTES:-1:1", "embedding:FP32:-1:384")
