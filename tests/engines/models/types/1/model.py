"""Answers those of its inputs that it gets, one of each datatype, all of them optional."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        # Triton tells inputs in no order.
        given = sorted(request.inputs(), key=lambda tensor: tensor.name())
        tensors = [pb_utils.Tensor(tensor.name(), tensor.as_numpy()) for tensor in given]
        return pb_utils.InferenceResponse(tensors)
