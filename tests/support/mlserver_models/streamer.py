"""Models for an MLServer, run by its own Python."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec, StringCodec
from mlserver.errors import InferenceError
from mlserver.types import InferenceRequest, InferenceResponse


class Streamer(MLModel):
    """Returns a text in capitals, or word by word; `fail` fails, the first time with an error type of MLServer."""

    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        text = StringCodec.decode_input(payload.inputs[0])[0]
        if text == "fail":
            raise InferenceError("the model failed")
        return self._answer(payload, text.upper())

    async def predict_stream(self, payloads):
        async for payload in payloads:
            for word in StringCodec.decode_input(payload.inputs[0])[0].split(" "):
                if word == "fail":
                    raise InferenceError("the model failed")
                yield self._answer(payload, word)

    def _answer(self, payload, text):
        outputs = [StringCodec.encode_output("answer", [text])]
        return InferenceResponse(model_name=self.name, model_version=self.version, id=payload.id, outputs=outputs)


class Doubler(MLModel):
    """Returns twice its input."""

    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        outputs = [NumpyCodec.encode_output("twice", NumpyCodec.decode_input(payload.inputs[0]) * 2)]
        return InferenceResponse(model_name=self.name, model_version=self.version, id=payload.id, outputs=outputs)
