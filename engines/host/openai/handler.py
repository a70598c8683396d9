"""Handles the paths of OpenAI's API and of Anthropic's messages.

Source: OpenAI API reference; Anthropic API reference; `gateway.protocol.llm`, which reads and writes their bodies.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from time import time
from uuid import uuid4

import orjson

from engines.core.errors import EngineError, ErrorCode, internal, unavailable
from engines.core.messages import InferResponse
from engines.host.client_limits import ClientLimits
from engines.host.exchange import JSON, BodyTooLongError, ClientGoneError, Exchange, Fields
from engines.host.openai.models import LanguageModel, LanguageModels
from engines.host.openai.reply_events import AnswerReader, num_input_tokens
from engines.host.openai.request_builder import infer_request
from engines.host.openai.tokenization import read_tokenize_request, tokenize_reply
from engines.host.openai.tool_calls import ToolCallReader
from engines.host.request_fields import trace_of
from engines.host.response_queue import ResponseQueue
from engines.host.service import Service
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.api_codecs import API_CODECS
from gateway.protocol.llm.canonical import EngineFailed, Event, Generation, TokenUsage
from gateway.protocol.llm.completions import read_requests
from gateway.protocol.llm.errors import anthropic_error, openai_error
from gateway.protocol.llm.messages_request import read_count_request
from gateway.protocol.llm.translation import ReplyWriter
from gateway.protocol.operations import ApiCall, LlmApi, Operation

_log = logging.getLogger(__name__)

_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")
_REQUEST_ID = b"x-request-id"
_NO_LIMIT = 2**63
_KINDS = {ErrorCode.NOT_FOUND: "not_found", ErrorCode.UNAVAILABLE: "overloaded", ErrorCode.UNSUPPORTED: "unsupported"}


class OpenAIFront:
    """Serves requests of these APIs, with errors in their form."""

    def __init__(self, service: Service, limits: ClientLimits) -> None:
        self._service = service
        self._limits = limits
        self.models = LanguageModels(service, int(time()))

    async def answer(self, exchange: Exchange, api_call: ApiCall) -> None:
        """Raises: ClientGoneError, and errors amid a reply."""
        api = api_call.api
        assert api is not None
        id_fields = _id_fields(exchange, api)
        try:
            if api_call.operation is Operation.MODEL_LIST:
                body = self.models.listed() if api_call.model is None else self.models.one(api_call.model)
                await exchange.reply(200, body, JSON, *id_fields)
            elif api_call.operation is Operation.COUNT_TOKENS:
                count = self._count if api is LlmApi.MESSAGES else self._tokenize
                await exchange.reply(200, await count(exchange), JSON, *id_fields)
            elif api is LlmApi.EMBEDDINGS:
                raise GatewayError(ErrorKind.UNSUPPORTED, "the language models of this host make no embeddings")
            else:
                await self._generate(exchange, api, id_fields)
        except (EngineError, GatewayError) as error:
            await _refuse(exchange, error, api, id_fields)
        except Exception as error:
            if exchange.is_over or exchange.has_begun:
                raise
            _log.error("%s %s failed", exchange.method, exchange.path, exc_info=error)
            await _refuse(exchange, internal(f"the host failed: {type(error).__name__}"), api, id_fields)

    async def refuse(self, exchange: Exchange, error: GatewayError, api: LlmApi) -> None:
        """Answer with an error in the form of this API."""
        fields, status = _id_fields(exchange, api), error.status.http
        if api is LlmApi.MESSAGES:
            body = anthropic_error(error.message, status, fields[0][1].decode("latin-1"))
        else:
            body = openai_error(error.message, status)
        await exchange.reply(status, body, JSON, *fields)

    async def _count(self, exchange: Exchange) -> bytes:
        """Anthropic's count of a conversation's tokens. Raises: EngineError, GatewayError or ClientGoneError."""
        generation = read_count_request(await self._body(exchange))
        has_no_tools = generation.options.get("tool_choice") == "none"
        generation = replace(generation, options={"tool_choice": "none"} if has_no_tools else {})
        _, response = await self._counted(exchange, generation)
        return orjson.dumps({"input_tokens": num_input_tokens(response)})

    async def _tokenize(self, exchange: Exchange) -> bytes:
        """vLLM's list of a prompt's tokens. Raises: as `_count`."""
        model, response = await self._counted(exchange, read_tokenize_request(await self._body(exchange)), lists=True)
        return tokenize_reply(response, model.description.get("max_context"))

    async def _counted(
        self, exchange: Exchange, generation: Generation, *, lists: bool = False
    ) -> tuple[LanguageModel, InferResponse]:
        """The model, and its response to a request that generates nothing."""
        model, adapter = self.models.find(generation.model)
        id, trace = uuid4().hex, trace_of(exchange.headers)
        request = infer_request(
            generation, model=model.served.name, adapter=adapter, id=id, trace=trace, counts=True, lists_tokens=lists
        )
        queue = ResponseQueue(exchange, request, _NO_LIMIT)
        self._service.infer(queue.call)
        await queue.complete()
        if queue.is_gone:
            raise ClientGoneError
        return model, _answered(queue)

    async def _body(self, exchange: Exchange) -> bytes:
        """Raises: GatewayError, EngineError."""
        if exchange.headers.get(b"content-encoding", b"identity") not in (b"", b"identity"):
            raise GatewayError(ErrorKind.UNSUPPORTED, "the body is compressed; send it as it is")
        return await exchange.body(self._limits.max_body_bytes)

    async def _generate(self, exchange: Exchange, api: LlmApi, id_fields: Fields) -> None:
        """Raises: EngineError or GatewayError, before anything is sent."""
        codec = API_CODECS[api]
        body = await self._body(exchange)
        generations = read_requests(body) if api is LlmApi.COMPLETIONS else [codec.read_request(body)]
        first = generations[0]
        id = f"{codec.id_prefix}{uuid4().hex}"
        trace = trace_of(exchange.headers)
        requests = []
        for generation in generations:
            model, adapter = self.models.find(generation.model)
            requests.append(infer_request(generation, model=model.served.name, adapter=adapter, id=id, trace=trace))
        writer = codec.reply_writer(first, id=id, created=int(time()), model=first.model)
        max_bytes = self._limits.max_unsent_bytes if first.stream else _NO_LIMIT
        queues = [ResponseQueue(exchange, request, max_bytes) for request in requests]
        try:
            for answers in queues:
                self._service.infer(answers.call)
            if first.stream:
                await _stream(exchange, queues[0], writer, _reader(first), id_fields)
            else:
                await _whole(exchange, queues, writer, generations, id_fields)
        finally:
            for answers in queues:
                answers.call.cancel()  # where it has not ended


async def _whole(
    exchange: Exchange,
    queues: Sequence[ResponseQueue],
    writer: ReplyWriter,
    generations: Sequence[Generation],
    id_fields: Fields,
) -> None:
    """One reply with the choices of all prompts.

    Raises: EngineError.
    """
    events: list[Event] = []
    used = TokenUsage()
    num_choices = generations[0].options.get("n", 1)
    for number, (answers, generation) in enumerate(zip(queues, generations, strict=True)):
        await answers.complete()
        if answers.is_gone:
            return
        reader = _reader(generation, number * num_choices)
        events += reader.read(_answered(answers))
        more = reader.used
        used = TokenUsage(used.prompt + more.prompt, used.completion + more.completion, used.cached + more.cached)
    status, body = writer.whole([*events, used])
    await exchange.reply(status, body, JSON, *id_fields)


def _answered(queue: ResponseQueue) -> InferResponse:
    """The only response. Raises: EngineError."""
    if not queue.responses:
        raise internal("the model has not answered")
    response = queue.responses[0]
    if response.error is not None:
        raise response.error
    return response


async def _stream(
    exchange: Exchange, answers: ResponseQueue, writer: ReplyWriter, reader: AnswerReader, id_fields: Fields
) -> None:
    """Send events as they come. An error before the first one sets the status, a later one is an event.

    Raises: EngineError.
    """
    while (response := await answers.next()) is not None:
        error = response.error
        if not exchange.has_begun:
            if error is not None:
                raise error
            await exchange.start(200, (_EVENTS, *id_fields))
        if error is None:
            events = reader.read(response)
        else:
            events = [EngineFailed(error.message, _status(error), _KINDS.get(error.code, ""))]
        if data := writer.feed(events):
            await exchange.more(data)
    if answers.is_gone:
        return
    if not exchange.has_begun:
        raise unavailable("the model has ended the request without an answer")
    await exchange.more(writer.feed([reader.used]) + writer.end(), is_last=True)


def _reader(generation: Generation, first_choice: int = 0) -> AnswerReader:
    """With tools, the text is searched for calls."""
    calls = ToolCallReader(lambda: f"call_{uuid4().hex}") if generation.tools else None
    return AnswerReader(generation, calls, first_choice)


def _id_fields(exchange: Exchange, api: LlmApi) -> Fields:
    """The fields that name the request, by the client's own id where it sends one."""
    id = exchange.headers.get(_REQUEST_ID) or uuid4().hex.encode()
    return ((_REQUEST_ID, id), (b"request-id", id)) if api is LlmApi.MESSAGES else ((_REQUEST_ID, id),)


async def _refuse(exchange: Exchange, error: EngineError | GatewayError, api: LlmApi, id_fields: Fields) -> None:
    status, body = error_reply(error, api, id_fields[0][1].decode("latin-1"))
    await exchange.reply(status, body, JSON, *id_fields)


def error_reply(error: EngineError | GatewayError, api: LlmApi, request_id: str = "") -> tuple[int, bytes]:
    """The status and the body of an error before anything is sent."""
    status = _status(error)
    if api is LlmApi.MESSAGES:
        return status, anthropic_error(error.message, status, request_id)
    code = error.kind.value if isinstance(error, GatewayError) else _KINDS.get(error.code, "")
    if status == 404:
        code = "model_not_found"
    return status, openai_error(error.message, status, code if code != ErrorKind.BAD_REQUEST.value else "")


def _status(error: EngineError | GatewayError) -> int:
    """400 for what is unsupported: OpenAI's clients would retry a 501."""
    if isinstance(error, BodyTooLongError):
        return 413
    status = error.status.http
    return 400 if status == 501 else status
