"""V2 over HTTP: Triton's generate and generate_stream by a plain HTTP client, infer by tritonclient."""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.llm.clients.values import (
    PROMPT,
    TIMEOUT_SECONDS,
    Inferred,
    RefusedError,
    Tensor,
    TextRequest,
    TextResult,
    gathered,
    words,
)
from tests.support import plain_http
from tests.support.child import Child

# The outputs that a reply may have, and the flags that request them.
OUTPUTS = ("text_output", "finish_reason", "num_input_tokens", "num_output_tokens")
_FLAGS = ("return_finish_reason", "return_num_input_tokens", "return_num_output_tokens")

NUMPY = {"BYTES": np.object_, "BOOL": np.bool_, "INT32": np.int32, "FP32": np.float32}


def fields(asked: TextRequest) -> dict[str, tuple[str, Any]]:
    """The inputs of a V2 request: name -> datatype and value."""
    text: dict[str, tuple[str, Any]] = {"text_input": ("BYTES", PROMPT)}
    match asked.tensors:
        case "vllm":
            sampling = json.dumps({"max_tokens": asked.max_tokens, **asked.options.get("sampling", {})})
            text |= {"stream": ("BOOL", asked.streams), "exclude_input_in_output": ("BOOL", True)}
            text |= {"sampling_parameters": ("BYTES", sampling)} | dict.fromkeys(_FLAGS, ("BOOL", True))
        case "trtllm":
            text |= {"max_tokens": ("INT32", asked.max_tokens), "stream": ("BOOL", asked.streams)}
        case "plain":
            text |= {"max_tokens": ("INT32", asked.max_tokens)}
    return text | {name: ("BYTES", value) for name, value in asked.options.items() if name != "sampling"}


def inputs(asked: TextRequest, make: Any, **how: Any) -> list[Any]:
    """The same inputs as a tritonclient's."""
    shape = [1, 1] if asked.tensors == "trtllm" else [1]
    made = []
    for name, (datatype, value) in fields(asked).items():
        made.append(make(name, shape, datatype))
        data = value.encode() if isinstance(value, str) else value
        made[-1].set_data_from_numpy(np.array([data], NUMPY[datatype]).reshape(shape), **how)
    return made


def told_by(replies: Sequence[Mapping[str, Any]], headers: Mapping[str, str]) -> TextResult:
    """The result of replies, each of them name -> value."""
    reasons = [reply["finish_reason"] for reply in replies if reply.get("finish_reason") not in (None, "None")]
    prompt_tokens = [reply["num_input_tokens"] for reply in replies if "num_input_tokens" in reply]
    counts = [reply["num_output_tokens"] for reply in replies if "num_output_tokens" in reply]
    return TextResult(
        [reply["text_output"] for reply in replies if reply["text_output"]],
        reasons[-1] if reasons else "",
        prompt_tokens[-1] if prompt_tokens else None,
        sum(counts) if counts else None,
        replies[0]["model_name"],
        replies[0].get("id", ""),
        headers,
    )


def outputs_of(result: Any) -> dict[str, Any]:
    """The first element of each output of a tritonclient's result."""
    found: dict[str, Any] = {}
    for name in OUTPUTS:
        array = result.as_numpy(name)
        if array is not None:
            value = array.reshape(-1)[0]
            found[name] = value.decode() if isinstance(value, bytes) else value
    return found


