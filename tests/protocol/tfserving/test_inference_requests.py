"""V2 inference requests translated for TF Serving's REST and gRPC APIs."""

import struct
from typing import Any

import orjson
import pytest

from gateway.protocol.errors import GatewayError
from gateway.protocol.tfserving import messages
from gateway.protocol.tfserving.infer_request import Method
from gateway.protocol.tfserving.inference import Inference
from gateway.protocol.tfserving.model_info import target
from gateway.protocol.tfserving.rpcs import metadata_call, status_call
from gateway.protocol.translator import Translator
from tests.protocol.conversion.inferences import Tensor, request_of
from tests.protocol.tfserving.translations import BOTH, PAIR, THREE, TWO, X, infer_translation, translation
from tests.protocol.tfserving.vectors import FEATURES, REQUESTS

REGRESS = {"method": "regress", "signature_name": "tensorflow/serving/regress"}
ASKED = [
    ("columns", {}, "/v1/models/half:predict", {"inputs": {"x": [[1.0], [2.0], [5.0]]}}),
    (
        "rows",
        {"parameters": {"tf_format": "instances"}},
        "/v1/models/half:predict",
        {"instances": [[1.0], [2.0], [5.0]]},
    ),
    (
        "signature, version",
        {"parameters": {"signature_name": "other"}, "version": "123"},
        "/v1/models/half/versions/123:predict",
        {"signature_name": "other", "inputs": {"x": [[1.0], [2.0], [5.0]]}},
    ),
    (
        "label",
        {"parameters": {"version_label": "stable"}},
        "/v1/models/half/labels/stable:predict",
        {"inputs": {"x": [[1.0], [2.0], [5.0]]}},
    ),
    ("label of the route", {"model": "half:canary"}, "/v1/models/half/labels/canary:predict", None),
    (
        "several columns",
        {"inputs": PAIR, "signatures": BOTH},
        "/v1/models/half:predict",
        {"inputs": {"a": [[1, 2], [3, 4]], "t": ["p", "q"]}},
    ),
    (
        "several rows",
        {"inputs": PAIR, "signatures": BOTH, "parameters": {"tf_format": "instances"}},
        "/v1/models/half:predict",
        {"instances": [{"a": [1, 2], "t": "p"}, {"a": [3, 4], "t": "q"}]},
    ),
    (
        "regress, as documented",
        {"inputs": [X | {"shape": [2], "data": [1, 2]}], "parameters": REGRESS, "signatures": THREE},
        "/v1/models/half:regress",
        {"signature_name": "tensorflow/serving/regress", "examples": [{"x": 1.0}, {"x": 2.0}]},
    ),
    (
        "classify, several features",
        {"inputs": [PAIR[0] | {"shape": [2, 1, 2]}, PAIR[1]], "parameters": {"method": "classify"}},
        "/v1/models/half:classify",
        {"examples": [{"a": [1, 2], "t": "p"}, {"a": [3, 4], "t": "q"}]},
    ),
    (
        "bytes, and no signature known",
        {"inputs": [PAIR[1] | {"name": "image_bytes"}], "signatures": None},
        "/v1/models/half:predict",
        {"inputs": {"image_bytes": [{"b64": "cA=="}, {"b64": "cQ=="}]}},
    ),
]


@pytest.mark.parametrize("options, path, body", [row[1:] for row in ASKED], ids=[row[0] for row in ASKED])
def test_what_is_asked_by_rest(options: dict[str, Any], path: str, body: Any) -> None:
    """Tensors are sent as columns by default; parameters select rows, examples, the signature and the version."""
    made = translation(**options).request()
    assert (made.path, made.method, made.content_type) == (path, "POST", "application/json")
    if body is not None:
        assert orjson.loads(made.body) == body


