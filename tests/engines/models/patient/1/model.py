"""Waits until its request is cancelled (`ask` is "wait"); the next request returns what the model saw."""

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
LIMIT_SECONDS = 10


class TritonPythonModel:
    def initialize(self, args):
        self.seen = "nothing"

    def execute(self, requests):
        for request in requests:
            ask = pb_utils.get_input_tensor_by_name(request, "ask").as_numpy()[0].decode()
            sender = request.get_response_sender()
            if ask == "wait":
                self.seen = "waiting"
                sender.send(response("waiting"))
                threading.Thread(target=self.wait, args=(sender,)).start()
            else:
                sender.send(response(self.seen), flags=FINAL)

    def wait(self, sender):
        deadline = time.monotonic() + LIMIT_SECONDS
        while not sender.is_cancelled() and time.monotonic() < deadline:
            time.sleep(0.01)
        self.seen = "cancelled" if sender.is_cancelled() else "not cancelled"
        error = pb_utils.TritonError("cancelled on the way", pb_utils.TritonError.CANCELLED)
        sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)


def response(text):
    return pb_utils.InferenceResponse([pb_utils.Tensor("told", np.array([text.encode()], dtype=np.object_))])
