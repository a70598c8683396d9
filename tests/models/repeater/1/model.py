"""A decoupled model: returns its text `count` times (default 1), and fails after `fail_after` responses if it is
set."""

import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            self.answer(request)

    def answer(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0]
        count, fail_after = read(request, "count", 1), read(request, "fail_after", None)
        interval_seconds = read(request, "interval_seconds", 0.0)
        sender = request.get_response_sender()
        for index in range(count):
            if index:
                time.sleep(interval_seconds)
            if index == fail_after:
                error = pb_utils.TritonError(f"asked to fail after {fail_after} answers")
                sender.send(pb_utils.InferenceResponse(error=error))
                break
            output = pb_utils.Tensor("text_output", np.array([text], dtype=np.object_))
            sender.send(pb_utils.InferenceResponse([output]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def read(request, name, default):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return default if tensor is None else tensor.as_numpy().item()
