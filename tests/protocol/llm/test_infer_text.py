"""V2 text inference translated for engines with another API, and the V2 metadata that the gateway reports for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput, InferResult

from gateway.protocol.conversion import control
from gateway.protocol.conversion.generate import generate_of_infer_request, infer_response_of_generate
from gateway.protocol.conversion.infer import infer_request_of_rest
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm import generate_client, infer_text
from gateway.protocol.llm.canonical import EngineFailed, Finished, TextDelta, TokenUsage
from gateway.protocol.llm.generate_engine_request import GenerateConvention, signature_of
from gateway.protocol.llm.infer_text import InferReplyWriter, openai_config, openai_metadata
from gateway.protocol.llm.v2_text import TextRequest

REPLY = [TextDelta("Grüße"), Finished("length"), TokenUsage(3, 2)]


def tensor(name: str, datatype: str, data: list[Any], shape: list[int] | None = None) -> dict[str, Any]:
    return {"name": name, "shape": shape or [len(data)], "datatype": datatype, "data": data}


def read(*inputs: dict[str, Any], **members: Any) -> TextRequest:
    return infer_text.read_request(orjson.dumps({"inputs": list(inputs)} | members), None, model="m")


def answered(request: TextRequest, events: list[Any]) -> dict[str, Any]:
    status, body = InferReplyWriter(request, id="x", created=1, model="m").whole(events)
    assert status == 200
    reply: dict[str, Any] = orjson.loads(body)
    return reply


@pytest.mark.parametrize("shape", [[1], [1, 1]])
def test_a_request(shape: list[int]) -> None:
    """The prompt is a tensor of one element; every other tensor and every parameter is an option."""
    request = read(
        tensor("text_input", "BYTES", ["Hi"], shape),
        tensor("max_tokens", "INT32", [5], shape),
        tensor("temperature", "FP32", [0.5]),
        tensor("stop_words", "BYTES", ["a", "b"]),
        tensor("sampling_parameters", "BYTES", ['{"top_k": "3"}']),
        tensor("stream", "BOOL", [False]),
        id="7",
        parameters={"user": "u"},
    )
    assert (request.model, request.prompt, request.id, request.stream) == ("m", "Hi", "7", False)
    assert request.options == {"max_tokens": 5, "temperature": 0.5, "stop": ["a", "b"], "top_k": 3, "user": "u"}


def test_a_reply() -> None:
    """The generated text is a tensor; the reply has the request's id and Triton's members."""
    request = read(tensor("text_input", "BYTES", ["Hi"]), id="7")
    status, body = InferReplyWriter(request, id="x", created=1, model="m").whole(REPLY)
    assert status == 200
    assert (
        body
        == (
            '{"id":"7","model_name":"m","model_version":"1","outputs":[{"name":"text_output","datatype":"BYTES","shape":[1],'
            '"data":["Grüße"]}]}'
        ).encode()
    )


def test_outputs_that_were_asked_for() -> None:
    """A flag adds its output; if the request lists outputs, the reply has only those."""
    flagged = read(tensor("text_input", "BYTES", ["Hi"]), tensor("return_finish_reason", "BOOL", [True]))
    assert [output["name"] for output in answered(flagged, REPLY)["outputs"]] == ["text_output", "finish_reason"]
    named = read(
        tensor("text_input", "BYTES", ["Hi"]),
        tensor("return_finish_reason", "BOOL", [True]),
        outputs=[{"name": "num_output_tokens"}, {"name": "num_input_tokens"}],
    )
    assert answered(named, REPLY)["outputs"] == [
        {"name": "num_input_tokens", "datatype": "UINT32", "shape": [1], "data": [3]},
        {"name": "num_output_tokens", "datatype": "UINT32", "shape": [1], "data": [2]},
    ]
    assert named.include_usage


def test_several_choices() -> None:
    """The output tensor has one element for each choice."""
    request = read(tensor("text_input", "BYTES", ["Hi"]), tensor("n", "INT32", [2]))
    output = answered(request, [TextDelta("b", 1), TextDelta("a")])["outputs"][0]
    assert (output["shape"], output["data"]) == ([2], ["a", "b"])


def test_a_failure() -> None:
    """A failure is V2's error object with the engine's message and status."""
    writer = InferReplyWriter(read(tensor("text_input", "BYTES", ["Hi"])), id="x", created=1, model="m")
    assert writer.whole([EngineFailed("too long", 400)]) == (400, b'{"error":"too long"}')


def test_tritonclient_by_binary_tensors() -> None:
    """tritonclient's binary request is read, and its reply has the requested binary tensors."""
    text = InferInput("text_input", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([["Grüße".encode()]], dtype=np.object_))
    limit = InferInput("max_tokens", [1], "INT32")
    limit.set_data_from_numpy(np.array([5], dtype=np.int32))
    body, json_bytes = InferenceServerClient.generate_request_body(
        [text, limit], outputs=[InferRequestedOutput("text_output"), InferRequestedOutput("finish_reason")]
    )
    request = infer_text.read_request(body, json_bytes, model="m")
    assert (request.prompt, request.options) == ("Grüße", {"max_tokens": 5})
    writer = InferReplyWriter(request, id="x", created=1, model="m")
    status, reply = writer.whole(REPLY)
    assert status == 200 and writer.head_bytes is not None
    result = InferResult.from_response_body(reply, header_length=writer.head_bytes)
    assert result.as_numpy("text_output").tolist() == ["Grüße".encode()]
    assert result.as_numpy("finish_reason").tolist() == [b"length"]


