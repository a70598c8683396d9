"""Answers its input, how many values that has, and a label."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        outputs = [
            pb_utils.Tensor("y", x),
            pb_utils.Tensor("count", np.array([x.size], np.int64)),
            pb_utils.Tensor("label", np.array([b"one two three"], np.object_)),
        ]
        return pb_utils.InferenceResponse(outputs)
