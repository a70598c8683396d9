"""Pixels as cameras and files have them, rows of RGB bytes, to planes of numbers from 0 to 1 as networks want them."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        pixels = pb_utils.get_input_tensor_by_name(request, "pixels").as_numpy()
        image = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), np.float32) / np.float32(255)
        return pb_utils.InferenceResponse([pb_utils.Tensor("image", image)])
