"""Returns its input, with parameters in the response."""

import triton_python_backend_utils as pb_utils

PARAMETERS = {"text": "ü", "number": 7, "flag": True}


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)], parameters=PARAMETERS)
