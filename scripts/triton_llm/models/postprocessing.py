"""Tokens to text: a python model of Triton, written by Pointsman's scripts/export_trtllm.py."""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokens import TokenCodec

FOLDER = Path(__file__).resolve().parent


class TritonPythonModel:
    def initialize(self, args):
        folder = json.loads(args["model_config"])["parameters"]["tokenizer_dir"]["string_value"]
        self.codec = TokenCodec(FOLDER / folder)

    def execute(self, requests):
        return [pb_utils.InferenceResponse([self._texts(request)]) for request in requests]

    def _texts(self, request):
        tokens = pb_utils.get_input_tensor_by_name(request, "TOKENS_BATCH").as_numpy()  # [rows, beams, length]
        lengths = pb_utils.get_input_tensor_by_name(request, "SEQUENCE_LENGTH").as_numpy()  # [rows, beams]
        texts = [
            [self.codec.decode(beam[:length]).encode("utf-8") for beam, length in zip(beams, row_lengths, strict=True)]
            for beams, row_lengths in zip(tokens, lengths, strict=True)
        ]
        return pb_utils.Tensor("OUTPUT", np.array(texts, dtype=np.object_))
