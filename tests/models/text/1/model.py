"""Returns its text in upper case, followed by the request's parameters if there are any."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0].decode().upper()
        parameters = json.loads(request.parameters())
        if parameters:
            text += " " + json.dumps(parameters, sort_keys=True)
        output = pb_utils.Tensor("text_output", np.array([text.encode()], dtype=np.object_))
        return pb_utils.InferenceResponse([output])
