"""Returns its arguments and the request's properties as JSON."""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


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
