"""REST exchanges of TF Serving from its documentation and tests (written down from there, not recorded from a
server).

half_plus_two is y = x / 2 + 2, half_plus_three y = x / 2 + 3. Source: TF Serving `g3doc/api_rest.md` (JSON mapping,
"Example"), `g3doc/docker.md`, `servables/tensorflow/testdata/half_plus_two_model_metadata.json`,
`model_servers/tensorflow_model_server_test.py`, `util/json_tensor.cc` (errors).
"""

import json
from typing import Any


def tensor(dtype: str, name: str, axes: list[int] | None) -> dict[str, Any]:
    dim = [{"size": str(axis), "name": ""} for axis in axes or []]
    return {"dtype": dtype, "tensor_shape": {"dim": dim, "unknown_rank": axes is None}, "name": name}


def signature(method: str, inputs: dict[str, Any], outputs: dict[str, Any]) -> dict[str, Any]:
    return {
        "inputs": inputs,
        "outputs": outputs,
        "method_name": f"tensorflow/serving/{method}",
        "defaults": {},
    }


def metadata(name: str, signatures: dict[str, Any], version: str = "123") -> bytes:
    """The reply to `GET /v1/models/NAME/metadata`."""
    written = {
        "model_spec": {"name": name, "signature_name": "", "version": version},
        "metadata": {"signature_def": {"signature_def": signatures}},
    }
    return json.dumps(written, indent=1).encode()


EXAMPLES = {"inputs": tensor("DT_STRING", "tf_example:0", None)}
ONE = [-1, 1]

HALF_PLUS_TWO = metadata(
    "half_plus_two",
    {
        "serving_default": signature(
            "predict", {"x": tensor("DT_FLOAT", "x:0", ONE)}, {"y": tensor("DT_FLOAT", "y:0", ONE)}
        ),
        "classify_x_to_y": signature("classify", EXAMPLES, {"scores": tensor("DT_FLOAT", "y:0", ONE)}),
        "regress_x_to_y": signature("regress", EXAMPLES, {"outputs": tensor("DT_FLOAT", "y:0", ONE)}),
    },
)
HALF_PLUS_THREE = metadata(
    "half_plus_three",
    {
        "serving_default": signature(
            "predict", {"x": tensor("DT_FLOAT", "x:0", ONE)}, {"y": tensor("DT_FLOAT", "y:0", ONE)}
        ),
        "tensorflow/serving/regress": signature("regress", EXAMPLES, {"outputs": tensor("DT_FLOAT", "y:0", ONE)}),
    },
)

STATUS = b"""{
 "model_version_status": [
  {
   "version": "123",
   "state": "AVAILABLE",
   "status": {
    "error_code": "OK",
    "error_message": ""
   }
  }
 ]
}
"""

NOT_FOUND = b'{ "error": "Servable not found for request: Latest(half)" }'

# Method, path and body of the request; status and JSON of the reply.
DOCUMENTED: list[tuple[str, str, Any, int, Any]] = [
    ("GET", "/v1/models/half_plus_three", None, 200, json.loads(STATUS)),
    ("GET", "/v1/models/half_plus_two/versions/123", None, 200, json.loads(STATUS)),
    ("GET", "/v1/models/half_plus_two/metadata", None, 200, json.loads(HALF_PLUS_TWO)),
    (
        *("POST", "/v1/models/half_plus_two:predict", {"instances": [1.0, 2.0, 5.0]}),
        *(200, {"predictions": [2.5, 3.0, 4.5]}),
    ),
    (
        *("POST", "/v1/models/half_plus_three:predict", {"instances": [1.0, 2.0, 5.0]}),
        *(200, {"predictions": [3.5, 4.0, 5.5]}),
    ),
    ("POST", "/v1/models/half_plus_two:predict", {"inputs": [2.0, 3.0, 4.0]}, 200, {"outputs": [3.0, 3.5, 4.0]}),
    (
        *("POST", "/v1/models/half_plus_three:regress"),
        {"signature_name": "tensorflow/serving/regress", "examples": [{"x": 1.0}, {"x": 2.0}]},
        *(200, {"results": [3.5, 4.0]}),
    ),
    (
        *("POST", "/v1/models/half_plus_two:regress"),
        {"signature_name": "regress_x_to_y", "examples": [{"x": 2.0}]},
        *(200, {"results": [3.0]}),
    ),
    (
        *("POST", "/v1/models/half_plus_two:classify"),
        {"signature_name": "classify_x_to_y", "examples": [{"x": 2.0}]},
        *(200, {"results": [[["", 3.0]]]}),
    ),
    ("POST", "/v1/models/half:predict", {"instances": [1.0, 5.0]}, 404, json.loads(NOT_FOUND)),
    (
        *("GET", "/v1/models/half_plus_two/versions/7", None),
        *(404, {"error": "Could not find version 7 of model half_plus_two"}),
    ),
    (
        *("GET", "/v1/models/half_plus_two/labels/other", None),
        *(400, {"error": "Unrecognized servable version label: other"}),
    ),
    (
        *("POST", "/v1/models/half_plus_two:predict", {}),
        *(400, {"error": "Missing 'inputs' or 'instances' key"}),
    ),
    (
        *("POST", "/v1/models/half_plus_two:explain", {}),
        *(400, {"error": "Malformed request: POST /v1/models/half_plus_two:explain"}),
    ),
]
