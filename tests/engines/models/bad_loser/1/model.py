"""Fails when it is unloaded: `parameters.how` of its configuration is raise, exit or hang."""

import json
import os
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.how = json.loads(args["model_config"])["parameters"]["how"]["string_value"]

    def execute(self, requests):
        arrays = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", array)]) for array in arrays]

    def finalize(self):
        if self.how == "raise":
            raise ValueError("raised in finalize")
        if self.how == "exit":
            os._exit(7)
        if self.how == "hang":
            time.sleep(3600)
