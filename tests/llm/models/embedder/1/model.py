"""The canned engine's embedding: a direction for each text, which depends on the text alone."""

import sys
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).parents[5]))
from tests.support.canned_llm.openai import embedding


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        found = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
        vectors = np.array([embedding(text.decode(), 8) for text in found], np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("embedding", vectors)])
