"""Fields of REST and gRPC inferences alike: parameters, version, datatype, trace context, the single response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engines.core.errors import EngineError, ErrorCode, internal
from engines.core.messages import InferRequest, InferResponse, Scalar, SharedMemory, TensorData, WantedOutput
from engines.host.model import HostedModel
from engines.repository.lifecycle import version_number
from gateway.protocol.datatypes import DATATYPES

RESERVED_PREFIX = "triton_"


@dataclass(slots=True)
class RequestParameters:
    """A request's parameters: `own` are for the model, the others for the host.

    `wants_binary`: outputs that the request does not name are binary (REST). `wants_empty_final`: a decoupled call ends
    with an empty response (gRPC).
    """

    own: dict[str, Scalar]
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_us: int = 0
    wants_binary: bool = False
    wants_empty_final: bool = False

    def infer_request(
        self,
        model: str,
        version: str,
        id: str,
        inputs: tuple[TensorData, ...],
        outputs: tuple[WantedOutput, ...],
        forwarded: Mapping[str, str],
        trace: Mapping[str, str],
    ) -> InferRequest:
        """The inference with these parameters; `forwarded` are headers that become parameters."""
        return InferRequest(
            model,
            version,
            id,
            {**self.own, **forwarded},  # a new dict: several requests may share `own`
            inputs,
            outputs,
            self.sequence_id,
            self.sequence_start,
            self.sequence_end,
            self.priority,
            self.timeout_us,
            trace,
        )


def check_single_response(model: HostedModel, request: InferRequest) -> None:
    """Check that a decoupled model answers a request once, which is what an infer can return.

    Raises: EngineError(UNSUPPORTED) where the request has the model stream.
    """
    for tensor in request.inputs:
        if tensor.name == model.stream_input and not isinstance(tensor.data, SharedMemory) and any(tensor.data):
            raise EngineError(
                ErrorCode.UNSUPPORTED,
                f"input '{tensor.name}' of model '{model.name}' is true, and infer has one answer: ask generate_stream "
                "or ModelStreamInfer",
            )


def single_response(response: InferResponse | None, num_responses: int) -> InferResponse:
    """The only response of an infer. Raises: EngineError where there is not exactly one, or where it is an error."""
    if response is None or num_responses != 1:
        raise internal(f"expected a single response, got {num_responses}")
    if response.error is not None:
        raise response.error
    return response


def read_version(text: str) -> str:
    """A model version in digits, "" for any (Triton server `common.cc`, GetModelVersionFromString).

    Raises: EngineError(INVALID_ARG).
    """
    if not text or (text.isdecimal() and text.isascii() and text[0] != "0" and len(text) < 19):
        return text
    return str(version_number(text))


_KNOWN_DATATYPES = {datatype: datatype for datatype in DATATYPES}


def datatype_named(text: str) -> str:
    """A datatype, "<invalid>" for an unknown name, as in the core."""
    return _KNOWN_DATATYPES.get(text, "<invalid>")


TRACE_FIELDS = frozenset({b"traceparent", b"tracestate"})


def trace_of(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    """The W3C trace context of header fields; tracestate alone is ignored."""
    parent = fields.get(b"traceparent")
    if parent is None:
        return {}
    trace = {"traceparent": parent.decode("latin-1")}
    state = fields.get(b"tracestate")
    if state is not None:
        trace["tracestate"] = state.decode("latin-1")
    return trace
