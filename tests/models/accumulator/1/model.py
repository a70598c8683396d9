"""Keeps a running sum for each sequence: START sets it, END forgets it."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.totals = {}

    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        def read(name):
            return pb_utils.get_input_tensor_by_name(request, name).as_numpy()

        sequence, value = int(read("CORRID").item()), read("value")
        if read("START").item():
            self.totals[sequence] = value
        else:
            self.totals[sequence] = self.totals[sequence] + value
        total = self.totals.pop(sequence) if read("END").item() else self.totals[sequence]
        return pb_utils.InferenceResponse([pb_utils.Tensor("total", total)])
