"""The texts of config.pbtxt, from tables of tensors.

Sources: the model configurations of TensorRT-LLM's triton_backend (`all_models/inflight_batcher_llm` and
`all_models/llmapi`), whose tensors, parameters and their meaning these have; Triton's model_config.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

EXECUTOR_WORKER = "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of a model. `is_scalar`: [1] for clients and [] for the backend, as its engine takes it."""

    name: str
    datatype: str
    dims: tuple[int, ...] = (1,)
    optional: bool = True
    is_scalar: bool = False
    is_ragged: bool = False

    def text(self) -> str:
        parts = [f'name: "{self.name}"', f"data_type: TYPE_{self.datatype}", f"dims: [ {_joined(self.dims)} ]"]
        parts += ["reshape: { shape: [ ] }"] * self.is_scalar
        parts += ["allow_ragged_batch: true"] * self.is_ragged
        parts += ["optional: true"] * self.optional
        return "  { " + ", ".join(parts) + " }"


@dataclass(frozen=True, slots=True)
class Option:
    """What a client may set: its name at the ensemble and at the engine."""

    name: str
    engine_name: str
    datatype: str


OPTIONS = (
    Option("top_k", "runtime_top_k", "INT32"),
    Option("top_p", "runtime_top_p", "FP32"),
    Option("temperature", "temperature", "FP32"),
    Option("length_penalty", "len_penalty", "FP32"),
    Option("repetition_penalty", "repetition_penalty", "FP32"),
    Option("min_tokens", "min_tokens", "INT32"),
    Option("presence_penalty", "presence_penalty", "FP32"),
    Option("frequency_penalty", "frequency_penalty", "FP32"),
    Option("seed", "seed", "UINT64"),
    Option("beam_width", "beam_width", "INT32"),
    Option("num_return_sequences", "num_return_sequences", "INT32"),
    Option("return_log_probs", "return_log_probs", "BOOL"),
    Option("exclude_input_in_output", "exclude_input_in_output", "BOOL"),
    Option("stream", "streaming", "BOOL"),
    Option("lora_task_id", "lora_task_id", "UINT64"),
    Option("return_num_input_tokens", "return_num_input_tokens", "BOOL"),
    Option("return_num_output_tokens", "return_num_output_tokens", "BOOL"),
)
# Not reshaped at the engine.
GUIDES = (
    Option("guided_decoding_guide_type", "guided_decoding_guide_type", "STRING"),
    Option("guided_decoding_guide", "guided_decoding_guide", "STRING"),
)
_ENGINE_OUTPUTS = (
    Tensor("cum_log_probs", "FP32", (-1,), optional=False),
    Tensor("output_log_probs", "FP32", (-1, -1), optional=False),
    Tensor("batch_index", "INT32", optional=False),
    Tensor("sequence_index", "INT32", optional=False),
    Tensor("num_input_tokens", "INT32", optional=False),
    Tensor("num_output_tokens", "INT32", optional=False),
)
_TEXT_INPUTS = (
    Tensor("text_input", "STRING", optional=False),
    Tensor("max_tokens", "INT32", optional=False),
    Tensor("bad_words", "STRING", (-1,)),
    Tensor("stop_words", "STRING", (-1,)),
    Tensor("end_id", "INT32"),
    Tensor("pad_id", "INT32"),
    *(Tensor(option.name, option.datatype) for option in (*OPTIONS, *GUIDES)),
)
_TEXT_OUTPUTS = (Tensor("text_output", "STRING", (-1,), optional=False), *_ENGINE_OUTPUTS)

# Ensemble's input -> preprocessing's; preprocessing's output -> the name between the steps -> the engine's input.
_TO_PREPROCESSING = {
    "QUERY": "text_input",
    "REQUEST_OUTPUT_LEN": "max_tokens",
    "BAD_WORDS_DICT": "bad_words",
    "STOP_WORDS_DICT": "stop_words",
    "END_ID": "end_id",
    "PAD_ID": "pad_id",
}
_PREPROCESSING_OUTPUTS = {
    "INPUT_ID": ("_INPUT_ID", "input_ids"),
    "REQUEST_INPUT_LEN": ("_REQUEST_INPUT_LEN", "input_lengths"),
    "REQUEST_OUTPUT_LEN": ("_REQUEST_OUTPUT_LEN", "request_output_len"),
    "BAD_WORDS_IDS": ("_BAD_WORDS_IDS", "bad_words_list"),
    "STOP_WORDS_IDS": ("_STOP_WORDS_IDS", "stop_words_list"),
    "OUT_END_ID": ("_END_ID", "end_id"),
    "OUT_PAD_ID": ("_PAD_ID", "pad_id"),
}


