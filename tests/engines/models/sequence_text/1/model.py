"""Returns, for each step, its controls, the sequence's running sum, and the instance.

A direct batch has a slot for each sequence, READY or not; an oldest batch has only the READY ones.
"""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.totals = {}

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        sequence, value = request.correlation_id(), given.pop("value")
        controls = {name: [str(array.dtype), list(array.shape), array.tolist()] for name, array in given.items()}
        self.totals[sequence] = self.totals.get(sequence, 0) * (1 - request_starts(request)) + int(value.item())
        reply = {"controls": controls, "total": self.totals[sequence], "sequence": sequence, "flags": request.flags()}
        text = np.array([[json.dumps(reply, sort_keys=True, default=bytes.decode).encode()]], dtype=np.object_)
        return pb_utils.InferenceResponse([pb_utils.Tensor("told", text)])


def request_starts(request):
    return int(bool(request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START))
