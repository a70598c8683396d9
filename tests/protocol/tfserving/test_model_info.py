"""TF Serving's model metadata and status, and the V2 metadata made from them."""

import json
from typing import Any

import pytest

from gateway.protocol.conversion.control import rpc_response
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.protobuf import parse
from gateway.protocol.tfserving.model_info import (
    ServingSignature,
    Signatures,
    TensorInfo,
    config_of,
    metadata_of,
    read_signatures,
    read_signatures_message,
    read_versions,
    read_versions_message,
    ready_of,
)
from tests.protocol.tfserving.exchanges import HALF_PLUS_TWO, NOT_FOUND, STATUS, metadata, signature, tensor
from tests.protocol.tfserving.vectors import RESPONSES

ONE = {"y": TensorInfo("FP32", (-1, 1))}
EXAMPLE = {"inputs": TensorInfo("BYTES", None)}
SIGNATURES = Signatures(
    "123",
    {
        "serving_default": ServingSignature("predict", {"x": TensorInfo("FP32", (-1, 1))}, ONE),
        "classify_x_to_y": ServingSignature("classify", EXAMPLE, {"scores": TensorInfo("FP32", (-1, 1))}),
        "regress_x_to_y": ServingSignature("regress", EXAMPLE, {"outputs": TensorInfo("FP32", (-1, 1))}),
    },
)


def test_signatures() -> None:
    """The signatures are the same by REST and by gRPC."""
    assert read_signatures(HALF_PLUS_TWO) == SIGNATURES
    assert read_signatures_message(RESPONSES["metadata"]) == SIGNATURES


def test_a_request_without_a_signature_name_has_the_default() -> None:
    """A request without a signature name uses `serving_default`; an unknown name finds no signature."""
    assert SIGNATURES.find("") is SIGNATURES.find("serving_default") is SIGNATURES.by_name["serving_default"]
    assert SIGNATURES.find("nothing") is None


def test_metadata_and_config_of_a_model() -> None:
    """V2 metadata and configuration describe the default signature."""
    assert metadata_of("half", SIGNATURES) == {
        "name": "half",
        "versions": ["123"],
        "platform": "tensorflow_savedmodel",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 1]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 1]}],
    }
    assert metadata_of("half", SIGNATURES, ["124", "123"])["versions"] == ["124", "123"]
    assert config_of("half", SIGNATURES) == {
        "name": "half",
        "platform": "tensorflow_savedmodel",
        "backend": "tensorflow",
        "max_batch_size": 0,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 1]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [-1, 1]}],
        "parameters": {"TF_SIGNATURE_DEF": {"string_value": "serving_default"}},
    }


EVERYTHING = metadata(
    "m",
    {
        "b": signature("classify", {}, {}),
        "a": signature(
            "predict",
            {"text": tensor("DT_STRING", "t:0", None), "scalar": tensor("DT_HALF", "s:0", [])},
            {"wave": tensor("DT_COMPLEX64", "w:0", [-1]), "sum": tensor("DT_BFLOAT16", "b:0", [2, 3])},
        ),
    },
    "",
)


def test_a_model_without_a_default_signature() -> None:
    """Without a default signature the first by name is described; an unknown rank is one axis of any size, and
    datatypes that V2 lacks keep TensorFlow's name."""
    written = metadata_of("m", read_signatures(EVERYTHING))
    assert written["versions"] == []
    assert written["inputs"] == [
        {"name": "scalar", "datatype": "FP16", "shape": []},
        {"name": "text", "datatype": "BYTES", "shape": [-1]},
    ]
    assert written["outputs"] == [
        {"name": "sum", "datatype": "BF16", "shape": [2, 3]},
        {"name": "wave", "datatype": "DT_COMPLEX64", "shape": [-1]},
    ]
    config = config_of("m", read_signatures(EVERYTHING))
    assert [each["data_type"] for each in config["input"]] == ["TYPE_FP16", "TYPE_STRING"]
    assert [each["data_type"] for each in config["output"]] == ["TYPE_BF16", "TYPE_INVALID"]


