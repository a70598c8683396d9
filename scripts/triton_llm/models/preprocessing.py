"""Prompts to tokens: a python model of Triton, written by Pointsman's scripts/export_trtllm.py."""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokens import TokenCodec, word_list

FOLDER = Path(__file__).resolve().parent


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        folder = parameters["tokenizer_dir"]["string_value"]
        self.codec = TokenCodec(FOLDER / folder)
        self.end_ids = [int(each) for each in parameters["end_ids"]["string_value"].split(",")]
        self.pad_id = int(parameters["pad_id"]["string_value"])

    def execute(self, requests):
        replies = []
        for request in requests:
            try:
                replies.append(pb_utils.InferenceResponse(self._tensors(request)))
            except UnicodeDecodeError as error:
                replies.append(
                    pb_utils.InferenceResponse([], pb_utils.TritonError(f"text_input is not UTF-8: {error}"))
                )
        return replies

    def _tensors(self, request):
        prompts = [self.codec.encode_prompt(_text(row[0])) for row in _values(request, "QUERY")]
        rows = len(prompts)
        end_ids = _values(request, "END_ID")
        pad_ids = _values(request, "PAD_ID")
        # An engine takes one token as the end. The others that end a text are stop words.
        ends = np.full((rows, 1), self.end_ids[0]) if end_ids is None else end_ids
        pads = np.full((rows, 1), self.pad_id) if pad_ids is None else pad_ids
        further = [[token] for token in self.end_ids[1:]] if end_ids is None else []
        return [
            _int32("INPUT_ID", _filled(prompts, self.pad_id)),
            _int32("REQUEST_INPUT_LEN", [[len(prompt)] for prompt in prompts]),
            _int32("REQUEST_OUTPUT_LEN", _values(request, "REQUEST_OUTPUT_LEN")),
            _int32("BAD_WORDS_IDS", self._words(request, "BAD_WORDS_DICT", rows, [])),
            _int32("STOP_WORDS_IDS", self._words(request, "STOP_WORDS_DICT", rows, further)),
            _int32("OUT_END_ID", ends),
            _int32("OUT_PAD_ID", pads),
        ]

    def _words(self, request, name, rows, further):
        """[rows, 2, length]"""
        given = _values(request, name)
        texts = [[]] * rows if given is None else [[_text(word) for word in row] for row in given]
        lists = [word_list([self.codec.encode_word(text) for text in row if text] + further) for row in texts]
        length = max(len(ids) for ids, _ in lists)
        return [[ids + [0] * (length - len(ids)), ends + [-1] * (length - len(ends))] for ids, ends in lists]


def _values(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy()


def _text(value):
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _filled(rows, pad):
    length = max(map(len, rows))
    return [row + [pad] * (length - len(row)) for row in rows]


def _int32(name, values):
    return pb_utils.Tensor(name, np.array(values, dtype=np.int32))
