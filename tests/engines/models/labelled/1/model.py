"""Returns its counts, with two axes and without batching, and some words, which cannot be classified."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        counts = pb_utils.get_input_tensor_by_name(request, "counts").as_numpy()
        words = np.array([b"word"], dtype=np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("echo", counts), pb_utils.Tensor("words", words)])
