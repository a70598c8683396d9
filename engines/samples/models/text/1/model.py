"""Answers its text in upper case; works with infer, generate and generate_stream."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0].decode().upper()
        output = pb_utils.Tensor("text_output", np.array([text.encode()], dtype=np.object_))
        return pb_utils.InferenceResponse([output])
