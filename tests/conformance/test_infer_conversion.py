"""An inference that is converted to the other protocol gets the same answer from Triton as in its own.

Every request goes to the real Triton twice: as it is, and converted by `gateway.protocol.conversion`, with its reply
converted back.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.http
from tritonclient.utils import shared_memory

from gateway.demo.triton import TritonProcess
from gateway.protocol.conversion.generate import (
    generate_of_infer_request,
    generate_of_infer_response,
    infer_request_of_generate,
    infer_response_of_generate,
    sse_of_error,
    sse_of_infer_response,
)
from gateway.protocol.conversion.infer import (
    infer_request_of_rest,
    infer_response_of_rest,
    rest_of_infer_request,
    rest_of_infer_response,
)
from gateway.protocol.conversion.parameters import FINAL_RESPONSE_FLAG
from gateway.protocol.conversion.sse import SseReader
from gateway.protocol.conversion.stream import read_stream_response
from gateway.protocol.errors import GatewayError
from gateway.protocol.protobuf import message, parse
from gateway.protocol.translator import RestBody
from tests.support.wire import Reply, send

pytestmark = pytest.mark.triton

HEAD_LENGTH = "inference-header-content-length"
RESPONSE = "inference.ModelInferResponse"


class Engine:
    """The real Triton by both protocols, in bytes."""

    def __init__(self, triton: TritonProcess, channel: grpc.Channel) -> None:
        self.triton = triton
        self.infer = self._unary(channel, "ModelInfer")
        self._metadata = self._unary(channel, "ModelMetadata")
        self.stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")

    def _unary(self, channel: grpc.Channel, rpc: str) -> Callable[[bytes], bytes]:
        return channel.unary_unary(f"/inference.GRPCInferenceService/{rpc}")

    def metadata(self, model: str) -> bytes:
        return self._metadata(message("inference.ModelMetadataRequest")(name=model).SerializeToString())

    def post(self, model: str, action: str, body: RestBody) -> Reply:
        headers = {} if body.head_bytes is None else {HEAD_LENGTH: str(body.head_bytes)}
        return send(self.triton.http_port, "POST", f"/v2/models/{model}/{action}", body.data, headers)


@pytest.fixture(scope="module")
def engine(triton: TritonProcess) -> Iterator[Engine]:
    with grpc.insecure_channel(triton.grpc_url) as channel:
        yield Engine(triton, channel)


def body_of(reply: Reply) -> RestBody:
    assert reply.status == 200, reply
    length = reply.headers.get(HEAD_LENGTH)
    return RestBody(reply.body, None if length is None else int(length))


# gRPC clients, and an engine called by REST


def request(model: str, *inputs: tuple[str, str, list[int], bytes], **members: Any) -> Any:
    made = message("inference.ModelInferRequest")(model_name=model, **members)
    for name, datatype, shape, raw in inputs:
        made.inputs.add(name=name, datatype=datatype, shape=shape)
        made.raw_input_contents.append(raw)
    return made


def with_parameters(made: Any, **parameters: Any) -> Any:
    for name, value in parameters.items():
        field = {bool: "bool", int: "int64", str: "string", float: "double"}[type(value)]
        setattr(made.parameters[name], f"{field}_param", value)
    return made


def with_outputs(made: Any, **classes: int | None) -> Any:
    for name, count in classes.items():
        output = made.outputs.add(name=name)
        if count is not None:
            output.parameters["classification"].int64_param = count
    return made


def typed(model: str, name: str, datatype: str, shape: list[int], **contents: list[Any]) -> Any:
    made = message("inference.ModelInferRequest")(model_name=model)
    tensor = made.inputs.add(name=name, datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(tensor.contents, field).extend(values)
    return made


ONE_TWO = struct.pack("<2i", 1, -2)
ADDER = (("a", "INT32", [1, 2], ONE_TWO), ("b", "INT32", [1, 2], ONE_TWO))
SPECIAL = struct.pack("<6f", float("nan"), float("inf"), -float("inf"), -0.0, 1e-45, 3.4e38)
TEXTS = b"\0\0\0\0" + b"\x02\0\0\0\xff\xfe" + b"\x03\0\0\0a\0b"
SCORES = ("scores", "FP32", [2, 4], struct.pack("<8f", *range(8)))
TEXT = ("text_input", "BYTES", [1], b"\x02\0\0\0hi")

GRPC_REQUESTS = {
    "two inputs": request("adder", *ADDER),
    "an id and a version": request("adder", *ADDER, id="7", model_version="1"),
    "typed contents": typed("identity_fp32", "INPUT0", "FP32", [1, 3], fp32_contents=[1.5, float("nan"), -0.0]),
    "typed texts": typed("identity_bytes", "INPUT0", "BYTES", [3], bytes_contents=[b"", b"\xff", b"x"]),
    "special numbers": request("identity_fp32", ("INPUT0", "FP32", [2, 3], SPECIAL)),
    "texts that are not UTF-8": request("identity_bytes", ("INPUT0", "BYTES", [3], TEXTS)),
    "half precision": request("identity_fp16", ("INPUT0", "FP16", [2], b"\x00\x3c\x01\x7e")),
    "no elements": request("identity_fp32", ("INPUT0", "FP32", [0, 3], b"")),
    "no texts": request("identity_bytes", ("INPUT0", "BYTES", [0], b"")),
    "parameters": with_parameters(
        request("text", TEXT), a=1, b=-5, c=True, d="ü", e=1.0, f=float("inf"), timeout=10_000_000, priority=0
    ),
    "one output": with_outputs(request("adder", *ADDER), diff=None),
    "outputs in another order": with_outputs(request("adder", *ADDER), diff=None, sum=None),
    "classes": with_outputs(request("classifier", SCORES), probabilities=2),
}


@pytest.mark.parametrize("sent", GRPC_REQUESTS.values(), ids=GRPC_REQUESTS)
def test_a_grpc_client_gets_the_same_from_rest(sent: Any, engine: Engine) -> None:
    """The messages are equal, to the last bit of every tensor."""
    data = sent.SerializeToString()
    reply = engine.post(sent.model_name, "infer", rest_of_infer_request(data))
    body = body_of(reply)
    assert parse(RESPONSE, infer_response_of_rest(body.data, body.head_bytes)) == parse(RESPONSE, engine.infer(data))


@pytest.mark.parametrize("name", [5, "call-5", -1], ids=["number", "text", "number beyond int64"])
def test_a_grpc_clients_sequence_stays_together(name: int | str, engine: Engine) -> None:
    """The steps of a sequence alternate between the protocols, and the sum is right."""
    totals = []
    for step, value in enumerate((5, 7, -2)):
        tensor = ("value", "INT32", [1, 1], struct.pack("<i", value))
        flags = {"sequence_start": step == 0, "sequence_end": step == 2}
        data = with_parameters(request("accumulator", tensor), sequence_id=name, **flags).SerializeToString()
        if step % 2:
            body = body_of(engine.post("accumulator", "infer", rest_of_infer_request(data)))
            response = infer_response_of_rest(body.data, body.head_bytes)
        else:
            response = engine.infer(data)
        totals += struct.unpack("<i", parse(RESPONSE, response).raw_output_contents[0])
    assert totals == [5, 12, 10]


# REST clients, and an engine called by gRPC


def tensor(name: str, datatype: str, shape: list[int], data: Any, **members: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data, **members}


def rest(inputs: list[dict[str, Any]], tail: bytes = b"", **members: Any) -> RestBody:
    head = json.dumps({"inputs": inputs, **members}).encode()
    return RestBody(head + tail, len(head) if tail else None)


JSON_ADDER = [tensor("a", "INT32", [1, 2], [1, 2]), tensor("b", "INT32", [1, 2], [[3], [4]])]
BINARY_ADDER = [
    {"name": name, "datatype": "INT32", "shape": [1, 2], "parameters": {"binary_data_size": 8}} for name in "ab"
]
IN_BINARY = {"binary_data": True}
JSON_TEXT = [tensor("text_input", "BYTES", [1], ["hi"])]
NUMBERS = [0.1, 1e16, 2.5e-6, 123456.75, -0.0, 65536.0]

REST_REQUESTS = {
    "JSON": ("adder", rest(JSON_ADDER)),
    "an id": ("adder", rest(JSON_ADDER, id="7 ü")),
    "binary inputs": ("adder", rest(BINARY_ADDER, ONE_TWO * 2)),
    "binary outputs": ("adder", rest(JSON_ADDER, parameters={"binary_data_output": True})),
    "one output in JSON, one in binary": (
        "adder",
        rest(JSON_ADDER, outputs=[{"name": "diff", "parameters": IN_BINARY}, {"name": "sum"}]),
    ),
    "named outputs are in JSON, whatever is the default": (
        "adder",
        rest(JSON_ADDER, outputs=[{"name": "sum"}], parameters={"binary_data_output": True}),
    ),
    "integers that INT32 does not hold": (
        "adder",
        rest([tensor("a", "INT32", [1, 1], [2**32 + 5]), tensor("b", "INT32", [1, 1], [-(2**31) - 1])]),
    ),
    "numbers": ("identity_fp32", rest([tensor("INPUT0", "FP32", [2, 3], NUMBERS)])),
    "special numbers": (
        "identity_fp32",
        RestBody(b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,5],"data":[NaN,Inf,-Infinity,1e300,1]}]}'),
    ),
    "no elements": ("identity_fp32", rest([tensor("INPUT0", "FP32", [0, 3], [])])),
    "no elements in binary": (
        "identity_fp32",
        rest([tensor("INPUT0", "FP32", [0, 3], [])], outputs=[{"name": "OUTPUT0", "parameters": IN_BINARY}]),
    ),
    "texts": ("identity_bytes", rest([tensor("INPUT0", "BYTES", [2], ['"\\/\n\x00\x1f\x7f', "ü€😀"])])),
    "texts that are not UTF-8": (
        "identity_bytes",
        RestBody(b'{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[2],"data":["\xff",["a\xc3"]]}]}'),
    ),
    "parameters": (
        "text",
        rest(JSON_TEXT, parameters={"a": 1, "b": -5, "c": True, "d": "ü", "e": 1.0, "f": 2**63, "timeout": 10_000_000}),
    ),
    "classes": (
        "classifier",
        rest(
            [tensor("scores", "FP32", [2, 4], [*range(8)])],
            outputs=[{"name": "probabilities", "parameters": {"classification": 2}}],
        ),
    ),
    "half precision in binary": (
        "identity_fp16",
        rest(
            [{"name": "INPUT0", "datatype": "FP16", "shape": [2], "parameters": {"binary_data_size": 4}}],
            b"\x00\x3c\x01\x7e",
            parameters={"binary_data_output": True},
        ),
    ),
}


@pytest.mark.parametrize("model, body", REST_REQUESTS.values(), ids=REST_REQUESTS)
def test_a_rest_client_gets_the_same_from_grpc(model: str, body: RestBody, engine: Engine) -> None:
    """The bodies are equal byte by byte, and so is the length of their JSON part."""
    sent, wanted = infer_request_of_rest(body.data, body.head_bytes, model, "")
    converted = rest_of_infer_response(engine.infer(sent), wanted)
    direct = body_of(engine.post(model, "infer", body))
    assert comparable(converted) == comparable(direct)


def test_numbers_are_the_same_whatever_their_last_digit(engine: Engine) -> None:
    """Numbers are equal although Triton sometimes writes another one of two shortest decimal forms."""
    numbers = [1.1**power for power in range(-800, 800)]
    body = rest([tensor("INPUT0", "FP32", [1600, 1], numbers)])
    sent, wanted = infer_request_of_rest(body.data, None, "identity_fp32", "")
    converted = rest_of_infer_response(engine.infer(sent), wanted)
    assert json.loads(converted.data) == json.loads(engine.post("identity_fp32", "infer", body).body)


def comparable(body: RestBody) -> tuple[bytes, int | None]:
    return body.data, body.head_bytes


HALF = [{"name": "INPUT0", "datatype": "FP16", "shape": [1], "parameters": {"binary_data_size": 2}}]
REFUSED = {
    "too few elements": ("adder", rest([tensor("a", "INT32", [1, 2], [1]), JSON_ADDER[1]])),
    "a text as a number": ("adder", rest([tensor("a", "INT32", [1, 1], ["1"]), JSON_ADDER[1]])),
    "a fraction as an integer": ("adder", rest([tensor("a", "INT32", [1, 1], [1.0]), JSON_ADDER[1]])),
    "half precision in JSON": ("identity_fp16", rest([tensor("INPUT0", "FP16", [1], [1])])),
    "half precision asked for in JSON": ("identity_fp16", rest(HALF, b"ab")),
    "no inputs": ("adder", RestBody(b"{}")),
    "no JSON": ("adder", RestBody(b"{")),
    "a number that no double holds": (
        "identity_fp32",
        RestBody(b'{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[1e400]}]}'),
    ),
    "half of a surrogate pair": (
        "identity_bytes",
        RestBody(b'{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1],"data":["\\ud800"]}]}'),
    ),
    "a reserved parameter": ("adder", rest(JSON_ADDER, parameters={"triton_x": 1})),
    "a parameter that is none": ("adder", rest(JSON_ADDER, parameters={"x": None})),
    "more bytes than tensors": ("adder", rest(JSON_ADDER, b"x")),
    "less bytes than tensors": ("adder", rest(BINARY_ADDER, ONE_TWO)),
}


@pytest.mark.parametrize("model, body", REFUSED.values(), ids=REFUSED)
def test_what_triton_refuses_is_refused(model: str, body: RestBody, engine: Engine) -> None:
    """The gateway refuses the request before it sends it, with 400; for some of them Triton answers 500."""
    assert engine.post(model, "infer", body).status in (400, 500)
    with pytest.raises(GatewayError) as caught:
        sent, wanted = infer_request_of_rest(body.data, body.head_bytes, model, "")
        rest_of_infer_response(engine.infer(sent), wanted)
    assert caught.value.status.http == 400


# Shared memory


@pytest.fixture
def region(triton: TritonProcess) -> Iterator[Any]:
    """A region of 24 bytes that Triton knows as `r`: two inputs of 1 and -2, and space for an output."""
    handle = shared_memory.create_shared_memory_region("r", "/pointsman_conversion", 24)
    try:
        shared_memory.set_shared_memory_region(handle, [np.frombuffer(ONE_TWO * 2, dtype=np.int32)])
        with tritonclient.http.InferenceServerClient(f"127.0.0.1:{triton.http_port}") as client:
            client.register_system_shared_memory("r", "/pointsman_conversion", 24)
            yield handle
            client.unregister_system_shared_memory("r")
    finally:
        shared_memory.destroy_shared_memory_region(handle)


def shared_request() -> Any:
    made = message("inference.ModelInferRequest")(model_name="adder")
    tensors = [made.inputs.add(name=name, datatype="INT32", shape=[1, 2]) for name in "ab"]
    tensors.append(made.outputs.add(name="sum"))
    for tensor, offset in zip(tensors, (0, 8, 16), strict=True):
        tensor.parameters["shared_memory_region"].string_param = "r"
        tensor.parameters["shared_memory_offset"].int64_param = offset
        tensor.parameters["shared_memory_byte_size"].int64_param = 8
    made.outputs.add(name="diff")
    return made


def test_shared_memory_is_used_whatever_the_protocol(region: Any, engine: Engine) -> None:
    """Inputs are read from the region and an output is written to it; the reply has no tensor bytes."""

    def written() -> list[int]:
        return shared_memory.get_contents_as_numpy(region, np.int32, [6])[4:].tolist()

    def forget() -> None:
        shared_memory.set_shared_memory_region(region, [np.frombuffer(ONE_TWO * 2 + b"\0" * 8, dtype=np.int32)])

    data = shared_request().SerializeToString()
    direct = parse(RESPONSE, engine.infer(data))
    assert written() == [2, -4]
    forget()
    body = rest_of_infer_request(data)
    reply = body_of(engine.post("adder", "infer", body))
    assert parse(RESPONSE, infer_response_of_rest(reply.data, reply.head_bytes)) == direct
    assert written() == [2, -4]
    forget()
    sent, wanted = infer_request_of_rest(body.data, body.head_bytes, "adder", "")
    assert comparable(rest_of_infer_response(engine.infer(sent), wanted)) == comparable(reply)
    assert written() == [2, -4]


# Generate

GENERATES = {
    "a text": ("text", b'{"text_input":"hi"}'),
    "parameters, and an id": ("text", b'{"id":"7","text_input":["hi"],"parameters":{"x":1,"y":2.5},"z":true}'),
    "arrays": ("adder", b'{"a":[1,2],"b":[3,4]}'),
    "scalars": ("adder", b'{"a":1,"b":3}'),
    "no elements": ("adder", b'{"a":[],"b":[]}'),
    "special numbers": ("identity_fp32", b'{"INPUT0":[1,NaN,-Infinity,1e10]}'),
    "bytes that are not UTF-8": ("identity_bytes", b'{"INPUT0":["\xff","x\\u0000"]}'),
    "a fixed axis": ("classifier", b'{"scores":[1,2,3,4,5,6,7,8]}'),
}


@pytest.mark.parametrize("model, body", GENERATES.values(), ids=GENERATES)
def test_a_generate_gets_the_same_from_grpc(model: str, body: bytes, engine: Engine) -> None:
    """The bodies are equal, byte by byte."""
    sent = infer_request_of_generate(body, engine.metadata(model), model, "")
    direct = body_of(engine.post(model, "generate", RestBody(body)))
    assert generate_of_infer_response(engine.infer(sent)) == direct.data


REFUSED_GENERATES = {
    "too many elements": ("text", b'{"text_input":["a","b"]}'),
    "nested arrays": ("adder", b'{"a":[[1,2]],"b":[[3,4]]}'),
    "half precision": ("identity_fp16", b'{"INPUT0":[1]}'),
    "null": ("text", b'{"text_input":null}'),
    "an input twice": ("text", b'{"text_input":"a","parameters":{"text_input":"b"}}'),
    "an array as a parameter": ("text", b'{"text_input":"a","x":[1]}'),
    "nothing": ("text", b""),
}


@pytest.mark.parametrize("model, body", REFUSED_GENERATES.values(), ids=REFUSED_GENERATES)
def test_a_generate_that_triton_refuses_is_refused(model: str, body: bytes, engine: Engine) -> None:
    """The gateway refuses it before it is sent."""
    assert engine.post(model, "generate", RestBody(body)).status in (400, 500)
    with pytest.raises(GatewayError) as caught:
        infer_request_of_generate(body, engine.metadata(model), model, "")
    assert caught.value.status.http == 400


STREAMS = {
    "several answers": ("repeater", b'{"id":"x","text_input":"hi","count":3}'),
    "a failure on the way": ("repeater", b'{"text_input":"hi","count":3,"fail_after":1}'),
    "no answer": ("repeater", b'{"text_input":"hi","count":0}'),
    "a model of one answer": ("text", b'{"text_input":"hi"}'),
    "a model that fails": ("failer", b'{"text_input":"hi"}'),
}


@pytest.mark.parametrize("model, body", STREAMS.values(), ids=STREAMS)
def test_a_generate_stream_gets_the_same_from_grpc(model: str, body: bytes, engine: Engine) -> None:
    """The events are equal byte by byte, and the last message has the final flag."""
    made = parse("inference.ModelInferRequest", infer_request_of_generate(body, engine.metadata(model), model, ""))
    made.parameters[FINAL_RESPONSE_FLAG].bool_param = True
    parts = [read_stream_response(data) for data in engine.stream(iter([made.SerializeToString()]))]
    events = [
        sse_of_error(part.error) if part.error else sse_of_infer_response(part.infer_response)
        for part in parts
        if not part.is_empty
    ]
    assert b"".join(events) == engine.post(model, "generate_stream", RestBody(body)).body
    assert [part.is_final for part in parts] == [False] * (len(parts) - 1) + [True]


@pytest.mark.parametrize("model, count", [("repeater", 3), ("text", 1)])
def test_a_grpc_stream_gets_the_same_from_generate_stream(model: str, count: int, engine: Engine) -> None:
    """A client of ModelStreamInfer gets the same responses from an engine called by REST as from gRPC."""
    made = request(model, TEXT)
    if model == "repeater":
        made.id = "7"  # which Triton's generate also passes to the model as a parameter, as `text` would show
        made.inputs.add(name="count", datatype="INT32", shape=[1])
        made.raw_input_contents.append(struct.pack("<i", count))
    metadata, sent = engine.metadata(model), made.SerializeToString()
    reply = engine.post(model, "generate_stream", generate_of_infer_request(sent, metadata))
    events = SseReader().feed(body_of(reply).data)
    direct = [
        parse(RESPONSE, part.infer_response)
        for part in map(read_stream_response, engine.stream(iter([sent])))
        if not part.is_empty
    ]
    for response in direct:
        del response.parameters["triton_final_response"]
    assert len(events) == count
    assert [parse(RESPONSE, infer_response_of_generate(event, metadata)) for event in events] == direct
