"""infer, generate and generate_stream.

Source: Triton server `http_server.cc` (HandleInfer, HandleGenerate, GenerateRequestClass::InferResponseComplete).
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from time import monotonic_ns

from engines.calls import Call
from engines.errors import EngineError, ErrorCode, internal, invalid
from engines.host.fronts import FrontService, HeaderForward, Limits, ServedModel, read_version, trace_of
from engines.host.rest.answers import Answers
from engines.host.rest.compression import compress, decompress, is_compressed, preferred
from engines.host.rest.exchange import JSON, Exchange, error_json
from engines.host.rest.generate import read_generate, write_generate
from engines.host.rest.raw_request import read_raw_infer
from engines.host.rest.requests import read_infer
from engines.host.rest.responses import Body, ResponseWriter
from engines.messages import InferRequest, InferResponse
from gateway.protocol.conversion.sse import event_of

_HEAD_LENGTH = b"inference-header-content-length"
_BINARY = (b"content-type", b"application/octet-stream")
_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")
_ACCEPTED = (b"accept-encoding", b"gzip, deflate")
# The only answer of an infer has to be held whatever its size.
_NO_LIMIT = 2**63
# What `atoi` reads.
_NUMBER = re.compile(rb"[ \t]*([+-]?[0-9]+)")

_NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)


class Inference:
    """Answers what runs a model."""

    def __init__(self, service: FrontService, limits: Limits) -> None:
        self._service = service
        self._limits = limits
        self._forward: HeaderForward = limits.forwards("rest")
        self._writers: dict[tuple[str, str], ResponseWriter] = {}

    async def infer(self, exchange: Exchange, model_name: str, version: str) -> None:
        """Raises: EngineError, before anything is sent."""
        service, headers = self._service, exchange.headers
        version = read_version(version)
        model = service.model(model_name, version)
        if model.is_decoupled:
            raise EngineError(
                ErrorCode.UNSUPPORTED, "HTTP end point doesn't support models with decoupled transaction policy"
            )
        try:
            has_compressed_body = is_compressed(headers.get(b"content-encoding"))
        except EngineError as error:
            await exchange.fail(error, _ACCEPTED)
            return
        limit = self._limits.max_body_bytes
        body = await exchange.body(limit)
        if has_compressed_body:
            body = decompress(body, limit)
        head_bytes = _head_bytes(headers.get(_HEAD_LENGTH), len(body))
        trace = trace_of(headers)
        if head_bytes:
            request, forms = read_infer(body, head_bytes, model_name, version, service.regions, trace)
        else:
            request, forms = read_raw_infer(body, model, version, trace)
        if self._forward:
            request = self._forwarded(request, exchange)
        answers = Answers(asyncio.get_running_loop(), _NO_LIMIT)
        call = Call(request, answers.take, monotonic_ns())
        service.infer(call)
        await answers.whole(call, exchange.receive, self._limits.disconnect_seconds)
        if answers.is_gone:
            return
        if answers.num_responses != 1:
            raise internal(f"expected a single response, got {answers.num_responses}")
        response = answers.responses[0]
        if response.error is not None:
            raise response.error
        await self._tell(exchange, self._writer(model).write(request.id, response, forms))

    async def generate(self, exchange: Exchange, model_name: str, version: str) -> None:
        """One answer. Raises: as `infer`."""
        model, call, answers = await self._begin(exchange, model_name, version)
        await answers.whole(call, exchange.receive, self._limits.disconnect_seconds)
        if answers.is_gone:
            return
        written = [_written(model, call.request.id, response) for response in answers.responses]
        status = 400 if written and not written[0][1] else 200
        body = written[0][0] if len(written) == 1 else error_json(_NOT_ONE)
        await exchange.reply(status, body, JSON)

    async def generate_stream(self, exchange: Exchange, model_name: str, version: str) -> None:
        """An event for each answer; the first of them makes the status. Raises: as `infer`."""
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

    async def _begin(self, exchange: Exchange, model_name: str, version: str) -> tuple[ServedModel, Call, Answers]:
        """A generate's call, under way."""
        service, headers = self._service, exchange.headers
        version = read_version(version)
        model = service.model(model_name, version)
        metadata = service.metadata(model_name, version)
        if headers.get(b"content-encoding", b"identity") not in (b"", b"identity"):
            raise invalid("Unsupported content-encoding, only 'identity' is supported.")
        body = await exchange.body(self._limits.max_body_bytes)
        request = read_generate(body, metadata, model_name, version, trace_of(headers))
        answers = Answers(asyncio.get_running_loop(), self._limits.max_unsent_bytes)
        call = Call(request, answers.take, monotonic_ns())
        answers.overrun = call.cancel
        service.infer(call)
        answers.is_starting = False
        if answers.failed_at_once:
            error = answers.responses[0].error
            assert error is not None
            raise error
        return model, call, answers

    def _forwarded(self, request: InferRequest, exchange: Exchange) -> InferRequest:
        """The request with headers as parameters."""
        added = self._forward.parameters(exchange.scope["headers"])
        return replace(request, parameters={**request.parameters, **added}) if added else request

    async def _tell(self, exchange: Exchange, body: Body) -> None:
        data, head_bytes = body
        encoding = exchange.headers.get(b"accept-encoding")
        if encoding is None and head_bytes is None:
            await exchange.reply(200, data, JSON)
            return
        headers = [JSON]
        if head_bytes is not None:
            headers = [_BINARY, (_HEAD_LENGTH, b"%d" % head_bytes)]
        wanted = preferred(encoding) if encoding is not None else b""
        if wanted:
            data = compress(data, wanted)
            headers.append((b"content-encoding", wanted))
        await exchange.reply(200, data, *headers)

    def _writer(self, model: ServedModel) -> ResponseWriter:
        key = (model.name, model.version)
        found = self._writers.get(key)
        if found is None or found.model is not model:  # it was loaded anew
            found = self._writers[key] = ResponseWriter(model)
        return found


def _written(model: ServedModel, id: str, response: InferResponse) -> tuple[bytes, bool]:
    """A generate's answer as JSON, and whether it is no error."""
    error = response.error
    if error is None:
        try:
            return write_generate(model, id, response), True
        except EngineError as wrong:
            error = wrong
    return error_json(error.message), False


def _head_bytes(told: bytes | None, size: int) -> int:
    """How much of a body is JSON: all of it, where the header does not tell.

    Raises: EngineError(INVALID_ARG).
    """
    if told is None:
        return size
    found = _NUMBER.match(told)
    number = int(found[1]) if found is not None else 0
    if not 0 <= number <= size:
        raise invalid(f"inference header size should be in range (0, {size}), got: {told.decode('latin-1')}")
    return number
