"""Fails on every request, with the request's own text as the message."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        text = pb_utils.get_input_tensor_by_name(requests[0], "text_input").as_numpy()[0].decode()
        raise pb_utils.TritonModelException(f"asked to fail: {text}")
