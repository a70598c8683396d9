"""Property tests: inference requests and responses survive a round trip."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.conversion.infer import (
    OutputForm,
    WantedOutputs,
    infer_request_of_rest,
    infer_response_of_rest,
    rest_of_infer_request,
    rest_of_infer_response,
)
from gateway.protocol.conversion.triton_json import read
from gateway.protocol.errors import GatewayError
from gateway.protocol.protobuf import parse
from tests.protocol.conversion.inferences import (
    IN_JSON,
    Tensor,
    comparable,
    elements,
    parameter_values,
    parameters,
    request_of,
    response_of,
    tensors,
)

few = settings(max_examples=120, deadline=None)
by_name = {"unique_by": lambda tensor: tensor.name, "max_size": 3}


def read_request(data: bytes) -> Any:
    return parse("inference.ModelInferRequest", data)


def tensors_of(message: Any, raws: Any) -> list[tuple[Any, ...]]:
    listed = message.inputs if hasattr(message, "inputs") else message.outputs
    found = [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in listed]
    assert len(found) == len(raws)
    return [(*head, raw) for head, raw in zip(found, raws, strict=True)]


@few
@given(st.lists(tensors(), **by_name), parameters, st.text(max_size=5))
def test_a_grpc_request_goes_by_rest_and_back(inputs: list[Tensor], values: dict[str, Any], request_id: str) -> None:
    """Names, shapes, exact data, id and parameters are preserved; an integer parameter may change its type."""
    sent = request_of(inputs, in_request(values), request_id)
    body = rest_of_infer_request(sent.SerializeToString())
    message, wanted = infer_request_of_rest(body.data, body.head_bytes, "m", "2")
    came = read_request(message)
    assert tensors_of(came, came.raw_input_contents) == tensors_of(sent, sent.raw_input_contents)
    assert parameter_values(came.parameters) == parameter_values(sent.parameters)
    assert (came.id, came.model_name, came.model_version) == (request_id, "m", "2")
    assert wanted.form("any") is OutputForm.BINARY


def in_request(values: dict[str, Any]) -> dict[str, Any]:
    """Parameters without integers that Triton's REST API reads as doubles."""
    return {name: value for name, value in values.items() if not isinstance(value, tuple) or value[1] < 2**63}


@few
@given(st.lists(tensors(IN_JSON), **by_name))
def test_typed_contents_are_the_raw_contents_of_the_same_values(inputs: list[Tensor]) -> None:
    """Typed contents and raw contents of the same values convert to the same REST body."""
    typed = rest_of_infer_request(request_of(inputs, {}, typed=True).SerializeToString())
    raw = rest_of_infer_request(request_of(inputs, {}).SerializeToString())
    for ours, theirs in zip(
        binary_tensors(typed.data, typed.head_bytes), binary_tensors(raw.data, raw.head_bytes), strict=True
    ):
        assert ours[:3] == theirs[:3]
        assert comparable(elements(ours[1], ours[3])) == comparable(elements(theirs[1], theirs[3]))


def binary_tensors(body: bytes, head_bytes: int | None) -> list[tuple[Any, ...]]:
    head = orjson.loads(body[:head_bytes])
    at, found = head_bytes or len(body), []
    for tensor in head["inputs"]:
        stop = at + tensor["parameters"]["binary_data_size"]
        found.append((tensor["name"], tensor["datatype"], tensor["shape"], body[at:stop]))
        at = stop
    assert at == len(body)
    return found


@few
@given(st.lists(tensors(IN_JSON), **by_name), st.booleans())
def test_a_rest_request_in_json_goes_by_grpc(inputs: list[Tensor], nested: bool) -> None:
    """Flat or nested JSON data becomes raw contents, including NaN and text that is not UTF-8."""
    body = json_request(inputs, nested)
    message, wanted = infer_request_of_rest(body, None, "m", "")
    came = read_request(message)
    for sent, (name, datatype, shape, raw) in zip(inputs, tensors_of(came, came.raw_input_contents), strict=True):
        assert (name, datatype, shape) == (sent.name, sent.datatype, sent.shape)
        assert comparable(elements(datatype, raw)) == comparable(sent.elements)
    assert wanted == WantedOutputs()


