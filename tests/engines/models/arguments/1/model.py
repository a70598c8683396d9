"""Returns its arguments and the request's properties as JSON."""

import json
import sys
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


def tensor(name="x"):
    return pb_utils.Tensor(name, np.zeros(1, np.float32))


def call(**arguments):
    return pb_utils.InferenceRequest(**{"model_name": "m", "requested_output_names": [], "inputs": [], **arguments})


# Arguments that the API refuses, or takes.
CALLS = {
    "tensor without a name": lambda: tensor(""),
    "tensor named None": lambda: tensor(None),
    "tensor of a list": lambda: pb_utils.Tensor("x", [1.0]),
    "tensor of None": lambda: pb_utils.Tensor("", None),
    "no DLPack": lambda: pb_utils.Tensor.from_dlpack("x", None),
    "DLPack without a name": lambda: pb_utils.Tensor.from_dlpack("", None),
    "response of None": lambda: pb_utils.InferenceResponse(output_tensors=None),
    "response of a None": lambda: pb_utils.InferenceResponse(output_tensors=[None]),
    "empty response": lambda: pb_utils.InferenceResponse(output_tensors=[]),
    "call": call,
    "call without inputs": lambda: pb_utils.InferenceRequest(model_name="m", requested_output_names=[]),
    "call without outputs": lambda: pb_utils.InferenceRequest(model_name="m", inputs=[]),
    "call without a model": lambda: pb_utils.InferenceRequest(inputs=[], requested_output_names=[]),
    "call with inputs": lambda: call(inputs=[tensor()]),
    "call with a None input": lambda: call(inputs=[None]),
    "call with a None output": lambda: call(requested_output_names=[None]),
    "call with an empty output": lambda: call(requested_output_names=[""]),
    "call with a text id": lambda: call(correlation_id="seven"),
    "call with a fractional id": lambda: call(correlation_id=0.5),
    **{
        f"call with {name} None": lambda name=name: call(**{name: None})
        for name in (
            *("inputs", "requested_output_names", "model_name", "request_id", "correlation_id", "model_version"),
            *("flags", "timeout"),
        )
    },
    "line of None": lambda: pb_utils.Logger.log_info(None),
    "line of a number": lambda: pb_utils.Logger.log(1),
    "line of no level": lambda: pb_utils.Logger.log("x", None),
    "line of a numeric level": lambda: pb_utils.Logger.log("x", 1),
}


def outcome(act):
    try:
        act()
    except Exception as error:
        return type(error).__name__
    return "accepted"


class TritonPythonModel:
    def initialize(self, args):
        self.args = {**args, "model_config": json.loads(args["model_config"])}
        self.args["model_repository"] = Path(args["model_repository"]).name

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        reply = {
            "args": self.args,
            "output_config": pb_utils.get_output_config_by_name(self.args["model_config"], "text_output"),
            "argv": sys.argv,
            "calls": {name: outcome(act) for name, act in CALLS.items()},
            "dtype": str(pb_utils.triton_string_to_numpy("TYPE_FP16")),
            "request_id": request.request_id(),
            "correlation_id": request.correlation_id(),
            "flags": request.flags(),
            "timeout": request.timeout(),
            "parameters": json.loads(request.parameters()),
            "wanted": [type(request.requested_output_names()).__name__, *sorted(request.requested_output_names())],
        }
        text = json.dumps(reply, sort_keys=True).encode()
        tensor = pb_utils.Tensor("text_output", np.array([text], dtype=np.object_))
        return pb_utils.InferenceResponse([tensor])
