"""Scales its input by an optional factor, and returns the names of its inputs and of the requested outputs."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        needed = pb_utils.get_input_tensor_by_name(request, "needed").as_numpy()
        scale = pb_utils.get_input_tensor_by_name(request, "scale")
        scaled = needed if scale is None else needed * scale.as_numpy()
        inputs = ",".join(sorted(tensor.name() for tensor in request.inputs()))
        wanted = ",".join(sorted(request.requested_output_names()))
        seen = np.full((len(needed), 1), f"{inputs} -> {wanted}".encode(), dtype=np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("scaled", scaled), pb_utils.Tensor("seen", seen)])
