"""Returns which instance ran, and its start and end in nanoseconds of the machine's monotonic clock."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.name = args["model_instance_name"]

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        begun_at = time.monotonic_ns()
        time.sleep(pb_utils.get_input_tensor_by_name(request, "seconds").as_numpy().item())
        times = np.array([begun_at, time.monotonic_ns()], dtype=np.int64)
        name = np.array([self.name.encode()], dtype=np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("instance", name), pb_utils.Tensor("times", times)])
