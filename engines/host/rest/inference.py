"""infer, generate and generate_stream.

Source: Triton server `http_server.cc` (HandleInfer, HandleGenerate, GenerateRequestClass::InferResponseComplete).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from time import monotonic_ns

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, ErrorCode, invalid
from engines.core.messages import InferRequest, InferResponse, Raw
from engines.host.asgi_exchange import JSON, Exchange, Fields, error_json, error_reply
from engines.host.client_limits import ClientLimits, HeaderForward
from engines.host.model import HostedModel
from engines.host.request_fields import check_single_response, read_version, single_response, trace_of
from engines.host.response_queue import ResponseQueue
from engines.host.rest.compression import compress, decompress, is_compressed, preferred
from engines.host.rest.generate import read_generate, write_generate
from engines.host.rest.request_head import SendReply
from engines.host.rest.requests import Forms, read_infer, read_raw_infer
from engines.host.rest.responses import RestResponseWriter
from engines.host.service import Service
from gateway.protocol.conversion.sse import event_of

_HEAD_LENGTH = b"inference-header-content-length"
_BINARY = (b"content-type", b"application/octet-stream")
_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")
_IN_JSON = (JSON,)
_NONE: Mapping[str, str] = {}
# The single response of an infer is stored whatever its size.
_NO_LIMIT = 2**63
# The part of a text that `atoi` reads.
_NUMBER = re.compile(rb"[ \t]*([+-]?[0-9]+)")

_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)


class Inference:
    """Answers the operations that run a model."""

    def __init__(self, service: Service, limits: ClientLimits) -> None:
        self.service = service
        self._limits = limits
        self._forward: HeaderForward = limits.forwards("rest")
        self._writers: dict[tuple[str, str], RestResponseWriter] = {}

    def infer_directly(
        self, model_name: str, version: str, headers: Mapping[bytes, bytes], body: bytes, send_reply: SendReply
    ) -> DirectInfer:
        """Answer an infer whose body is complete, by `send_reply`, now or later. Never raises."""
        return DirectInfer(self, model_name, version, headers, body, send_reply)

    async def infer(self, exchange: Exchange, model_name: str, version: str) -> None:
        """Raises: EngineError, before anything is sent."""
        model = self.model(model_name, version)
        body = await exchange.body(self._limits.max_body_bytes)
        request, forms = self.read(model, version, exchange.headers, body)
        answers = ResponseQueue(asyncio.get_running_loop(), _NO_LIMIT)
        call = InferenceCall(request, answers.take, monotonic_ns())
        self.service.infer(call)
        await answers.complete(call, exchange.receive, self._limits.disconnect_seconds)
        if answers.is_gone:
            return
        response = answers.responses[0] if answers.responses else None
        pieces, fields = self.write(model, exchange.headers, request.id, response, answers.num_responses, forms)
        await exchange.reply(200, b"".join(pieces), *fields)

    def model(self, model_name: str, version: str) -> HostedModel:
        """The model of an infer. Raises: EngineError."""
        model = self.service.model(model_name, read_version(version))
        if model.is_decoupled and not model.stream_input:
            raise EngineError(
                ErrorCode.UNSUPPORTED, "HTTP end point doesn't support models with decoupled transaction policy"
            )
        return model

    def read(
        self, model: HostedModel, version: str, headers: Mapping[bytes, bytes], body: bytes
    ) -> tuple[InferRequest, Forms]:
        """The inference of a body, and the forms of its outputs. Raises: EngineError."""
        version = read_version(version)
        if is_compressed(headers.get(b"content-encoding")):
            body = decompress(body, self._limits.max_body_bytes)
        head_bytes = _head_bytes(headers.get(_HEAD_LENGTH), len(body))
        trace = trace_of(headers)
        forwarded = self._forward.parameters(tuple(headers.items())) if self._forward else _NONE
        if head_bytes:
            request, forms = read_infer(body, head_bytes, model.name, version, self.service.regions, forwarded, trace)
        else:
            request, forms = read_raw_infer(body, model, version, forwarded, trace)
        if model.is_decoupled:
            check_single_response(model, request)
        return request, forms

    def write(
        self,
        model: HostedModel,
        headers: Mapping[bytes, bytes],
        id: str,
        response: InferResponse | None,
        num_responses: int,
        forms: Forms,
    ) -> tuple[Sequence[Raw], Fields]:
        """The pieces of an infer's reply, and its header fields. Raises: EngineError."""
        response = single_response(response, num_responses)
        pieces, head_bytes = self._writer(model).write(id, response, forms)
        encoding = headers.get(b"accept-encoding")
        if encoding is None and head_bytes is None:
            return pieces, _IN_JSON
        fields = [JSON]
        if head_bytes is not None:
            fields = [_BINARY, (_HEAD_LENGTH, b"%d" % head_bytes)]
        compression = preferred(encoding) if encoding is not None else b""
        if compression:
            pieces = (compress(b"".join(pieces), compression),)
            fields.append((b"content-encoding", compression))
        return pieces, fields

    async def generate(self, exchange: Exchange, model_name: str, version: str) -> None:
        """Answer with one response. Raises: as `infer`."""
        model, call, answers = await self._begin(exchange, model_name, version)
        await answers.complete(call, exchange.receive, self._limits.disconnect_seconds)
        if answers.is_gone:
            return
        written = [_written(model, call.request.id, response) for response in answers.responses]
        status = 400 if written and not written[0][1] else 200
        body = written[0][0] if len(written) == 1 else error_json(_NOT_ONE)
        await exchange.reply(status, body, JSON)

    async def generate_stream(self, exchange: Exchange, model_name: str, version: str) -> None:
        """Answer with an event for each response; the first one decides the status. Raises: as `infer`."""
        model, call, answers = await self._begin(exchange, model_name, version)
        watch = asyncio.get_running_loop().create_task(answers.watch(call, exchange.receive))
        has_begun = False
        try:
            while (response := await answers.next()) is not None:
                event, is_ok = _written(model, call.request.id, response)
                if not has_begun:
                    has_begun = True
                    await exchange.start(200 if is_ok else 400, (_EVENTS,))
                await exchange.more(event_of(event))
            if not answers.is_gone:
                if not has_begun:
                    await exchange.start(200, (_EVENTS,))
                await exchange.more(b"", is_last=True)
        finally:
            watch.cancel()
            call.cancel()  # where it is not over

    async def _begin(
        self, exchange: Exchange, model_name: str, version: str
    ) -> tuple[HostedModel, InferenceCall, ResponseQueue]:
        """Start the call of a generate."""
        service, headers = self.service, exchange.headers
        version = read_version(version)
        model = service.model(model_name, version)
        metadata = service.metadata(model_name, version)
        if headers.get(b"content-encoding", b"identity") not in (b"", b"identity"):
            raise invalid("Unsupported content-encoding, only 'identity' is supported.")
        body = await exchange.body(self._limits.max_body_bytes)
        request = read_generate(body, metadata, model_name, version, trace_of(headers))
        answers = ResponseQueue(asyncio.get_running_loop(), self._limits.max_unsent_bytes)
        call = InferenceCall(request, answers.take, monotonic_ns())
        answers.overrun = call.cancel
        service.infer(call)
        answers.is_starting = False
        if answers.failed_at_once:
            error = answers.responses[0].error
            assert error is not None
            raise error
        return model, call, answers

    def _writer(self, model: HostedModel) -> RestResponseWriter:
        key = (model.name, model.version)
        match = self._writers.get(key)
        if match is None or match.model is not model:  # the model was loaded again
            match = self._writers[key] = RestResponseWriter(model)
        return match


