"""Returns a request's position since the last one with value 0; slow, so that others queue."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.order = 0

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        value = pb_utils.get_input_tensor_by_name(request, "value").as_numpy()
        self.order = 0 if value.item() == 0 else self.order + 1
        time.sleep(0.4 if value.item() == 0 else 0.05)
        order = np.array([[self.order]], dtype=np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("order", order)])
