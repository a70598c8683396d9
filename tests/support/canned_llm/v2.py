"""Triton's generate, generate_stream and infer, as its vLLM backend and a TensorRT-LLM ensemble answer them.

Source: triton-inference-server/vllm_backend, README and src/model.py (tensors of `vllm_model`); tensorrtllm_backend,
all_models/inflight_batcher_llm/ensemble/config.pbtxt and README (tensors of `ensemble`).
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from tests.support.canned_llm.plan import Plan, PromptCache, RefusedError, plan_text
from tests.support.canned_llm.reading import Frame, Job, number, stops

VLLM, ENSEMBLE = "vllm_model", "ensemble"

# Tensor -> (datatype, shape, whether it is optional); a config's dims leave out the batch axis.
INPUTS: dict[str, dict[str, tuple[str, list[int], bool]]] = {
    VLLM: {
        "text_input": ("BYTES", [1], False),
        "image": ("BYTES", [-1], True),
        "stream": ("BOOL", [1], True),
        "sampling_parameters": ("BYTES", [1], True),
        "exclude_input_in_output": ("BOOL", [1], True),
        "return_finish_reason": ("BOOL", [1], True),
        "return_cumulative_logprob": ("BOOL", [1], True),
        "return_logprobs": ("BOOL", [1], True),
        "return_num_input_tokens": ("BOOL", [1], True),
        "return_num_output_tokens": ("BOOL", [1], True),
    },
    ENSEMBLE: {
        "text_input": ("BYTES", [1], False),
        "max_tokens": ("INT32", [1], False),
        "bad_words": ("BYTES", [-1], True),
        "stop_words": ("BYTES", [-1], True),
        "end_id": ("INT32", [1], True),
        "pad_id": ("INT32", [1], True),
        "top_k": ("INT32", [1], True),
        "top_p": ("FP32", [1], True),
        "temperature": ("FP32", [1], True),
        "length_penalty": ("FP32", [1], True),
        "repetition_penalty": ("FP32", [1], True),
        "min_tokens": ("INT32", [1], True),
        "presence_penalty": ("FP32", [1], True),
        "frequency_penalty": ("FP32", [1], True),
        "seed": ("UINT64", [1], True),
        "return_log_probs": ("BOOL", [1], True),
        "return_context_logits": ("BOOL", [1], True),
        "return_generation_logits": ("BOOL", [1], True),
        "beam_width": ("INT32", [1], True),
        "stream": ("BOOL", [1], True),
    },
}
OUTPUTS: dict[str, dict[str, tuple[str, list[int]]]] = {
    VLLM: {
        "text_output": ("BYTES", [-1]),
        "finish_reason": ("BYTES", [-1]),
        "cumulative_logprob": ("FP32", [-1]),
        "logprobs": ("BYTES", [-1]),
        "num_input_tokens": ("UINT32", [1]),
        "num_output_tokens": ("UINT32", [-1]),
    },
    ENSEMBLE: {"text_output": ("BYTES", [-1]), "cum_log_probs": ("FP32", [-1]), "output_log_probs": ("FP32", [-1, -1])},
}


def error(message: str, status: int) -> bytes:
    return orjson.dumps({"error": message})


class Generate:
    """POST /v2/models/MODEL/generate and, with `streams`, generate_stream."""

    error = staticmethod(error)

    def __init__(self, cache: PromptCache, model: str, *, streams: bool = False):
        self._cache = cache
        self._model = model
        self._streams = streams

    def error_event(self, message: str) -> bytes:
        return b"data: " + error(message, 500) + b"\n\n"

    def read(self, body: Mapping[str, Any], number_of_job: int) -> Job:
        inputs, parameters = self._sorted(body)
        if "text_input" not in inputs:
            raise RefusedError(
                "[request id: <id_unknown>] expected 1 inputs but got 0 inputs for model "
                f"'{self._model}'. Missing input(s): 'text_input'"
            )
        text = inputs["text_input"]
        if not isinstance(text, str):
            raise RefusedError("unable to parse 'text_input': attempt to access JSON non-string as string")
        if self._model == ENSEMBLE:
            options, excludes = self._trtllm_options(inputs), bool(inputs.get("stream"))
        else:
            options, excludes = self._vllm_options(inputs, parameters), self._excludes_input(inputs)
        plan = plan_text(text, prompt=text, cache=self._cache, **options)
        detail = {"inputs": inputs, "prepended": "" if excludes else text, "id": body.get("id")}
        return Job({**body, "stream": self._streams}, self._model, [plan], f"gen-{number_of_job}", detail=detail)

    def whole(self, job: Job) -> bytes:
        plan = job.plans[0]
        return orjson.dumps(self._reply(job, job.detail["prepended"] + plan.text, plan, len(plan.tokens)))

    def frames(self, job: Job) -> Iterator[Frame]:
        plan = job.plans[0]
        if not job.detail["inputs"].get("stream"):  # a single reply is a stream too
            yield Frame(b"data: " + self.whole(job) + b"\n\n", is_token=True)
            return
        for place, token in enumerate(plan.tokens):
            ends = plan if place + 1 == len(plan.tokens) and plan.finish == "length" else None
            reply = self._reply(job, token, ends, 1)
            yield Frame(b"data: " + orjson.dumps(reply) + b"\n\n", is_token=True)
        if plan.finish != "length":
            yield Frame(b"data: " + orjson.dumps(self._reply(job, "", plan, 0)) + b"\n\n")

    def _sorted(self, body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Split the fields into tensors and parameters; a parameter with a tensor's name is a tensor."""
        fields = {name: value for name, value in body.items() if name not in ("id", "parameters")}
        fields |= body.get("parameters") or {}
        known = INPUTS[self._model]
        inputs = {name: value for name, value in fields.items() if name in known}
        return inputs, {name: value for name, value in fields.items() if name not in known}

    def _excludes_input(self, inputs: Mapping[str, Any]) -> bool:
        streams, excludes = bool(inputs.get("stream")), inputs.get("exclude_input_in_output")
        if streams and excludes is False:
            raise RefusedError(
                "Error generating stream: When streaming, `exclude_input_in_output` = False is not allowed.", 500
            )
        return streams or bool(excludes)

    def _vllm_options(self, inputs: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
        reply = dict(parameters)
        if "sampling_parameters" in inputs:
            reply = orjson.loads(inputs["sampling_parameters"])
        return {
            "max_tokens": number(reply, "max_tokens") or 16,
            "stop": stops(reply.get("stop")),
            "ignore_eos": bool(reply.get("ignore_eos")),
        }

    def _trtllm_options(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        max_tokens = number(inputs, "max_tokens")
        if max_tokens is None:
            raise RefusedError("expected number of inputs between 2 and 20 but got 1 inputs for model 'ensemble'")
        return {"max_tokens": max_tokens, "stop": [word for word in stops(inputs.get("stop_words")) if word]}

    def _reply(self, job: Job, text: str, ends: Plan | None, num_tokens: int) -> dict[str, Any]:
        reply: dict[str, Any] = {"model_name": self._model, "model_version": "1"}
        if job.detail["id"]:
            reply["id"] = job.detail["id"]
        if self._model == ENSEMBLE:
            reply |= {"cum_log_probs": 0.0, "sequence_end": False, "sequence_id": 0, "sequence_start": False}
            return {**reply, "text_output": text}
        wanted = job.detail["inputs"]
        if wanted.get("return_finish_reason"):
            reply["finish_reason"] = ends.finish if ends else "None"  # str(None), as in vLLM's backend
        if wanted.get("return_num_input_tokens"):
            reply["num_input_tokens"] = job.prompt_tokens
        if wanted.get("return_num_output_tokens"):
            reply["num_output_tokens"] = num_tokens
        return {**reply, "text_output": text}


class Infer(Generate):
    """POST /v2/models/ensemble/infer, tensors as JSON. vLLM's backend is decoupled, which Triton refuses over HTTP."""

    def read(self, body: Mapping[str, Any], number_of_job: int) -> Job:
        if self._model == VLLM:
            raise RefusedError("HTTP end point doesn't support models with decoupled transaction policy")
        inputs = {}
        for tensor in body.get("inputs") or []:
            datatype, shape, _ = INPUTS[self._model].get(tensor["name"], (None, None, None))
            if datatype != tensor["datatype"]:
                raise RefusedError(f"unexpected inference input '{tensor['name']}' for model '{self._model}'")
            if len(tensor["shape"]) != 2 or tensor["shape"][0] != 1:
                raise RefusedError(
                    f"[request id: <id_unknown>] unexpected shape for input '{tensor['name']}' for model "
                    f"'{self._model}'. Expected [-1,{shape[0] if shape else 1}], got {tensor['shape']}."
                )
            flat = [value for row in tensor["data"] for value in (row if isinstance(row, list) else [row])]
            inputs[tensor["name"]] = flat if tensor["name"] in ("bad_words", "stop_words") else flat[0]
        return super().read({"id": body.get("id"), **inputs}, number_of_job)

    def whole(self, job: Job) -> bytes:
        text = job.detail["prepended"] + job.plans[0].text
        output = {"name": "text_output", "datatype": "BYTES", "shape": [1], "data": [text]}
        reply: dict[str, Any] = {"model_name": self._model, "model_version": "1", "outputs": [output]}
        if job.detail["id"]:
            reply["id"] = job.detail["id"]
        return orjson.dumps(reply)


def metadata(model: str) -> bytes:
    """GET /v2/models/MODEL."""
    batch = [] if model == VLLM else [-1]
    inputs = [
        {"name": name, "datatype": kind, "shape": [*batch, *shape]} for name, (kind, shape, _) in INPUTS[model].items()
    ]
    outputs = [
        {"name": name, "datatype": kind, "shape": [*batch, *shape]} for name, (kind, shape) in OUTPUTS[model].items()
    ]
    platform = "vllm" if model == VLLM else "ensemble"
    reply = {"name": model, "versions": ["1"], "platform": platform, "inputs": inputs, "outputs": outputs}
    return orjson.dumps(reply)


def config(model: str) -> bytes:
    """GET /v2/models/MODEL/config."""
    data_type = {"BYTES": "TYPE_STRING"}
    inputs = [
        {"name": name, "data_type": data_type.get(kind, f"TYPE_{kind}"), "dims": shape, "optional": optional}
        for name, (kind, shape, optional) in INPUTS[model].items()
    ]
    outputs = [
        {"name": name, "data_type": data_type.get(kind, f"TYPE_{kind}"), "dims": shape}
        for name, (kind, shape) in OUTPUTS[model].items()
    ]
    reply: dict[str, Any] = {"name": model, "input": inputs, "output": outputs, "max_batch_size": 0}
    if model == VLLM:
        reply |= {"backend": "vllm", "model_transaction_policy": {"decoupled": True}}
    else:
        reply |= {"platform": "ensemble", "max_batch_size": 64}
    return orjson.dumps(reply)