def _written(model: HostedModel, id: str, response: InferResponse) -> tuple[bytes, bool]:
    """A generate's response as JSON, and whether it is a success."""
    error = response.error
    if error is None:
        try:
            return write_generate(model, id, response), True
        except EngineError as failure:
            error = failure
    return error_json(error.message), False


def _head_bytes(header: bytes | None, size: int) -> int:
    """The number of bytes of JSON at the start of a body; without a header, all.

    Raises: EngineError(INVALID_ARG).
    """
    if header is None:
        return size
    match = _NUMBER.match(header)
    number = int(match[1]) if match is not None else 0
    if not 0 <= number <= size:
        raise invalid(f"inference header size should be in range (0, {size}), got: {header.decode('latin-1')}")
    return number


class DirectInfer:
    """An infer without a task: its last response sends the reply."""

    __slots__ = ("_call", "_forms", "_headers", "_inference", "_model", "_num_responses", "_response", "_send_reply")

    def __init__(
        self,
        inference: Inference,
        model_name: str,
        version: str,
        headers: Mapping[bytes, bytes],
        body: bytes,
        send_reply: SendReply,
    ) -> None:
        self._inference = inference
        self._headers = headers
        self._send_reply = send_reply
        self._call: InferenceCall | None = None
        self._response: InferResponse | None = None
        self._num_responses = 0
        try:
            model = self._model = inference.model(model_name, version)
            request, self._forms = inference.read(model, version, headers, body)
        except Exception as error:
            self._fail(error)
            return
        call = self._call = InferenceCall(request, self._respond, monotonic_ns())
        inference.service.infer(call)

    def __repr__(self) -> str:
        return f"<DirectInfer {self._call!r}>"

    def cancel(self) -> None:
        """Its client has gone."""
        if self._call is not None:
            self._call.cancel()

    def _respond(self, response: InferResponse | None, is_final: bool) -> None:
        if response is not None:
            self._num_responses += 1
            self._response = response
        if not is_final:
            return
        call = self._call
        assert call is not None
        try:
            pieces, fields = self._inference.write(
                self._model, self._headers, call.request.id, self._response, self._num_responses, self._forms
            )
        except Exception as error:  # the instance has other calls to answer
            self._fail(error)
            return
        self._send_reply(200, pieces, fields)

    def _fail(self, error: Exception) -> None:
        status, body, fields = error_reply(error, self)
        self._send_reply(status, (body,), fields)
