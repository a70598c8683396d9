"""A decoupled model that fails after its first response, in `execute` or in its thread."""

import ctypes
import os
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            how = pb_utils.get_input_tensor_by_name(request, "how").as_numpy()[0].decode()
            sender = request.get_response_sender()
            tensor = pb_utils.Tensor("index", np.array([0], dtype=np.int32))
            sender.send(pb_utils.InferenceResponse([tensor]))
            if how == "raise":
                raise ValueError("raised after a response")
            if how == "exit":
                os._exit(7)
            if how == "thread segfault":
                threading.Thread(target=ctypes.string_at, args=(0,)).start()
            elif how == "thread wrong":
                threading.Thread(target=send_wrong, args=(sender,)).start()
            else:
                sender.send(flags=FINAL)


def send_wrong(sender):
    """Send an invalid response, and then end the request correctly."""
    try:
        sender.send("no response")
    except Exception as refused:
        error = pb_utils.TritonError(f"refused: {type(refused).__name__}")
        sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)
