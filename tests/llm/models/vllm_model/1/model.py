"""Counts behind the tensors of Triton's vLLM backend, and behaves like it: decoupled, the prompt before an unstreamed
text unless it is excluded, and beside the text the outputs that were requested.

Source: triton-inference-server/vllm_backend, src/model.py.
"""

import json
import sys
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

sys.path.insert(0, str(Path(__file__).parents[5]))
from tests.support.canned_llm.plan import PromptCache, RefusedError, plan_text


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                for response in self.responses(request):
                    sender.send(response)
            except RefusedError as refused:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(refused.message)))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def responses(self, request):
        prompt = value(request, "text_input").decode()
        reply = json.loads(value(request, "sampling_parameters", b"{}"))
        stop = reply.get("stop") or []
        plan = plan_text(
            prompt,
            prompt=prompt,
            cache=PromptCache(),
            max_tokens=reply.get("max_tokens", 16),
            stop=[stop] if isinstance(stop, str) else stop,
        )
        if not value(request, "stream", False):
            before = "" if value(request, "exclude_input_in_output", False) else prompt
            yield self.response(request, before + plan.text, plan, plan.finish, len(plan.tokens))
            return
        for place, token in enumerate(plan.tokens):
            ends = place + 1 == len(plan.tokens) and plan.finish == "length"
            yield self.response(request, token, plan, plan.finish if ends else None, 1)
        if plan.finish != "length":
            yield self.response(request, "", plan, plan.finish, 0)

    def response(self, request, text, plan, finish, num_tokens):
        tensors = [texts("text_output", text)]
        if value(request, "return_finish_reason", False):
            tensors.append(texts("finish_reason", str(finish)))
        if value(request, "return_num_input_tokens", False):
            tensors.append(pb_utils.Tensor("num_input_tokens", np.array([plan.prompt_tokens], np.uint32)))
        if value(request, "return_num_output_tokens", False):
            tensors.append(pb_utils.Tensor("num_output_tokens", np.array([num_tokens], np.uint32)))
        return pb_utils.InferenceResponse(tensors)


def value(request, name, otherwise=None):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return otherwise if tensor is None else tensor.as_numpy().reshape(-1)[0]


def texts(name, text):
    return pb_utils.Tensor(name, np.array([text.encode()], dtype=np.object_))
