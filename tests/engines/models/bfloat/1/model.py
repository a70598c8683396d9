"""Returns its input through DLPack, because NumPy has no BF16. `parameters.numpy` selects NumPy nevertheless."""

import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "INPUT0")
        if json.loads(request.parameters()).get("numpy"):
            tensor.as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUTPUT0", tensor.to_dlpack())])
