"""Short constructors of TF Serving translations for tests."""

from typing import Any

import orjson

from gateway.protocol.operations import Operation
from gateway.protocol.tfserving.inference import InferTranslation
from gateway.protocol.tfserving.model_info import ServingSignature, Signatures, TensorInfo, read_signatures
from gateway.protocol.translator import V2Request
from tests.protocol.tfserving.exchanges import HALF_PLUS_THREE, HALF_PLUS_TWO

TWO = read_signatures(HALF_PLUS_TWO)
THREE = read_signatures(HALF_PLUS_THREE)
X = {"name": "x", "datatype": "FP32", "shape": [3, 1], "data": [1, 2, 5]}
PAIR = [
    {"name": "a", "datatype": "INT32", "shape": [2, 2], "data": [1, 2, 3, 4]},
    {"name": "t", "datatype": "BYTES", "shape": [2], "data": ["p", "q"]},
]
BOTH = Signatures(
    "1",
    {
        "serving_default": ServingSignature(
            "predict",
            {"a": TensorInfo("INT32", (-1, 2)), "t": TensorInfo("BYTES", (-1,))},
            {"n": TensorInfo("FP32", (-1,)), "raw_bytes": TensorInfo("BYTES", (-1,))},
        )
    },
)


def infer_translation(body: bytes, head_bytes: int | None = None, **named: Any) -> InferTranslation:
    return InferTranslation(V2Request(Operation.INFER, body, head_bytes, **named))


def translation(
    inputs: Any = (X,),
    parameters: dict[str, Any] | None = None,
    outputs: Any = None,
    model: str = "half",
    signatures: Signatures | None = TWO,
    **options: Any,
) -> InferTranslation:
    body: dict[str, Any] = {"inputs": list(inputs)}
    if parameters is not None:
        body["parameters"] = parameters
    if outputs is not None:
        body["outputs"] = outputs
    made = infer_translation(orjson.dumps(body), None, model=model, **options)
    if signatures is not None:
        made.know(signatures)
    return made
