"""Counts behind one text in and one text out, like a user's own model: one reply, and no stop texts."""

import sys
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).parents[5]))
from tests.support.canned_llm.plan import PromptCache, plan_text


class TritonPythonModel:
    def execute(self, requests):
        return [self.respond(request) for request in requests]

    def respond(self, request):
        prompt = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0].decode()
        given = pb_utils.get_input_tensor_by_name(request, "max_tokens")
        max_tokens = None if given is None else int(given.as_numpy()[0])
        text = plan_text(prompt, prompt=prompt, cache=PromptCache(), max_tokens=max_tokens).text
        output = pb_utils.Tensor("text_output", np.array([text.encode()], dtype=np.object_))
        return pb_utils.InferenceResponse([output])
