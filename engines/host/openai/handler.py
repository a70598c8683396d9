"""Handles the paths of OpenAI's API and of Anthropic's messages.

Source: OpenAI API reference; Anthropic API reference; `gateway.protocol.llm`, which reads and writes their bodies.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import time
from uuid import uuid4

from engines.core.errors import EngineError, ErrorCode, internal, unavailable
from engines.host.client_limits import ClientLimits
from engines.host.exchange import JSON, Exchange
from engines.host.openai.models import LanguageModels
from engines.host.openai.reply_events import AnswerReader
from engines.host.openai.request_builder import infer_request
from engines.host.openai.tool_calls import ToolCallReader
from engines.host.request_fields import trace_of
from engines.host.response_queue import ResponseQueue
from engines.host.service import Service
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.api_codecs import API_CODECS
from gateway.protocol.llm.canonical import EngineFailed, Event, Generation, TokenUsage
from gateway.protocol.llm.completions import read_requests
from gateway.protocol.llm.errors import anthropic_error, openai_error
from gateway.protocol.llm.translation import ReplyWriter
from gateway.protocol.operations import ApiCall, LlmApi, Operation

_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")
_NO_LIMIT = 2**63
_KINDS = {ErrorCode.NOT_FOUND: "not_found", ErrorCode.UNAVAILABLE: "overloaded", ErrorCode.UNSUPPORTED: "unsupported"}


class OpenAIFront:
    """Serves requests of these APIs, with errors in their form."""

    def __init__(self, service: Service, limits: ClientLimits) -> None:
        self._service = service
        self._limits = limits
        self.models = LanguageModels(service, int(time()))

    async def answer(self, exchange: Exchange, api_call: ApiCall) -> None:
        """Raises: ClientGoneError, and unexpected errors."""
        assert api_call.api is not None
        try:
            if api_call.operation is Operation.MODEL_LIST:
                body = self.models.listed() if api_call.model is None else self.models.one(api_call.model)
                await exchange.reply(200, body, JSON)
            elif api_call.api is LlmApi.EMBEDDINGS:
                raise GatewayError(ErrorKind.UNSUPPORTED, "the language models of this host make no embeddings")
            else:
                await self._generate(exchange, api_call.api)
        except (EngineError, GatewayError) as error:
            status, body = error_reply(error, api_call.api)
            await exchange.reply(status, body, JSON)

    async def _generate(self, exchange: Exchange, api: LlmApi) -> None:
        """Raises: EngineError or GatewayError, before anything is sent."""
        if exchange.headers.get(b"content-encoding", b"identity") not in (b"", b"identity"):
            raise GatewayError(ErrorKind.UNSUPPORTED, "the body is compressed; send it as it is")
        codec = API_CODECS[api]
        body = await exchange.body(self._limits.max_body_bytes)
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
                await _stream(exchange, queues[0], writer, _reader(first))
            else:
                await _whole(exchange, queues, writer, generations)
        finally:
            for answers in queues:
                answers.call.cancel()  # where it has not ended


async def _whole(
    exchange: Exchange, queues: Sequence[ResponseQueue], writer: ReplyWriter, generations: Sequence[Generation]
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
        if not answers.responses:
            raise internal("the model has not answered")
        response = answers.responses[0]
        if response.error is not None:
            raise response.error
        reader = _reader(generation, number * num_choices)
        events += reader.read(response)
        more = reader.used
        used = TokenUsage(used.prompt + more.prompt, used.completion + more.completion, used.cached + more.cached)
    status, body = writer.whole([*events, used])
    await exchange.reply(status, body, JSON)


async def _stream(exchange: Exchange, answers: ResponseQueue, writer: ReplyWriter, reader: AnswerReader) -> None:
    """Send events as they come. An error before the first one sets the status, a later one is an event.

    Raises: EngineError.
    """
    while (response := await answers.next()) is not None:
        error = response.error
        if not exchange.has_begun:
            if error is not None:
                raise error
            await exchange.start(200, (_EVENTS,))
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


def error_reply(error: EngineError | GatewayError, api: LlmApi) -> tuple[int, bytes]:
    """The status and the body of an error before anything is sent."""
    status = _status(error)
    if api is LlmApi.MESSAGES:
        return status, anthropic_error(error.message, status)
    code = error.kind.value if isinstance(error, GatewayError) else _KINDS.get(error.code, "")
    if status == 404:
        code = "model_not_found"
    return status, openai_error(error.message, status, code if code != ErrorKind.BAD_REQUEST.value else "")


def _status(error: EngineError | GatewayError) -> int:
    """400 for what is unsupported: OpenAI's clients would retry a 501."""
    status = error.status.http
    return 400 if status == 501 else status
