"""Property tests: inference requests and responses survive a round trip through TF Serving's formats."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.protocol.conversion import triton_json
from gateway.protocol.errors import GatewayError
from gateway.protocol.protobuf import parse
from gateway.protocol.tfserving import messages
from gateway.protocol.tfserving.inference import Inference
from gateway.protocol.tfserving.model_info import ServingSignature, Signatures, TensorInfo
from gateway.protocol.translator import Reply
from tests.protocol.conversion.inferences import Tensor, request_of, tensors
from tests.protocol.tfserving.test_json_tensors import canonical
from tests.protocol.tfserving.translations import infer_translation

few = settings(max_examples=120, deadline=None)
by_name: dict[str, Any] = {"unique_by": lambda tensor: tensor.name, "min_size": 1, "max_size": 3}


def echo(inputs: list[Tensor]) -> Signatures:
    """Signatures of a model whose outputs are its inputs."""
    infos = {tensor.name: TensorInfo(tensor.datatype, tuple(tensor.shape)) for tensor in inputs}
    return Signatures("", {"serving_default": ServingSignature("predict", infos, infos)})


def asked(inputs: list[Tensor], **parameters: str) -> Inference:
    message = request_of(inputs, parameters, "7").SerializeToString()
    return Inference(message, model="m", signatures=echo(inputs))


def outputs(message: bytes, *, exact: bool) -> dict[str, tuple[Any, ...]]:
    response = parse("inference.ModelInferResponse", message)
    assert response.id == "7"
    return {
        each.name: (each.datatype, list(each.shape), raw if exact else canonical(each.datatype, raw))
        for each, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def sent(inputs: list[Tensor], *, exact: bool) -> dict[str, tuple[Any, ...]]:
    return {
        each.name: (each.datatype, each.shape, each.raw if exact else canonical(each.datatype, each.raw))
        for each in inputs
    }


@few
@given(st.lists(tensors(), **by_name))
def test_columns_there_and_back(inputs: list[Tensor]) -> None:
    """Tensors of every datatype and shape survive a round trip in the JSON column format; NaN stays NaN."""
    made = asked(inputs)
    body = made.rest_request().body.replace(b'{"inputs":', b'{"outputs":', 1)
    assert triton_json.read(body)["outputs"].keys() == {tensor.name for tensor in inputs}
    assert outputs(made.response_of_rest(body), exact=False) == sent(inputs, exact=False)


@few
@given(st.lists(tensors(axes=True), **by_name), st.integers(1, 3))
def test_rows_there_and_back(inputs: list[Tensor], batch: int) -> None:
    """Tensors with a common batch size survive a round trip in the JSON row format."""
    inputs = [batched(tensor, batch) for tensor in inputs]
    made = asked(inputs, tf_format="instances")
    body = made.rest_request().body.replace(b'{"instances":', b'{"predictions":', 1)
    assert outputs(made.response_of_rest(body), exact=False) == sent(inputs, exact=False)


def batched(tensor: Tensor, batch: int) -> Tensor:
    """The tensor repeated along a new batch axis."""
    return Tensor(tensor.name, tensor.datatype, [batch, *tensor.shape], tensor.raw * batch)


@few
@given(st.lists(tensors(), **by_name))
def test_by_grpc_there_and_back(inputs: list[Tensor]) -> None:
    """Tensors of every datatype and shape survive a round trip through gRPC bit for bit."""
    made = asked(inputs)
    request = messages.parse("PredictRequest", made.call().message)
    response = messages.message("PredictResponse")()
    for name in request.inputs:
        response.outputs[name].CopyFrom(request.inputs[name])
    assert outputs(made.response_of_call(response.SerializeToString()), exact=True) == sent(inputs, exact=True)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["b64", "x", "y", "outputs"]), inner, max_size=3)
    ),
    max_leaves=8,
)
replies = st.dictionaries(
    st.sampled_from(["outputs", "predictions", "results", "result", "error"]), json_values, max_size=2
)


@pytest.mark.parametrize("method", ["predict", "classify", "regress"])
@settings(max_examples=150, deadline=None)
@given(reply=replies | json_values, known=st.booleans())
@example(reply={"results": [3.4028235677973366e38]}, known=False)
def test_whatever_a_reply_is(method: str, reply: Any, known: bool) -> None:
    """Any JSON reply yields a V2 response or a GatewayError."""
    signatures = echo([Tensor("x", "FP32", [1], b"1234"), Tensor("y", "BYTES", [1], b"")])
    body = orjson.dumps(
        {
            "parameters": {"method": method},
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}],
        }
    )
    made = infer_translation(body, None, model="m")
    if known:
        made.know(signatures)
    try:
        answered = made.whole(Reply(200, orjson.dumps(reply)))
    except GatewayError as refused:
        assert refused.message.encode()
    else:
        # Numbers beyond a datatype's range become infinite, which is a bare token in V2's JSON, as in Triton's.
        assert json.loads(answered.body)["model_name"] == "m"


@pytest.mark.parametrize("method", ["predict", "classify", "regress"])
@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=40) | st.lists(tensors(), max_size=2), cut=st.integers(0, 60))
def test_whatever_a_message_is(method: str, data: Any, cut: int) -> None:
    """Any gRPC reply, complete or truncated, yields a V2 response or a GatewayError."""
    if not isinstance(data, bytes):
        response = messages.message("PredictResponse")()
        for tensor in data:
            proto = messages.parse("PredictRequest", asked([tensor]).call().message).inputs[tensor.name]
            response.outputs[tensor.name].CopyFrom(proto)
        data = response.SerializeToString()[:cut]
    request = request_of([Tensor("x", "FP32", [1], b"1234")], {"method": method}, "7").SerializeToString()
    try:
        answered = Inference(request, model="m").response_of_call(data)
    except GatewayError as refused:
        assert refused.message.encode()
    else:
        outputs(answered, exact=True)


@few
@given(st.binary(max_size=60))
def test_whatever_a_request_is(data: bytes) -> None:
    """Any request is read or rejected with a GatewayError."""
    try:
        made = Inference(data, model="m")
        made.rest_request()
        made.call()
    except GatewayError as refused:
        assert refused.message.encode()
