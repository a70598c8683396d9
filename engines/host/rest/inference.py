"""infer, generate and generate_stream.

Source: Triton server `http_server.cc` (HandleInfer, HandleGenerate, GenerateRequestClass::InferResponseComplete).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from time import monotonic_ns

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, ErrorCode, invalid
from engines.core.messages import InferResponse
from engines.host.client_limits import ClientLimits
from engines.host.exchange import JSON, Exchange, Fields, SendReply, error_json, error_reply
from engines.host.model import HostedModel
from engines.host.request_fields import check_single_response, read_version, single_response, trace_of
from engines.host.response_queue import ResponseQueue
from engines.host.rest.compression import compress, decompressed, preferred
from engines.host.rest.generate import read_generate, write_generate
from engines.host.rest.requests import read_infer, read_raw_infer
from engines.host.rest.responses import write_infer
from engines.host.service import Service
from gateway.protocol.conversion.sse import event_of

_HEAD_LENGTH = b"inference-header-content-length"
_BINARY = (b"content-type", b"application/octet-stream")
_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")
_IN_JSON = (JSON,)
# The part of a text that `atoi` reads.
_NUMBER = re.compile(rb"[ \t]*([+-]?[0-9]+)")

_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)


class Inference:
    """Answers generate and generate_stream; shared by the infers of one server."""

    def __init__(self, service: Service, limits: ClientLimits) -> None:
        self.service = service
        self.limits = limits
        self.forward = limits.forwards("rest")

    async def generate(self, exchange: Exchange, model_name: str, version: str) -> None:
        """Answer with one response. Raises: EngineError, before anything is sent."""
        model, answers = await self._begin(exchange, model_name, version)
        try:
            await answers.complete()
        finally:
            answers.call.cancel()  # where it is not over
        if answers.is_gone:
            return
        written = [_written(model, answers.call.request.id, response) for response in answers.responses]
        status = 400 if written and not written[0][1] else 200
        body = written[0][0] if len(written) == 1 else error_json(_NOT_ONE)
        await exchange.reply(status, body, JSON)

    async def generate_stream(self, exchange: Exchange, model_name: str, version: str) -> None:
        """Answer with an event for each response; the first one decides the status.

        Raises: EngineError, before anything is sent.
        """
        model, answers = await self._begin(exchange, model_name, version)
        try:
            while (response := await answers.next()) is not None:
                event, is_ok = _written(model, answers.call.request.id, response)
                if not exchange.has_begun:
                    await exchange.start(200 if is_ok else 400, (_EVENTS,))
                await exchange.more(event_of(event))
            if not exchange.has_begun:
                await exchange.start(200, (_EVENTS,))
            await exchange.more(b"", is_last=True)
        finally:
            answers.call.cancel()  # where it is not over

    async def _begin(self, exchange: Exchange, model_name: str, version: str) -> tuple[HostedModel, ResponseQueue]:
        service, headers = self.service, exchange.headers
        version = read_version(version)
        model = service.model(model_name, version)
        metadata = service.metadata(model_name, version)
        if headers.get(b"content-encoding", b"identity") not in (b"", b"identity"):
            raise invalid("Unsupported content-encoding, only 'identity' is supported.")
        body = await exchange.body(self.limits.max_body_bytes)
        request = read_generate(body, metadata, model_name, version, trace_of(headers))
        answers = ResponseQueue(exchange, request, self.limits.max_unsent_bytes)
        service.infer(answers.call)
        if answers.responses and (error := answers.responses[0].error) is not None:  # it was never queued
            raise error
        return model, answers


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
    """The number of bytes of JSON at the start of a body; without a header, all. Raises: EngineError(INVALID_ARG)."""
    if header is None:
        return size
    match = _NUMBER.match(header)
    number = int(match[1]) if match is not None else 0
    if not 0 <= number <= size:
        raise invalid(f"inference header size should be in range (0, {size}), got: {header.decode('latin-1')}")
    return number


class Infer:
    """An infer without a task: its last response sends the reply."""

    __slots__ = ("_call", "_forms", "_headers", "_inference", "_model", "_num_responses", "_response", "_send_reply")

    def __init__(
        self,
        inference: Inference,
        model_name: str,
        version: str,
        forwarded: Mapping[str, str],
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
            self._call = self._read(model_name, version, forwarded, body)
        except Exception as error:
            self._fail(error)
            return
        inference.service.infer(self._call)

    def cancel(self) -> None:
        if self._call is not None:
            self._call.cancel()

    def _read(self, model_name: str, version: str, forwarded: Mapping[str, str], body: bytes) -> InferenceCall:
        """Raises: EngineError."""
        inference, headers = self._inference, self._headers
        service, limits = inference.service, inference.limits
        version = read_version(version)
        model = self._model = service.model(model_name, version)
        if model.is_decoupled and not model.stream_input:
            raise EngineError(
                ErrorCode.UNSUPPORTED, "HTTP end point doesn't support models with decoupled transaction policy"
            )
        body = decompressed(body, headers.get(b"content-encoding"), limits.max_body_bytes)
        head_bytes = _head_bytes(headers.get(_HEAD_LENGTH), len(body))
        trace = trace_of(headers)
        if head_bytes:
            request, self._forms = read_infer(body, head_bytes, model.name, version, service.regions, forwarded, trace)
        else:
            request, self._forms = read_raw_infer(body, model, version, forwarded, trace)
        if model.is_decoupled:
            check_single_response(model, request)
        return InferenceCall(request, self._respond, monotonic_ns())

    def _respond(self, response: InferResponse | None, is_final: bool) -> None:
        if response is not None:
            self._num_responses += 1
            self._response = response
        if is_final:
            try:
                self._reply()
            except Exception as error:  # the instance has other calls to answer
                self._fail(error)

    def _reply(self) -> None:
        """Raises: EngineError, before anything is sent."""
        call, model = self._call, self._model
        assert call is not None
        response = single_response(self._response, self._num_responses)
        pieces, head_bytes = write_infer(model, call.request.id, response, self._forms)
        fields: Fields = _IN_JSON if head_bytes is None else (_BINARY, (_HEAD_LENGTH, b"%d" % head_bytes))
        encoding = self._headers.get(b"accept-encoding")
        if encoding is not None and (compression := preferred(encoding)):
            pieces = (compress(b"".join(pieces), compression),)
            fields = (*fields, (b"content-encoding", compression))
        self._send_reply(200, pieces, fields)

    def _fail(self, error: Exception) -> None:
        status, body, fields = error_reply(error, "an infer")
        self._send_reply(status, (body,), fields)