@dataclass(frozen=True, slots=True)
class Names:
    """The models' names, all with one prefix, so that one Triton may have several language models."""

    prefix: str = ""

    @property
    def preprocessing(self) -> str:
        return f"{self.prefix}preprocessing"

    @property
    def engine(self) -> str:
        return f"{self.prefix}tensorrt_llm"

    @property
    def postprocessing(self) -> str:
        return f"{self.prefix}postprocessing"

    @property
    def ensemble(self) -> str:
        return f"{self.prefix}ensemble"

    @property
    def bls(self) -> str:
        return f"{self.prefix}tensorrt_llm_bls"

    @property
    def vllm(self) -> str:
        return f"{self.prefix}vllm_model"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Limits of the engine, and how many processes tokenize."""

    max_batch_size: int = 64
    max_beam_width: int = 1
    max_queue_delay_us: int = 0
    max_queue_size: int = 0  # 0: no limit
    tokenizer_instances: int = 2
    bls_instances: int = 16  # so many requests at a time pass through the BLS model
    kv_cache_fraction: float = 0.9  # of the GPU's memory that the weights leave


def preprocessing(names: Names, sizes: Sizes, end_ids: Sequence[int], pad_id: int) -> str:
    inputs = (
        Tensor("QUERY", "STRING", optional=False),
        Tensor("REQUEST_OUTPUT_LEN", "INT32", optional=False),
        Tensor("BAD_WORDS_DICT", "STRING", (-1,)),
        Tensor("STOP_WORDS_DICT", "STRING", (-1,)),
        Tensor("END_ID", "INT32"),
        Tensor("PAD_ID", "INT32"),
    )
    outputs = (
        Tensor("INPUT_ID", "INT32", (-1,), optional=False),
        Tensor("REQUEST_INPUT_LEN", "INT32", optional=False),
        Tensor("REQUEST_OUTPUT_LEN", "INT32", optional=False),
        Tensor("BAD_WORDS_IDS", "INT32", (2, -1), optional=False),
        Tensor("STOP_WORDS_IDS", "INT32", (2, -1), optional=False),
        Tensor("OUT_END_ID", "INT32", optional=False),
        Tensor("OUT_PAD_ID", "INT32", optional=False),
    )
    parameters = {"tokenizer_dir": "tokenizer", "end_ids": _joined(end_ids), "pad_id": str(pad_id)}
    return _config(
        names.preprocessing, "python", sizes.max_batch_size, inputs, outputs, sizes.tokenizer_instances, parameters
    )


def postprocessing(names: Names, sizes: Sizes) -> str:
    inputs = (
        Tensor("TOKENS_BATCH", "INT32", (-1, -1), optional=False),
        Tensor("SEQUENCE_LENGTH", "INT32", (-1,), optional=False),
    )
    outputs = (Tensor("OUTPUT", "STRING", (-1,), optional=False),)
    parameters = {"tokenizer_dir": "tokenizer"}
    return _config(
        names.postprocessing, "python", sizes.max_batch_size, inputs, outputs, sizes.tokenizer_instances, parameters
    )


def engine(names: Names, sizes: Sizes, engine_dir: str, tokenizer_dir: str) -> str:
    """The TensorRT engine behind the C++ backend `tensorrtllm`, with in-flight batching."""
    inputs = (
        Tensor("input_ids", "INT32", (-1,), is_ragged=True, optional=False),
        Tensor("input_lengths", "INT32", is_scalar=True, optional=False),
        Tensor("request_output_len", "INT32", is_scalar=True, optional=False),
        Tensor("end_id", "INT32", is_scalar=True),
        Tensor("pad_id", "INT32", is_scalar=True),
        Tensor("stop_words_list", "INT32", (2, -1), is_ragged=True),
        Tensor("bad_words_list", "INT32", (2, -1), is_ragged=True),
        Tensor("stop", "BOOL", is_scalar=True),
        *(Tensor(option.engine_name, option.datatype, is_scalar=True) for option in OPTIONS),
        *(Tensor(option.engine_name, option.datatype, is_ragged=True) for option in GUIDES),
    )
    outputs = (
        Tensor("output_ids", "INT32", (-1, -1), optional=False),
        Tensor("sequence_length", "INT32", (-1,), optional=False),
        *_ENGINE_OUTPUTS,
    )
    parameters = {
        "gpt_model_type": "inflight_fused_batching",
        "gpt_model_path": engine_dir,
        "tokenizer_dir": tokenizer_dir,
        "max_beam_width": str(sizes.max_beam_width),
        "batch_scheduler_policy": "max_utilization",
        "kv_cache_free_gpu_mem_fraction": str(sizes.kv_cache_fraction),
        "enable_kv_cache_reuse": "true",
        "enable_chunked_context": "true",
        "exclude_input_in_output": "true",
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        "executor_worker_path": EXECUTOR_WORKER,
    }
    queue = f"default_queue_policy: {{ max_queue_size: {sizes.max_queue_size} }}"
    batching = (
        f"dynamic_batching {{ preferred_batch_size: [ {sizes.max_batch_size} ] "
        f"max_queue_delay_microseconds: {sizes.max_queue_delay_us} {queue} }}"
    )
    return _config(
        names.engine,
        "tensorrtllm",
        sizes.max_batch_size,
        inputs,
        outputs,
        1,
        parameters,
        [_decoupled(), batching],
    )


def ensemble(names: Names, sizes: Sizes) -> str:
    to_engine = {engine_name: between for between, engine_name in _PREPROCESSING_OUTPUTS.values()}
    to_engine |= {option.engine_name: option.name for option in (*OPTIONS, *GUIDES)}
    from_engine = {"output_ids": "_TOKENS_BATCH", "sequence_length": "_SEQUENCE_LENGTH"}
    from_engine |= {tensor.name: tensor.name for tensor in _ENGINE_OUTPUTS}
    steps = [
        _step(
            names.preprocessing,
            _TO_PREPROCESSING,
            {output: between for output, (between, _) in _PREPROCESSING_OUTPUTS.items()},
        ),
        _step(names.engine, to_engine, from_engine),
        _step(
            names.postprocessing,
            {"TOKENS_BATCH": "_TOKENS_BATCH", "SEQUENCE_LENGTH": "_SEQUENCE_LENGTH"},
            {"OUTPUT": "text_output"},
        ),
    ]
    scheduling = "ensemble_scheduling {\n  step [\n" + ",\n".join(steps) + "\n  ]\n}"
    head = f'name: "{names.ensemble}"\nplatform: "ensemble"\nmax_batch_size: {sizes.max_batch_size}\n'
    return head + _tensors("input", _TEXT_INPUTS) + _tensors("output", _TEXT_OUTPUTS) + scheduling + "\n"


def bls(names: Names, sizes: Sizes) -> str:
    """The ensemble's tensors, by a model that turns tokens into text piece by piece: a stream's pieces join to the
    text, with its blanks and with characters of several tokens."""
    parameters = {
        "tokenizer_dir": "tokenizer",
        "preprocessing": names.preprocessing,
        "engine": names.engine,
        "options": _joined(f"{option.name}={option.engine_name}" for option in (*OPTIONS, *GUIDES)),
    }
    return _config(
        names.bls,
        "python",
        sizes.max_batch_size,
        _TEXT_INPUTS,
        _TEXT_OUTPUTS,
        sizes.bls_instances,
        parameters,
        [_decoupled()],
    )


def llmapi(name: str) -> str:
    """TensorRT-LLM's LLM API behind the python backend; its model.py completes batch size and decoupling from
    model.yaml."""
    options = {
        "temperature": "FP32",
        "top_k": "INT32",
        "top_p": "FP32",
        "frequency_penalty": "FP32",
        "presence_penalty": "FP32",
        "max_tokens": "INT32",
        "seed": "UINT64",
        "best_of": "INT32",
        "exclude_input_from_output": "BOOL",
    }
    inputs = (
        Tensor("text_input", "STRING", (-1,), optional=False),
        Tensor("streaming", "BOOL"),
        *(Tensor(f"sampling_param_{option}", datatype) for option, datatype in options.items()),
        Tensor("sampling_param_stop", "STRING", (-1,)),
        Tensor("return_finish_reason", "BOOL"),
        Tensor("return_stop_reason", "BOOL"),
        Tensor("return_cumulative_logprob", "BOOL"),
        Tensor("stop", "BOOL"),
    )
    outputs = (
        Tensor("text_output", "STRING", (-1,), optional=False),
        Tensor("finish_reason", "STRING", (-1,), optional=False),
        Tensor("stop_reason", "STRING", (-1,), optional=False),
        Tensor("cumulative_logprob", "FP32", (-1,), optional=False),
    )
    return _config(name, "python", None, inputs, outputs, 1, {}, [])


def vllm(name: str) -> str:
    """The vLLM backend completes tensors, batch size and decoupling by itself."""
    parameters = _parameters({"REPORT_CUSTOM_METRICS": "true"})
    return f'name: "{name}"\nbackend: "vllm"\ninstance_group [ {{ count: 1, kind: KIND_MODEL }} ]\n{parameters}'


def _config(
    name: str,
    backend: str,
    max_batch_size: int | None,
    inputs: Iterable[Tensor],
    outputs: Iterable[Tensor],
    instances: int,
    parameters: Mapping[str, str],
    more: Sequence[str] = (),
) -> str:
    text = f'name: "{name}"\nbackend: "{backend}"\n'
    text += f"max_batch_size: {max_batch_size}\n" if max_batch_size is not None else ""
    text += "".join(f"{each}\n" for each in more)
    text += _tensors("input", inputs) + _tensors("output", outputs)
    return text + f"instance_group [ {{ count: {instances}, kind: KIND_CPU }} ]\n" + _parameters(parameters)


def _decoupled() -> str:
    return "model_transaction_policy { decoupled: true }"


def _tensors(kind: str, tensors: Iterable[Tensor]) -> str:
    return f"{kind} [\n" + ",\n".join(tensor.text() for tensor in tensors) + "\n]\n"


def _parameters(values: Mapping[str, str]) -> str:
    return "".join(
        f'parameters {{ key: "{key}", value: {{ string_value: "{value}" }} }}\n' for key, value in values.items()
    )


def _step(model: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> str:
    maps = [f'      input_map {{ key: "{key}", value: "{value}" }}' for key, value in inputs.items()]
    maps += [f'      output_map {{ key: "{key}", value: "{value}" }}' for key, value in outputs.items()]
    return f'    {{\n      model_name: "{model}", model_version: -1\n' + "\n".join(maps) + "\n    }"


def _joined(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))
