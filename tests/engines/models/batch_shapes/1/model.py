"""Returns the number of requests and rows in each request's batch, after a delay that lets others queue."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils

SECONDS = 0.0


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(SECONDS)
        arrays = [pb_utils.get_input_tensor_by_name(request, "value").as_numpy() for request in requests]
        rows = sum(len(array) for array in arrays)
        return [self.respond(array, len(requests), rows) for array in arrays]

    def respond(self, array, num_requests, num_rows):
        batch = np.full((len(array), 2), [num_requests, num_rows], dtype=np.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("batch", batch)])
