"""Adds and subtracts two INT32 tensors; a batching model, so the first axis is the batch."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        a = pb_utils.get_input_tensor_by_name(request, "a").as_numpy()
        b = pb_utils.get_input_tensor_by_name(request, "b").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("sum", a + b), pb_utils.Tensor("diff", a - b)])
