"""A client of V2's REST, and a TorchServe that has gRPC alone."""

from __future__ import annotations

import orjson

from gateway.protocol.torchserve.predictions import PREDICTIONS, prediction, predictions_request
from gateway.protocol.torchserve.reply import answered
from gateway.protocol.torchserve.translator import TorchServeInferTranslator
from gateway.protocol.translator import GRPC, EngineRequest, Reply


class CallTranslator(TorchServeInferTranslator):
    """An infer whose request is a call: its path is the method's, its body the message."""

    def request(self) -> EngineRequest:
        """As `Translator.request`."""
        asked = self._read()
        call = predictions_request(asked, self._model, self._version)
        return EngineRequest(PREDICTIONS, call, GRPC, dropped=asked.dropped)

    def whole(self, reply: Reply) -> Reply:
        """As `Translator.whole`."""
        if reply.status != 200:
            return reply  # `{"error": text}`, which is V2's too
        assert self._asked is not None, "whoever asks nothing gets no answer"
        found = prediction(reply.body)
        if found.code:
            return Reply(500, orjson.dumps({"error": found.error}))
        return self._told_in_rest(answered(self._asked, found.content, "", model=self._told, version=self._version))