def test_bare_tokens_are_written() -> None:
    """NaN and infinities are written as bare tokens in columns, rows and examples."""
    raw = struct.pack("<2f", float("nan"), float("-inf"))
    head = orjson.dumps(
        {"inputs": [X | {"shape": [2], "parameters": {"binary_data_size": 8}} | {"data": None}]}
    ).replace(b',"data":null', b"")
    for parameters, body in (
        ({}, b'{"inputs":{"x":[NaN,-Infinity]}}'),
        ({"tf_format": "instances"}, b'{"instances":[NaN,-Infinity]}'),
        ({"method": "regress"}, b'{"examples":[{"x":NaN},{"x":-Infinity}]}'),
    ):
        reply = orjson.dumps(orjson.loads(head) | {"parameters": parameters})
        made = infer_translation(reply + raw, len(reply), model="half")
        assert made.request().body == body


CALLS = [
    ("predict", {"outputs": [{"name": "y"}]}, "Predict"),
    ("predict everything", {}, "Predict"),
    ("predict by label", {"parameters": {"version_label": "stable", "signature_name": "serving_default"}}, "Predict"),
    ("classify", {"parameters": {"method": "classify", "signature_name": "classify_x_to_y"}}, "Classify"),
    ("regress", {"parameters": {"method": "regress", "signature_name": "regress_x_to_y"}, "version": "123"}, "Regress"),
]


@pytest.mark.parametrize("name, options, rpc", CALLS, ids=[row[0] for row in CALLS])
def test_what_is_asked_by_grpc(name: str, options: dict[str, Any], rpc: str) -> None:
    """The messages equal, byte for byte, those that TF Serving's own classes serialize."""
    inputs = [X] if rpc == "Predict" else [X | {"shape": [2], "data": [2, 4]}]
    made = translation(inputs, model="half_plus_two", **options).call()
    assert made.path == f"/tensorflow.serving.PredictionService/{rpc}".encode()
    assert made.message == REQUESTS[name]


def test_metadata_and_status_by_grpc() -> None:
    """The metadata and status requests equal, byte for byte, those that TF Serving's own classes serialize."""
    metadata, status = metadata_call(target("half_plus_two")), status_call(target("half_plus_two"))
    assert metadata.message == REQUESTS["metadata"]
    assert metadata.path == b"/tensorflow.serving.PredictionService/GetModelMetadata"
    assert status.message == REQUESTS["status"]
    assert status.path == b"/tensorflow.serving.ModelService/GetModelStatus"


def test_features_by_grpc() -> None:
    """Each datatype is sent in the matching feature list: floats, integers or bytes."""
    tensors = [
        Tensor("counts", "INT8", [2, 2], b"\x01\xfe\x03\x04"),
        Tensor("words", "BYTES", [2, 1, 2], b"\x01\0\0\0a\x01\0\0\0\xff\0\0\0\0\x01\0\0\0d"),
        Tensor("flag", "BOOL", [2], b"\x01\x01"),
        Tensor("half", "BF16", [2], b"\xc0\x3f\xc0\x3f"),
    ]
    sent = request_of(tensors, {"method": "regress"}).SerializeToString()
    made = Inference(sent, model="m").call().message
    assert messages.parse("RegressionRequest", made) == messages.parse("RegressionRequest", FEATURES)


@pytest.mark.parametrize(
    "parameters, path, wants",
    [
        ({}, "/v1/models/half/metadata", True),
        ({"version_label": "stable"}, "/v1/models/half/labels/stable/metadata", True),
        ({"method": "classify"}, "/v1/models/half/metadata", False),
        ({"method": "regress"}, "/v1/models/half/metadata", False),
    ],
)
def test_whose_signatures_a_request_wants_to_know(parameters: dict[str, str], path: str, wants: bool) -> None:
    """A predict request needs the signatures of its version; requests with examples need none and are not checked
    against any."""
    made = translation([X | {"name": "other"}], parameters, signatures=None)
    requested = made.requested
    assert (requested.target.metadata_path, requested.method is Method.PREDICT) == (path, wants)
    if not wants:
        made.know(TWO)
        assert b'"examples"' in made.request().body


def test_it_is_a_translator_that_does_not_stream() -> None:
    """The translation is a Translator without streaming; a streamed reply is an error."""
    translated: Translator = translation(model="half:stable")
    assert (translated.streams, translated.end()) == (False, b"")
    with pytest.raises(GatewayError, match="streams its answer to a request for one"):
        translated.feed(b"data: 1")
