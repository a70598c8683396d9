"""V2's infer on a tensor of text, as a client speaks it whose engine speaks another API.

`text_input` holds one prompt; every other input is an option, by the names of either of Triton's language model
backends. An infer has one reply: streams come by generate_stream, or by gRPC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.protocol.conversion import raw_contents
from gateway.protocol.conversion.control_messages import read_fields, write_fields
from gateway.protocol.conversion.errors import about, error_json, refusing, unsupported
from gateway.protocol.conversion.infer import infer_request_of_rest, rest_of_infer_response
from gateway.protocol.conversion.messages import read_request as read_message
from gateway.protocol.conversion.parameters import json_of_request
from gateway.protocol.conversion.tensors import Raw, element_count, json_of_raw, raw_of_elements, split_elements
from gateway.protocol.errors import ErrorKind
from gateway.protocol.llm.canonical import EngineFailed, Event, Generation
from gateway.protocol.llm.v2_text import TextReply, TextRequest, text_request
from gateway.protocol.protobuf import Message, message

# The outputs that such a model has, and their datatypes.
OUTPUTS = {
    "text_output": "BYTES",
    "finish_reason": "BYTES",
    "stop_reason": "BYTES",
    "cumulative_logprob": "FP32",
    "cum_log_probs": "FP32",
    "output_log_probs": "FP32",
    "num_input_tokens": "UINT32",
    "num_output_tokens": "UINT32",
}


def read_request(body: bytes, head_bytes: int | None, *, model: str) -> TextRequest:
    """The request of a REST infer body; `head_bytes` is what `Inference-Header-Content-Length` tells, None without it.

    Raises: GatewayError, BAD_REQUEST where it is malformed or names an output that no such model has, UNSUPPORTED for
    what another API has no place for: several prompts, shared memory.
    """
    written, form = infer_request_of_rest(body, head_bytes, model, "")
    with refusing(ErrorKind.BAD_REQUEST):
        request, data = read_message(written)
        fields = json_of_request(request.parameters)
        for tensor, raw in zip(request.inputs, data, strict=True):
            with about(f"input '{tensor.name}'"):
                fields[tensor.name] = _values(tensor, raw)
        outputs = frozenset(output.name for output in request.outputs)
        if strange := sorted(outputs - OUTPUTS.keys()):
            raise ValueError(f"unexpected inference output '{strange[0]}' for model '{model}'")
        return text_request(fields, model=model, stream=False, id=request.id, outputs=outputs, form=form)


class InferReplyWriter:
    """Writes one reply. `head_bytes`: where its JSON ends and tensors begin; None where all of it is JSON."""

    def __init__(self, generation: Generation, *, id: str, created: int, model: str) -> None:
        """`id` and `created` are told in other APIs: V2 tells the request's own id."""
        self._generation = generation
        self._reply = TextReply(generation)
        self._model = model
        self.head_bytes: int | None = None

    def feed(self, events: Sequence[Event]) -> bytes:
        """Nothing: an infer is not streamed."""
        return b""

    def end(self) -> bytes:
        """Nothing, as `feed`."""
        return b""

    def whole(self, events: Sequence[Event]) -> tuple[int, bytes]:
        """HTTP status and body; UPSTREAM_PROTOCOL where the engine's text cannot be written."""
        for event in events:
            if type(event) is EngineFailed:
                return event.status, error_json(event.message)
            self._reply.add(event)
        form = self._generation.form if isinstance(self._generation, TextRequest) else TextRequest("").form
        reply = rest_of_infer_response(self._response(), form)
        self.head_bytes = reply.head_bytes
        return 200, reply.data

    def _response(self) -> bytes:
        """A serialised ModelInferResponse."""
        with refusing(ErrorKind.UPSTREAM_PROTOCOL):
            response = message("inference.ModelInferResponse")(model_name=self._model, model_version="1")
            response.id = self._generation.id
            raws = []
            parsed = {"text_output": self._reply.texts} | self._reply.values()
            for name in [name for name in OUTPUTS if name in self._reply.names]:
                values = parsed[name] if isinstance(parsed[name], list) else [parsed[name]]
                response.outputs.add(name=name, datatype=OUTPUTS[name], shape=[len(values)])
                raws.append(raw_of_elements(OUTPUTS[name], values))
            return raw_contents.joined(response.SerializeToString(), raw_contents.OUTPUT_TAG, raws)


def _values(tensor: Message, raw: Raw | None) -> list[Any]:
    if raw is None:
        raise unsupported(f"input '{tensor.name}' is in shared memory, which only V2 engines read")
    count = element_count(tensor.shape)
    if tensor.datatype == "BYTES":
        return [element.decode() for element in split_elements(raw, count)]
    values: list[Any] = orjson.loads(json_of_raw(tensor.datatype, raw, count))
    return values


PLATFORM = "openai"
VERSION = "1"

# Name -> datatype and length; only the first must be given.
INPUTS: dict[str, tuple[str, int]] = {
    name: (datatype, length)
    for datatype, length, names in (
        ("BYTES", 1, "text_input"),
        ("BYTES", -1, "image"),
        ("BOOL", 1, "stream"),
        ("BYTES", 1, "sampling_parameters"),
        ("BOOL", 1, "exclude_input_in_output"),
        ("INT32", 1, "max_tokens min_tokens"),
        ("FP32", 1, "temperature top_p"),
        ("INT32", 1, "top_k"),
        ("FP32", 1, "min_p"),
        ("UINT64", 1, "seed random_seed"),
        ("BYTES", -1, "stop stop_words bad_words"),
        ("INT32", 1, "n"),
        ("FP32", 1, "presence_penalty frequency_penalty repetition_penalty"),
        ("BOOL", 1, "return_finish_reason return_stop_reason return_cumulative_logprob return_log_probs"),
        ("BOOL", 1, "return_num_input_tokens return_num_output_tokens"),
    )
    for name in names.split()
}
_LENGTHS = {"num_input_tokens": 1}  # of outputs; others have as many elements as there are choices or tokens


def openai_metadata(model: str) -> dict[str, Any]:
    """The V2 metadata of a model, as `GET /v2/models/MODEL` tells it."""
    return {
        "name": model,
        "versions": [VERSION],
        "platform": PLATFORM,
        "inputs": [{"name": name, "datatype": datatype, "shape": [size]} for name, (datatype, size) in INPUTS.items()],
        "outputs": [
            {"name": name, "datatype": datatype, "shape": [_LENGTHS.get(name, -1)]}
            for name, datatype in OUTPUTS.items()
        ],
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
            "output": [_config(name, datatype, _LENGTHS.get(name, -1)) for name, datatype in OUTPUTS.items()],
        },
    )
    return write_fields(config)


def _config(name: str, datatype: str, length: int) -> dict[str, Any]:
    return {"name": name, "data_type": f"TYPE_{'STRING' if datatype == 'BYTES' else datatype}", "dims": [length]}