@pytest.mark.parametrize("written", [SIGNATURES, read_signatures(EVERYTHING), Signatures("", {})])
def test_metadata_and_config_are_tritons_messages(written: Signatures) -> None:
    """The metadata and configuration convert to gRPC without loss."""
    answer = rpc_response("ModelMetadata", 200, json.dumps(metadata_of("m", written)).encode())
    message = parse("inference.ModelMetadataResponse", answer)
    assert [(each.name, each.datatype, list(each.shape)) for each in message.inputs] == [
        (each["name"], each["datatype"], each["shape"]) for each in metadata_of("m", written)["inputs"]
    ]
    config = config_of("m", written)
    answer = rpc_response("ModelConfig", 200, json.dumps(config).encode())
    message = parse("inference.ModelConfigResponse", answer).config
    assert (message.name, message.platform, message.backend) == ("m", config["platform"], "tensorflow")
    assert [list(each.dims) for each in message.output] == [each["dims"] for each in config["output"]]
    assert message.parameters["TF_SIGNATURE_DEF"].string_value == written.default[0]


def status(*states: tuple[str, str]) -> bytes:
    written = [{"version": version, "state": state, "status": {}} for version, state in states]
    return json.dumps({"model_version_status": written}).encode()


@pytest.mark.parametrize(
    "code, body, ready, versions",
    [
        (200, STATUS, True, ["123"]),
        (200, status(("9", "AVAILABLE"), ("10", "AVAILABLE"), ("11", "LOADING")), True, ["10", "9"]),
        (200, status(("1", "END"), ("2", "START")), False, []),
        (200, status(), False, []),
        (404, NOT_FOUND, False, None),
        (200, b"<html>", False, None),
        (200, b"[]", False, None),
        (200, b'{"model_version_status": [1]}', False, None),
    ],
)
def test_readiness(code: int, body: bytes, ready: bool, versions: list[str] | None) -> None:
    """A model is ready if at least one version is available."""
    assert ready_of(code, body) is ready
    if versions is not None:
        assert read_versions(body) == versions


def test_readiness_by_grpc() -> None:
    """Available versions are read from GetModelStatus's reply."""
    assert read_versions_message(RESPONSES["status"]) == ["123"]
    assert read_versions_message(b"") == []


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"{}", b'{"model_spec": 1}', b'{"model_spec": {}, "metadata": {"signature_def": []}}'),
        metadata("m", {"a": 1}),
        metadata("m", {"a": {"inputs": [1]}}),
        metadata("m", {"a": signature("predict", {"x": {"tensor_shape": {"dim": [{}]}}}, {})}),
        metadata("m", {"a": signature("predict", {"x": {"tensor_shape": {"dim": [{"size": "a"}]}}}, {})}),
        metadata("m", {"a": signature("predict", {"x": {"dtype": []}}, {})}),
    ],
)
def test_metadata_that_cannot_be_understood(body: bytes) -> None:
    """Malformed metadata is an upstream protocol error."""
    with pytest.raises(GatewayError) as refused:
        read_signatures(body)
    assert refused.value.kind is ErrorKind.UPSTREAM_PROTOCOL


@pytest.mark.parametrize("read", [read_signatures_message, read_versions_message])
def test_messages_that_cannot_be_understood(read: Any) -> None:
    """A malformed message is an upstream protocol error."""
    with pytest.raises(GatewayError) as refused:
        read(b"\x0a\xff")
    assert refused.value.kind is ErrorKind.UPSTREAM_PROTOCOL


def test_old_spellings_of_metadata() -> None:
    """Metadata may omit empty fields, give sizes as numbers, and give datatypes by number."""
    written = {"a": {"inputs": {"x": {"dtype": 1, "tensor_shape": {"dim": [{"size": 3}]}}}}}
    assert read_signatures(metadata("m", written)).by_name == {
        "a": ServingSignature("predict", {"x": TensorInfo("FP32", (3,))}, {})
    }
