"""Sleeps for the requested time, then returns it: a slow model, for deadlines and draining."""

import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        seconds = pb_utils.get_input_tensor_by_name(request, "seconds").as_numpy()
        time.sleep(float(seconds[0]))
        return pb_utils.InferenceResponse([pb_utils.Tensor("slept", seconds)])
