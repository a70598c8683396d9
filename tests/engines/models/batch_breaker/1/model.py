"""A batching model whose response has another shape than its configuration, selected by `parameters.how`."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        how = json.loads(request.parameters()).get("how", "right")
        changed = {
            "right": array,
            "more rows": np.concatenate([array, array]),
            "fewer columns": array[:, :1],
            "no batch axis": array[0],
            "no columns": array[:, :0],
            "another datatype": array.astype(np.float64),
        }[how]
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", changed)])
