"""What V2 tells of a model at an engine that has no V2: a language model in the form of Triton's vLLM backend.

Its tensors are the ones that `text_fields` reads and `text_told` writes; clients of either backend find their names.
Source: `generate_flavours`; Triton's model configuration (`ModelConfig`).
"""

from __future__ import annotations

from typing import Any

from gateway.protocol.conversion.control_messages import read_fields, write_fields
from gateway.protocol.llm.infer_text import OUTPUTS
from gateway.protocol.protobuf import message

PLATFORM = "openai"
VERSION = "1"

# Name -> datatype and length; only the first must be given.
INPUTS: dict[str, tuple[str, int]] = {
    "text_input": ("BYTES", 1),
    "image": ("BYTES", -1),
    "stream": ("BOOL", 1),
    "sampling_parameters": ("BYTES", 1),
    "exclude_input_in_output": ("BOOL", 1),
    "max_tokens": ("INT32", 1),
    "min_tokens": ("INT32", 1),
    "temperature": ("FP32", 1),
    "top_p": ("FP32", 1),
    "top_k": ("INT32", 1),
    "min_p": ("FP32", 1),
    "seed": ("UINT64", 1),
    "random_seed": ("UINT64", 1),
    "stop": ("BYTES", -1),
    "stop_words": ("BYTES", -1),
    "bad_words": ("BYTES", -1),
    "n": ("INT32", 1),
    "presence_penalty": ("FP32", 1),
    "frequency_penalty": ("FP32", 1),
    "repetition_penalty": ("FP32", 1),
    "return_finish_reason": ("BOOL", 1),
    "return_stop_reason": ("BOOL", 1),
    "return_cumulative_logprob": ("BOOL", 1),
    "return_log_probs": ("BOOL", 1),
    "return_num_input_tokens": ("BOOL", 1),
    "return_num_output_tokens": ("BOOL", 1),
}
_ONE = frozenset({"num_input_tokens"})


def openai_metadata(model: str) -> dict[str, Any]:
    """The V2 metadata of a model, as `GET /v2/models/MODEL` tells it."""
    return {
        "name": model,
        "versions": [VERSION],
        "platform": PLATFORM,
        "inputs": [_tensor(name, datatype, length) for name, (datatype, length) in INPUTS.items()],
        "outputs": [_tensor(name, datatype, _length(name)) for name, datatype in OUTPUTS.items()],
    }


def openai_config(model: str) -> dict[str, Any]:
    """Its configuration, as `GET /v2/models/MODEL/config` tells it: decoupled, without batches."""
    config = message("inference.ModelConfig")()
    read_fields(
        config,
        {
            "name": model,
            "platform": PLATFORM,
            "backend": PLATFORM,
            "version_policy": {"latest": {"num_versions": 1}},
            "max_batch_size": 0,
            "model_transaction_policy": {"decoupled": True},
            "input": [
                _config(name, datatype, length) | {"optional": name != "text_input"}
                for name, (datatype, length) in INPUTS.items()
            ],
            "output": [_config(name, datatype, _length(name)) for name, datatype in OUTPUTS.items()],
        },
    )
    return write_fields(config)


def _tensor(name: str, datatype: str, length: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": [length]}


def _config(name: str, datatype: str, length: int) -> dict[str, Any]:
    return {
        "name": name,
        "data_type": f"TYPE_{'STRING' if datatype == 'BYTES' else datatype}",
        "dims": [length],
    }


def _length(output: str) -> int:
    return 1 if output in _ONE else -1
