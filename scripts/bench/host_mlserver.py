"""The adder for MLServer, run by its own Python: the same sums as tests/models/adder."""

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Adder(MLModel):
    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        a, b = (NumpyCodec.decode_input(tensor) for tensor in payload.inputs)
        outputs = [NumpyCodec.encode_output("sum", a + b), NumpyCodec.encode_output("diff", a - b)]
        return InferenceResponse(model_name=self.name, model_version=self.version, id=payload.id, outputs=outputs)