@pytest.mark.parametrize(
    "inputs, members, kind, words",
    [
        ([], {}, ErrorKind.BAD_REQUEST, "'text_input' is missing"),
        ([tensor("text_input", "BYTES", ["a", "b"])], {}, ErrorKind.BAD_REQUEST, "one prompt a request"),
        ([tensor("text_input", "INT32", [5])], {}, ErrorKind.BAD_REQUEST, "'text_input' must be a string"),
        ([tensor("text_input", "BYTES", ["a"])], {"outputs": [{"name": "x"}]}, ErrorKind.BAD_REQUEST, "output 'x'"),
        (
            [tensor("text_input", "BYTES", ["a"]), tensor("max_tokens", "BYTES", ["x"])],
            {},
            ErrorKind.BAD_REQUEST,
            "'max_tokens' must be a whole number",
        ),
        (
            [{"name": "text_input", "shape": [1], "datatype": "BYTES", "parameters": {"shared_memory_region": "r"}}],
            {},
            ErrorKind.UNSUPPORTED,
            "shared memory",
        ),
    ],
)
def test_a_request_that_is_refused(
    inputs: list[dict[str, Any]], members: dict[str, Any], kind: ErrorKind, words: str
) -> None:
    """The error names what is wrong with the request."""
    with pytest.raises(GatewayError, match=words) as raised:
        read(*inputs, **members)
    assert raised.value.kind is kind


def test_text_that_is_not_utf8() -> None:
    """A prompt that is not UTF-8 is rejected, since it cannot be sent as JSON."""
    head = orjson.dumps(
        {"inputs": [{"name": "text_input", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 5}}]}
    )
    with pytest.raises(GatewayError, match="UTF-8"):
        infer_text.read_request(head + b"\x01\x00\x00\x00\xff", len(head), model="m")


# The V2 metadata of such a model


def test_its_metadata() -> None:
    """The metadata is valid V2 metadata by REST and by gRPC, and describes a model of the vLLM backend."""
    written = openai_metadata("m")
    message = control.rpc_response("ModelMetadata", 200, orjson.dumps(written))
    read_back = service_pb2.ModelMetadataResponse.FromString(message)
    assert (read_back.name, read_back.platform, list(read_back.versions)) == ("m", "openai", ["1"])
    assert [(each.name, each.datatype, list(each.shape)) for each in read_back.outputs][:2] == [
        ("text_output", "BYTES", [-1]),
        ("finish_reason", "BYTES", [-1]),
    ]
    assert control.rest_response("ModelMetadata", message).body == orjson.dumps(written)
    assert signature_of(written).kind is GenerateConvention.VLLM


def test_its_configuration() -> None:
    """The configuration is a valid V2 configuration: decoupled, with every input but the text optional."""
    message = control.rpc_response("ModelConfig", 200, orjson.dumps(openai_config("m")))
    config = service_pb2.ModelConfigResponse.FromString(message).config
    assert isinstance(config, model_config_pb2.ModelConfig)
    assert (config.name, config.max_batch_size, config.model_transaction_policy.decoupled) == ("m", 0, True)
    assert [each.name for each in config.input if not each.optional] == ["text_input"]
    assert MessageToDict(config.output[0], preserving_proto_field_name=True) == {
        "name": "text_output",
        "data_type": "TYPE_STRING",
        "dims": ["-1"],
    }
    assert openai_config("m")["input"][0]["dims"] == [1]


def test_every_input_of_it_is_read() -> None:
    """Every input in the metadata is read as an option under its canonical name."""
    values = {"BYTES": "a", "BOOL": True, "INT32": 2, "FP32": 0.5, "UINT64": 2}
    known = {"text_input", "image", "stream", "sampling_parameters", "exclude_input_in_output"}
    inputs = [
        tensor(each["name"], each["datatype"], [values[each["datatype"]]]) for each in openai_metadata("m")["inputs"]
    ]
    fields = [each for each in inputs if each["name"] not in known - {"text_input"}]
    assert set(read(*fields).options) == {
        *("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "bad_words", "n"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "logprobs"),
    }


def test_a_grpc_stream_by_way_of_generate() -> None:
    """A ModelStreamInfer request becomes a generate request, and its events become responses with tensors."""
    sent = {
        "inputs": [
            tensor("text_input", "BYTES", ["Hi"]),
            tensor("stream", "BOOL", [True]),
            tensor("sampling_parameters", "BYTES", ['{"max_tokens": "5"}']),
            tensor("return_finish_reason", "BOOL", [True]),
        ]
    }
    metadata = control.rpc_response("ModelMetadata", 200, orjson.dumps(openai_metadata("m")))
    message, _ = infer_request_of_rest(orjson.dumps(sent), None, "m", "")
    body = generate_of_infer_request(message, metadata).data
    request = generate_client.read_request(body, model="m", stream=True)
    assert (request.prompt, request.options) == ("Hi", {"max_tokens": 5})
    writer = generate_client.GenerateReplyWriter(request, id="x", created=1, model="m")
    events = (writer.feed(REPLY) + writer.end()).split(b"\n\n")[:-1]
    responses = [
        service_pb2.ModelInferResponse.FromString(infer_response_of_generate(event[6:], metadata)) for event in events
    ]
    assert [[output.name for output in response.outputs] for response in responses] == [
        ["finish_reason", "text_output"]
    ] * 2
    assert [response.raw_output_contents[1][4:].decode() for response in responses] == ["Grüße", ""]
    assert responses[1].raw_output_contents[0][4:] == b"length"
