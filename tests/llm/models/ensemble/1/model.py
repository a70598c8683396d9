"""Counts behind the tensors of a TensorRT-LLM ensemble, and behaves like one: decoupled, in batches of one, the prompt
before an unstreamed text, and no finish reason.

Source: triton-inference-server/tensorrtllm_backend, all_models/inflight_batcher_llm/ensemble.
"""

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
                for text in self.texts(request):
                    sender.send(response(text))
            except RefusedError as refused:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(refused.message)))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def texts(self, request):
        prompt = values(request, "text_input")[0].decode()
        stop = [word.decode() for word in values(request, "stop_words") if word]
        max_tokens = int(values(request, "max_tokens")[0])
        plan = plan_text(prompt, prompt=prompt, cache=PromptCache(), max_tokens=max_tokens, stop=stop)
        streams = values(request, "stream")
        if len(streams) and streams[0]:
            yield from plan.tokens
        else:
            yield prompt + plan.text


def values(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return [] if tensor is None else tensor.as_numpy().reshape(-1)


def response(text):
    tensors = [
        pb_utils.Tensor("text_output", np.array([[text.encode()]], dtype=np.object_)),
        pb_utils.Tensor("cum_log_probs", np.array([[0.0]], np.float32)),
    ]
    return pb_utils.InferenceResponse(tensors)
