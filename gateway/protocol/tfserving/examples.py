"""Classify and regress: examples in, classes or values out.

Each input is a feature: its first axis, which all inputs share, goes along the examples, and the rest of it is the
feature's list of values, in row-major order. A feature holds FP32, INT64 or BYTES: BF16, FP16 and all integers that
INT64 has are told as one of these, FP64 is refused rather than rounded.

The replies, of N examples, as V2 outputs:

    regress     outputs   FP32 [N]
    classify    classes   BYTES [N, C]   the label of each class, empty where the model has none
                scores    FP32 [N, C]

The names are those that TensorFlow gives such signatures' outputs.
Source: TF Serving `g3doc/api_rest.md`, "Classify and Regress API"; `util/json_tensor.cc` (AddValueToFeature);
TensorFlow `core/example/feature.proto`, `cc/saved_model/signature_constants.h`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

import orjson

from gateway.protocol.conversion.errors import about, unsupported
from gateway.protocol.conversion.json_tensors import read_tensor
from gateway.protocol.conversion.tensors import RawTensor, element_count, join_elements, numbers, split_elements
from gateway.protocol.protobuf import Message
from gateway.protocol.tfserving.infer_request import TFServingRequest
from gateway.protocol.tfserving.predict import batch_size, rows

CLASSES, SCORES, REGRESSIONS = "classes", "scores", "outputs"

_MAX_INT64 = 2**63 - 1


def write_body(requested: TFServingRequest) -> bytes:
    """The request's JSON. Raises: ValueError where the tensors are no examples, GatewayError(UNSUPPORTED) where no
    feature holds their data."""
    body: dict[str, Any] = {"signature_name": requested.signature_name} if requested.signature_name else {}
    body["examples"] = rows(tuple([_feature(tensor) for tensor in requested.tensors]))
    return orjson.dumps(body)


def fill_examples(examples: Message, requested: TFServingRequest) -> None:
    """Set an ExampleList. Raises: as `write_body`."""
    columns = [_column(_feature(tensor)) for tensor in requested.tensors]
    for at in range(batch_size(requested.tensors)):
        features = examples.examples.add().features.feature
        for tensor, (field, values, step) in zip(requested.tensors, columns, strict=True):
            chosen = getattr(features[tensor.name], field)
            chosen.SetInParent()
            chosen.value.extend(values[at * step : (at + 1) * step])


def read_regressions(content: Any) -> list[RawTensor]:
    """The output of regress's JSON. Raises: ValueError."""
    found = _results(content)
    if any(isinstance(value, list) for value in found):
        raise ValueError("'results' must be numbers")
    return [read_tensor(REGRESSIONS, "FP32", found)]


def read_classifications(content: Any) -> list[RawTensor]:
    """The outputs of classify's JSON. Raises: ValueError."""
    found = []
    for classes in _results(content):
        if not isinstance(classes, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in classes):
            raise ValueError("'results' must be lists of [label, score]")
        found.append(classes)
    labels = [[pair[0] for pair in classes] for classes in found]
    scores = [[pair[1] for pair in classes] for classes in found]
    return [read_tensor(CLASSES, "BYTES", labels, (-1, -1)), read_tensor(SCORES, "FP32", scores, (-1, -1))]


def regressions_of(response: Message) -> list[RawTensor]:
    """The output of a RegressionResponse."""
    values = array("f", [each.value for each in response.result.regressions])
    return [RawTensor(REGRESSIONS, "FP32", (len(values),), values.tobytes())]


def classifications_of(response: Message) -> list[RawTensor]:
    """The outputs of a ClassificationResponse. Raises: ValueError where examples differ in how many classes they
    have."""
    found = response.result.classifications
    sizes = {len(each.classes) for each in found}
    if len(sizes) > 1:
        raise ValueError("examples differ in how many classes they have")
    shape = (len(found), sizes.pop() if sizes else 0)
    labels = join_elements(each.label.encode() for one in found for each in one.classes)
    scores = array("f", [each.score for one in found for each in one.classes])
    return [RawTensor(CLASSES, "BYTES", shape, labels), RawTensor(SCORES, "FP32", shape, scores.tobytes())]


def _results(content: Any) -> list[Any]:
    """TF Serving writes `results`; its documentation has `result` too."""
    found = (content.get("results") or content.get("result")) if isinstance(content, dict) else None
    if not isinstance(found, list):
        raise ValueError("the reply has no 'results'")
    return found


def _feature(tensor: RawTensor) -> RawTensor:
    """The tensor as a feature has it: its axes but the first are one."""
    with about(f"input '{tensor.name}'"):
        if tensor.datatype == "FP64":
            raise unsupported(f"input '{tensor.name}' is FP64, and an example's feature is FP32: send it so")
        if tensor.datatype == "UINT64" and max(numbers("UINT64", tensor.raw), default=0) > _MAX_INT64:
            raise unsupported(f"input '{tensor.name}' has a number in it that an example's feature (INT64) cannot hold")
        shape = tensor.shape[:1] if len(tensor.shape) < 2 else (tensor.shape[0], element_count(tensor.shape[1:]))
        return RawTensor(tensor.name, tensor.datatype, shape, tensor.raw)


def _column(feature: RawTensor) -> tuple[str, Any, int]:
    """The field that a feature's values stand in, the values of all examples, and how many each has."""
    step = feature.shape[1] if len(feature.shape) > 1 else 1
    if feature.datatype == "BYTES":
        with about(f"input '{feature.name}'"):
            return "bytes_list", split_elements(feature.raw, element_count(feature.shape)), step
    values: Iterable[Any] = numbers(feature.datatype, feature.raw)
    return "float_list" if feature.datatype in ("FP32", "FP16", "BF16") else "int64_list", values, step
