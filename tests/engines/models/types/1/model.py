"""Returns the inputs that are present, one of each datatype, all of them optional."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        # Triton lists inputs in no fixed order.
        given = sorted(request.inputs(), key=lambda tensor: tensor.name())
        tensors = [pb_utils.Tensor(tensor.name(), tensor.as_numpy()) for tensor in given]
        return pb_utils.InferenceResponse(tensors)
