"""Keeps a running sum for each sequence: its start sets the sum, its end forgets it.

It asks the request for the sequence's name, a number or a text: a CORRID control would be of one datatype, and Triton
2.51 refuses its own where that is text (triton-inference-server/core#339).
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