def json_request(inputs: list[Tensor], nested: bool) -> bytes:
    """A JSON request as Python's json module writes it, with NaN, Infinity and unescaped text bytes."""
    content = []
    for tensor in inputs:
        values = [
            value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value for value in tensor.elements
        ]
        data = nest(values, tensor.shape[1:]) if nested and tensor.shape else values
        content.append({"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape, "data": data})
    return json.dumps({"inputs": content}, ensure_ascii=False).encode("utf-8", "surrogateescape")


def nest(values: list[Any], inner: list[int]) -> list[Any]:
    for axis in reversed(inner):
        values = [values[at : at + axis] for at in range(0, len(values), axis)] if axis else []
    return values


@few
@given(st.lists(tensors(IN_JSON, axes=True), **by_name), parameters, st.text(max_size=5), st.data())
def test_a_grpc_response_goes_by_rest_and_back(
    outputs: list[Tensor], values: dict[str, Any], response_id: str, data: st.DataObject
) -> None:
    """A gRPC response survives a round trip through REST with JSON or binary outputs."""
    sent = response_of(outputs, values, response_id)
    forms = {tensor.name: data.draw(st.sampled_from((OutputForm.JSON, OutputForm.BINARY))) for tensor in outputs}
    body = rest_of_infer_response(sent.SerializeToString(), WantedOutputs(by_name=forms))
    came = parse("inference.ModelInferResponse", infer_response_of_rest(body.data, body.head_bytes))
    assert parameter_values(came.parameters) == parameter_values(sent.parameters)
    assert (came.id, came.model_name, came.model_version) == (response_id, "m", "2")
    for tensor, (name, datatype, shape, raw) in zip(outputs, tensors_of(came, came.raw_output_contents), strict=True):
        assert (name, datatype, shape) == (tensor.name, tensor.datatype, tensor.shape)
        if forms[name] is OutputForm.BINARY:
            assert raw == tensor.raw
        else:
            assert comparable(elements(datatype, raw)) == comparable(tensor.elements)


@few
@given(st.lists(tensors(), **by_name), parameters)
def test_a_rest_reply_goes_by_grpc_and_back(outputs: list[Tensor], values: dict[str, Any]) -> None:
    """A REST reply survives a round trip through gRPC byte for byte, except for the order of parameters."""
    everything = WantedOutputs(OutputForm.BINARY)
    body = rest_of_infer_response(response_of(outputs, values, "7").SerializeToString(), everything)
    again = rest_of_infer_response(infer_response_of_rest(body.data, body.head_bytes), everything)
    cut = body.head_bytes or len(body.data)
    assert (again.head_bytes, again.data[cut:]) == (body.head_bytes, body.data[cut:])
    assert repr(sort(read(again.data[:cut]))) == repr(sort(read(body.data[:cut])))


def sort(value: Any) -> Any:
    return {key: sort(value[key]) for key in sorted(value)} if isinstance(value, dict) else value


# Malformed

CONVERSIONS = {
    "rest_of_infer_request": lambda data, cut: rest_of_infer_request(data),
    "rest_of_infer_response": lambda data, cut: rest_of_infer_response(data, WantedOutputs()),
    "infer_request_of_rest": lambda data, cut: infer_request_of_rest(data, cut, "m", ""),
    "infer_response_of_rest": infer_response_of_rest,
}
whole_message = st.lists(tensors(), max_size=2).map(lambda inputs: request_of(inputs, {}).SerializeToString())
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
members = ("id", "parameters", "inputs", "outputs", "name", "datatype", "shape", "data", "model_name", "model_version")
members += ("binary_data_size", "binary_data", "shared_memory_region", "sequence_id", "timeout", "binary_data_output")
objects = st.recursive(
    json_values,
    lambda inner: st.dictionaries(st.sampled_from(members), inner, max_size=4) | st.lists(inner, max_size=2),
    max_leaves=8,
)
tensor = st.fixed_dictionaries(
    {},
    optional={
        "name": st.just("x") | json_values,
        "datatype": st.sampled_from(["FP32", "INT8", "BYTES", "BOOL", "BF16", "FP16"]) | json_values,
        "shape": st.lists(st.integers(-1, 3), max_size=2) | json_values,
        "data": st.lists(json_values, max_size=3) | json_values,
        "parameters": st.dictionaries(st.sampled_from(members), json_values, max_size=2) | json_values,
    },
)
tensor_lists = {side: st.lists(tensor, max_size=2) for side in ("inputs", "outputs")}
likely = st.fixed_dictionaries({}, optional={**tensor_lists, "id": objects, "parameters": objects})


@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_what_is_malformed_is_refused_and_nothing_else(convert: Any, data: st.DataObject) -> None:
    """Any input either converts or raises a GatewayError whose message is encodable as UTF-8."""
    body = data.draw(
        st.binary(max_size=60)
        | (objects | likely).map(lambda value: json.dumps(value).encode())
        | whole_message.flatmap(lambda whole: st.integers(0, len(whole)).map(lambda stop: whole[:stop]))
        | st.tuples(whole_message, st.integers(0, 200), st.integers(0, 255)).map(flip)
    )
    cut = data.draw(st.none() | st.integers(-1, len(body) + 1))
    try:
        convert(body, cut)
    except GatewayError as error:
        error.message.encode()


def flip(given: tuple[bytes, int, int]) -> bytes:
    """The message with one byte replaced."""
    whole, at, byte = given
    return whole[: at % (len(whole) or 1)] + bytes((byte,)) + whole[at % (len(whole) or 1) + 1 :]


@pytest.mark.parametrize("depth", [300, 1000, 5000])
def test_deep_json_is_data_or_refused(depth: int) -> None:
    """Deeply nested arrays are flattened without recursion; arrays beyond the depth limit are rejected."""
    for value in (b"1.5", b"NaN"):
        data = b"[" * depth + value + b"]" * depth
        body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":' + data + b"}]}"
        try:
            message, _ = infer_request_of_rest(body, None, "m", "")
        except GatewayError as error:
            assert depth > 500, error
        else:
            raw = read_request(message).raw_input_contents[0]
            assert comparable(elements("FP32", raw)) == comparable([float(value)])
