"""The model `patient` without decoupling: `execute` itself polls whether the request is cancelled."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils

LIMIT_SECONDS = 10


class TritonPythonModel:
    def initialize(self, args):
        self.seen = "nothing"

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        ask = pb_utils.get_input_tensor_by_name(request, "ask").as_numpy()[0].decode()
        if ask != "wait":
            text = np.array([self.seen.encode()], dtype=np.object_)
            return pb_utils.InferenceResponse([pb_utils.Tensor("told", text)])
        deadline = time.monotonic() + LIMIT_SECONDS
        while not request.is_cancelled() and time.monotonic() < deadline:
            time.sleep(0.01)
        self.seen = "cancelled" if request.is_cancelled() else "not cancelled"
        error = pb_utils.TritonError("cancelled on the way", pb_utils.TritonError.CANCELLED)
        return pb_utils.InferenceResponse(error=error)
