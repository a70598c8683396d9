"""A decoupled model that responds from its own thread, after `execute` has returned.

`parameters.how` selects the end: a flag alone, the last response, an error, or no response at all.
"""

import json
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        self.threads = []

    def execute(self, requests):
        for request in requests:
            count = pb_utils.get_input_tensor_by_name(request, "count").as_numpy().item()
            how = json.loads(request.parameters()).get("how", "flag")
            thread = threading.Thread(target=WAYS[how], args=(request.get_response_sender(), count))
            self.threads.append(thread)
            thread.start()

    def finalize(self):
        for thread in self.threads:
            thread.join()


def flag(sender, count):
    for index in range(count):
        sender.send(response(index))
    sender.send(flags=FINAL)


def last(sender, count):
    for index in range(count):
        sender.send(response(index), flags=FINAL if index == count - 1 else 0)


def error(sender, count):
    for index in range(count):
        sender.send(response(index))
    error = pb_utils.TritonError("no more", pb_utils.TritonError.UNAVAILABLE)
    sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)


def parameters(sender, count):
    for index in range(count):
        sender.send(response(index, parameters={"index": index}))
    sender.send(flags=FINAL)


def too_late(sender, count):
    """Sends once more after the final response, and stores the exception for `tell_too_late`."""
    sender.send(response(0), flags=FINAL)
    try:
        sender.send(response(1))
    except Exception as refused:
        TOO_LATE.append(str(refused))


def tell_too_late(sender, count):
    error = pb_utils.TritonError(TOO_LATE[-1] if TOO_LATE else "nothing was refused")
    sender.send(pb_utils.InferenceResponse(error=error), flags=FINAL)


def response(index, **options):
    return pb_utils.InferenceResponse([pb_utils.Tensor("index", np.array([index], dtype=np.int32))], **options)


TOO_LATE = []
WAYS = {way.__name__: way for way in (flag, last, error, parameters, too_late, tell_too_late)}