def ask_generate(gateway: Child, asked: TextRequest) -> TextResult:
    """Call generate or, if `asked.streams`, generate_stream."""
    url = f"{gateway.http_url}/v2/models/{asked.model}/generate{'_stream' if asked.streams else ''}"
    body = {name: value for name, (_, value) in fields(asked).items()} | ({"id": asked.id} if asked.id else {})
    with plain_http.stream("POST", url, json=body, timeout=TIMEOUT_SECONDS) as reply:
        if reply.status_code != 200:
            report = json.loads(reply.read().removeprefix(b"data: "))
            raise RefusedError(reply.status_code, words(report), report)
        if asked.streams:
            told_events = (json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: "))
            events = gathered(told_events, lambda event: event.get("text_output"), asked)
        else:
            events = [json.loads(reply.read())]
        if failed := [event for event in events if "error" in event]:
            raise RefusedError(None, failed[0]["error"], failed[0])
        return told_by(events, dict(reply.headers))


def ask_infer_stream(gateway: Child, asked: TextRequest) -> TextResult:
    """Call MLServer's infer_stream, which has no client library: infer's JSON in, an infer response in each event."""
    tensors = [
        {"name": name, "datatype": datatype, "shape": [1], "data": [value]}
        for name, (datatype, value) in fields(asked).items()
    ]
    replies = _infer_stream(gateway, asked.model, tensors, asked)
    heads = [{"model_name": reply["model_name"], "id": reply.get("id", "")} for reply in replies]
    return told_by([head | _first_outputs(reply) for head, reply in zip(heads, replies, strict=True)], {})


def infer_stream(gateway: Child, model: str, tensor: Tensor, id: str) -> Inferred:
    data = [each.decode() if isinstance(each, bytes) else each for each in tensor.array.reshape(-1).tolist()]
    report = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.array.shape), "data": data}
    replies = _infer_stream(gateway, model, [report], TextRequest(model, id=id))
    found = [element for reply in replies for element in reply["outputs"][0]["data"]]
    return Inferred(np.array(found), replies[0]["model_name"], replies[0]["id"])


def _infer_stream(
    gateway: Child, model: str, tensors: list[dict[str, Any]], asked: TextRequest
) -> list[dict[str, Any]]:
    url = f"{gateway.http_url}/v2/models/{model}/infer_stream"
    with plain_http.stream("POST", url, json={"id": asked.id, "inputs": tensors}, timeout=TIMEOUT_SECONDS) as reply:
        if reply.status_code != 200:
            report = json.loads(reply.read().removeprefix(b"data: "))
            raise RefusedError(reply.status_code, words(report), report)
        told_events = (json.loads(line[6:]) for line in reply.iter_lines() if line.startswith("data: "))
        return gathered(told_events, lambda event: _first_outputs(event).get("text_output"), asked)


def _first_outputs(reply: Mapping[str, Any]) -> dict[str, Any]:
    return {output["name"]: output["data"][0] for output in reply["outputs"] if output["data"]}


def _connected(gateway: Child) -> Any:
    return closing(triton.InferenceServerClient(f"127.0.0.1:{gateway.http_port}", network_timeout=TIMEOUT_SECONDS))


def ask_infer(gateway: Child, asked: TextRequest, *, is_binary: bool = False) -> TextResult:
    names = OUTPUTS if asked.tensors == "vllm" else OUTPUTS[:1]
    outputs = [triton.InferRequestedOutput(name, binary_data=is_binary) for name in names]
    given = inputs(asked, triton.InferInput, binary_data=is_binary)
    with _connected(gateway) as client:
        try:
            result = client.infer(asked.model, given, outputs=outputs, request_id=asked.id)
        except InferenceServerException as error:
            raise RefusedError(int(error.status() or 0), error.message()) from error
    response = result.get_response()
    head = {"model_name": response["model_name"], "id": response.get("id", "")}
    return told_by([head | outputs_of(result)], {})


def ask_infer_binary(gateway: Child, asked: TextRequest) -> TextResult:
    return ask_infer(gateway, asked, is_binary=True)


def infer(gateway: Child, model: str, tensor: Tensor, id: str, *, is_binary: bool = False) -> Inferred:
    given = triton.InferInput(tensor.name, list(tensor.array.shape), tensor.datatype)
    given.set_data_from_numpy(tensor.array, binary_data=is_binary)
    with _connected(gateway) as client:
        try:
            result = client.infer(model, [given], request_id=id)
        except InferenceServerException as error:
            raise RefusedError(int(error.status() or 0), error.message()) from error
    response = result.get_response()
    return Inferred(result.as_numpy(response["outputs"][0]["name"]), response["model_name"], response["id"])


def infer_binary(gateway: Child, model: str, tensor: Tensor, id: str) -> Inferred:
    return infer(gateway, model, tensor, id, is_binary=True)
