"""Prompt to text, streamed: a python model of Triton that calls preprocessing and the engine, written by Pointsman's
scripts/export_trtllm.py. Each instance serves one request at a time."""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokens import TextStream, TokenCodec

FOLDER = Path(__file__).resolve().parent


# This model's input -> preprocessing's; preprocessing's output -> the engine's input.
TO_PREPROCESSING = {
    "text_input": "QUERY",
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "bad_words": "BAD_WORDS_DICT",
    "stop_words": "STOP_WORDS_DICT",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
}
TO_ENGINE = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "BAD_WORDS_IDS": "bad_words_list",
    "STOP_WORDS_IDS": "stop_words_list",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
}


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self.codec = TokenCodec(FOLDER / parameters["tokenizer_dir"])
        self.preprocessing = parameters["preprocessing"]
        self.engine = parameters["engine"]
        self.options = dict(pair.split("=") for pair in parameters["options"].split(", "))
        self.outputs = [output["name"] for output in config["output"] if output["name"] != "text_output"]

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._generate(request, sender)
            except pb_utils.TritonModelException as error:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _generate(self, request, sender):
        given = {tensor.name(): tensor for tensor in request.inputs()}
        if given["text_input"].as_numpy().shape[0] != 1:
            raise pb_utils.TritonModelException("this model takes one prompt per request; the ensemble takes several")
        prepared = _checked(
            pb_utils.InferenceRequest(
                model_name=self.preprocessing,
                inputs=[_renamed(given[name], to) for name, to in TO_PREPROCESSING.items() if name in given],
                requested_output_names=list(TO_ENGINE),
            ).exec()
        )
        inputs = [_renamed(tensor, TO_ENGINE[tensor.name()]) for tensor in prepared.output_tensors()]
        inputs += [_renamed(given[name], to) for name, to in self.options.items() if name in given]
        engine = pb_utils.InferenceRequest(
            model_name=self.engine,
            inputs=inputs,
            requested_output_names=["output_ids", "sequence_length", *self.outputs],
        )
        streams = {}  # by beam
        replies = engine.exec(decoupled=True)
        for reply in replies:
            if request.is_cancelled():
                if hasattr(replies, "cancel"):
                    replies.cancel()
                return
            tensors = {tensor.name(): tensor for tensor in _checked(reply).output_tensors()}
            if "output_ids" in tensors:
                sender.send(pb_utils.InferenceResponse(self._told(tensors, streams)))
        rests = [stream.add([], is_last=True) for _, stream in sorted(streams.items())]
        if any(rests):
            sender.send(pb_utils.InferenceResponse([_texts(rests)]))

    def _told(self, tensors, streams):
        tokens = tensors.pop("output_ids").as_numpy()[0]  # [beams, length]
        lengths = tensors.pop("sequence_length").as_numpy()[0]
        # Several sequences of one request come in replies of their own, which say which they are.
        first = int(tensors["sequence_index"].as_numpy().flat[0]) if "sequence_index" in tensors else 0
        texts = []
        for beam, (ids, length) in enumerate(zip(tokens, lengths, strict=True)):
            stream = streams.setdefault(first + beam, TextStream(self.codec))
            texts.append(stream.add(int(token) for token in ids[:length]))
        return [_texts(texts), *tensors.values()]


def _checked(reply):
    if reply.has_error():
        raise pb_utils.TritonModelException(reply.error().message())
    return reply


def _renamed(tensor, name):
    return pb_utils.Tensor(name, tensor.as_numpy())


def _texts(texts):
    return pb_utils.Tensor("text_output", np.array([[text.encode("utf-8") for text in texts]], dtype=np.object_))
