"""Reschedules each request until it has run `value` times; returns the flags of each run."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.flags = {}

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if not given["READY"].item():
            return pb_utils.InferenceResponse([])
        flags = self.flags.setdefault(request.correlation_id(), [])
        flags.append(request.flags())
        if len(flags) < given["value"].item():
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return None
        del self.flags[request.correlation_id()]
        return pb_utils.InferenceResponse([pb_utils.Tensor("flags", np.array([flags], np.int32))])
