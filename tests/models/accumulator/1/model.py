"""Keeps a running sum for each sequence: its start sets the sum, its end removes it.

The sequence's id, a number or a text, is read from the request: a CORRID control has one datatype only, and Triton 2.51
refuses its own text ids (triton-inference-server/core#339).
"""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.totals = {}

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        def read(name):
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy()

        sequence, value = request.correlation_id(), read("value")
        total = value if read("START").item() else self.totals[sequence] + value
        self.totals[sequence] = total
        if read("END").item():
            del self.totals[sequence]
        return pb_utils.InferenceResponse([pb_utils.Tensor("total", total)])
