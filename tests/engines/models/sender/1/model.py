"""Responds through a response sender though it is not decoupled, in the way that `parameters.how` selects."""

import json

import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            response = pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])
            sender = request.get_response_sender()
            how = json.loads(request.parameters()).get("how", "once")
            if how == "once":
                sender.send(response, flags=FINAL)
            elif how == "twice":
                sender.send(response)
                sender.send(response, flags=FINAL)
            elif how == "in two steps":
                sender.send(response)
                sender.send(flags=FINAL)
            else:
                sender.send(flags=FINAL)
