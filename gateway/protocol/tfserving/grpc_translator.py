"""A client of V2's REST, and a TF Serving that has gRPC alone."""

from __future__ import annotations

from gateway.protocol.tfserving.inference import InferTranslation
from gateway.protocol.translator import GRPC, EngineRequest, Reply


class CallTranslation(InferTranslation):
    """A `translating.Translator` whose request is a call: its path is the method's, its body the message."""

    def request(self) -> EngineRequest:
        """Raises: as `Inference.call`."""
        call = self.inference.call()
        return EngineRequest(call.path.decode("ascii"), call.message, GRPC, dropped=self.inference.asked.dropped)

    def whole(self, reply: Reply) -> Reply:
        """Raises: as `Inference.response_of_call`."""
        if reply.status != 200:
            return reply  # `{"error": text}`, which is V2's too
        return self.rest_of(self.inference.response_of_call(reply.body))
