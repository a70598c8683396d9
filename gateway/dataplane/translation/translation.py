"""A request whose engine speaks otherwise: read whole, translated, asked as any other request, the reply translated.

It stands between the client and the handler that asks the engine, and is that handler's client: tries, limits and
counters are those of every request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import cast

from gateway.dataplane.attempts.upstream_handler import UpstreamHandler
from gateway.dataplane.context.active_requests import Progress, Stage, progress_of
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.in_process_client import InProcessClient, ReplySink
from gateway.dataplane.context.interfaces import Client, Handler, Serve
from gateway.dataplane.context.local_handler import log_request
from gateway.dataplane.context.local_replies import error_event, error_reply
from gateway.dataplane.context.outcome import OutcomeRecorder
from gateway.dataplane.context.prepared_head import PreparedHead, check_path
from gateway.dataplane.context.request_body import document
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.translation.engine_codec_lookup import cached_codec, find_codec
from gateway.dataplane.translation.reply_writer import HEAD_BYTES, TranslatedReply
from gateway.dataplane.translation.resume_policy import ResumePolicy
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.translation import GenerationTranslator
from gateway.protocol.operations import path_segment
from gateway.protocol.sequence import AnySession
from gateway.protocol.translator import EngineRequest, Reply, Translator
from gateway.wire.http1.head import Field

_log = logging.getLogger(__name__)

_EVENTS = b"text/event-stream"
_LENGTH = b"content-length"
_API_KEY = b"x-api-key"
_REQUEST_ID = b"x-request-id"
_AUTHORIZATION = b"authorization"
# What tells of the body, or of the reply, as the client has it.
_OF_THE_CLIENT = frozenset(
    {
        *(_LENGTH, _API_KEY, b"accept", b"accept-encoding", b"content-encoding", b"content-type", b"expect"),
        *(b"inference-header-content-length", b"anthropic-version", b"anthropic-beta"),
        _REQUEST_ID,
    }
)
_MAX_REMEMBERED = 1024

# Makes the translator of a request from its body; a coroutine where the engine must be asked about the model first.
Make = Callable[[Request, bytes, RouteTarget], Translator | Awaitable[Translator]]


class TranslatingHandler(Handler, ReplySink):
    """One request, translated both ways."""

    __slots__ = (
        "_answer",
        "_backend",
        "_client",
        "_handler",
        "_has_attempted",
        "_is_streaming",
        "_make",
        "_outcome",
        "_pieces",
        "_reply",
        "_request",
        "_rest",
        "_resume_policy",
        "_route_target",
        "_session",
        "_started_at",
        "_status",
        "_streams_any_type",
        "_task",
        "_trace",
        "_translator",
    )

    def __init__(
        self,
        client: Client,
        request: Request,
        route_target: RouteTarget,
        session: AnySession | None,
        make: Make,
        backend: Serve,
    ) -> None:
        self._client = client
        if request.id is None:
            request = request.of(request.plan)
            request.id = client.plane.new_request_id()
        self._request = request = request.timed()
        self._route_target = route_target
        self._session = session
        self._make = make
        self._backend = backend
        self._reply = TranslatedReply(client, request.plan)
        self._resume_policy = ResumePolicy(request.plan.snapshot)
        self._started_at = monotonic()
        self._trace = client.trace
        spans = client.plane.spans
        if spans is not None and route_target.spec.resume:  # several handlers may answer
            self._trace = spans.hold(client.trace, request.traceparent, self._started_at)
        self._rest = InProcessClient.of(client, self)
        self._outcome = OutcomeRecorder(route_target, request, self._started_at)
        self._pieces: list[bytes] = []
        self._translator: Translator = cast(Translator, None)  # set before the engine is asked
        self._handler: Handler | None = None
        self._has_attempted = False
        self._task: asyncio.Task[None] | None = None
        # The engine's reply
        self._status = 0
        self._answer: list[bytes] = []
        self._is_streaming = False
        self._streams_any_type = False

    @property
    def begun(self) -> bool:
        return self._reply.begun

    @property
    def has_attempted(self) -> bool:
        return self._has_attempted

    # What the client's connection tells it

    def body_received(self, data: bytes, ended: bool) -> None:
        self._pieces.append(data)
        if not ended:
            self._client.hold_body()
            return
        body = b"".join(self._pieces)
        self._pieces.clear()
        self._outcome.body_received(len(body))
        try:
            body = document(self._request, body, self._client.plane.settings.limits)
            if not self._route_target.engine.spec.protocol.traits.has_dialects:  # the model's name becomes a path
                path = f"/{path_segment(self._request.plan.call.model or '')}"
                check_path(path, self._route_target, self._client.plane.settings)
            translator = self._make(self._request, body, self._route_target)
        except Exception as error:
            self._refuse(self._reported(error))
            return
        if isinstance(translator, Awaitable):
            self._task = asyncio.get_running_loop().create_task(self._begin_later(translator))
        else:
            self._begin(translator)

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        self._reply.is_over = True
        self._outcome.gone(reason)
        if self._task is not None:
            self._task.cancel()
        if self._handler is not None:
            self._handler.client_gone(reason, status)
        else:
            self._count(reason, status)
        self._release_trace()

    def client_paused(self) -> None:
        self._rest.is_paused = True
        if self._handler is not None:
            self._handler.client_paused()

    def client_resumed(self) -> None:
        self._rest.is_paused = False
        if self._handler is not None:
            self._handler.client_resumed()

    def sweep(self, now: float) -> None:
        if self._handler is not None:
            self._handler.sweep(now)

    def progress(self) -> Progress:
        if self._handler is not None:
            return self._handler.progress()
        stage = Stage.REQUESTED if self._task is not None else Stage.READING
        return progress_of(self._request, stage, self._started_at, route_target=self._route_target)

    # Asking

    async def _begin_later(self, making: Awaitable[Translator]) -> None:
        try:
            translator = await making
        except Exception as error:
            self._refuse(self._reported(error))
        else:
            self._task = None
            self._begin(translator)

    def _begin(self, translator: Translator) -> None:
        self._translator = translator
        try:
            engine_request = translator.request()
        except Exception as error:
            self._refuse(self._reported(error))
        else:
            self._send(engine_request)

    def _send(self, engine_request: EngineRequest) -> None:
        route_target = self._route_target.unmeasured  # it is measured here, whatever becomes of this handler
        request = _request_towards(self._request, route_target, engine_request)
        self._streams_any_type = engine_request.streams_any_type
        self._reply.dropped = engine_request.dropped
        self._status, self._answer, self._is_streaming = 0, [], False
        self._rest = InProcessClient.of(self._client, self)
        self._rest.trace = self._trace
        if self._trace is not None:
            self._trace.ended = None
        handler = self._handler = self._backend(self._rest, request, route_target, self._session)
        self._resume_policy.apply(handler)
        handler.body_received(engine_request.body, True)

    # What the handler tells it

    def reply_started(self, status: int, fields: list[Field]) -> None:
        self._status = status
        self._reply.fields = list(fields)
        self._outcome.reply_started(fields)
        if status == 200 and self._translator.streams:
            content_type = next((value for name, value in fields if name == b"content-type"), b"")
            self._is_streaming = self._streams_any_type or content_type.startswith(_EVENTS)

    def reply_continued(self, data: bytes) -> None:
        if self._reply.is_over:  # what came before could not be understood
            return
        if not self._is_streaming:
            self._answer.append(data)
            return
        try:
            text = self._translator.feed(data)
        except Exception as error:
            self._stop_engine(self._reported(error))
            return
        if text:
            self._reply.write(text)

    def reply_ended(self) -> None:
        broken = self._leave_handler()
        if self._reply.is_over:
            return
        translator = self._translator
        try:
            if self._is_streaming:
                events = translator.end()
                self._outcome.answered(self._status)
                self._release_trace()
                self._end(events)
            elif self.begun:
                what = f"the engine that was to go on answered with status {self._status}, and no stream"
                raise GatewayError(ErrorKind.UPSTREAM_RESET, what)
            else:
                reply = translator.whole(self._whole())
                self._outcome.answered(self._status)
                self._release_trace()
                self._respond(reply)
        except Exception as error:
            known = self._reported(error)
            event = error_event(known, self._request.plan.api)
            if known.kind is not ErrorKind.UPSTREAM_RESET or not self._resumes(broken, event):
                # the engine has counted its answer as such
                self._route_target.series(None).count_error(known.kind.value)
                self._end_badly(known, event)

    def refused(self, error: GatewayError, fields: Sequence[Field]) -> None:
        broken = self._leave_handler()
        self._reply.fields = list(fields)
        event = error_event(error, self._request.plan.api)
        if not self._resumes(broken, event):
            self._end_badly(error, event)

    def reply_broken(self, event: bytes) -> None:
        broken = self._leave_handler()
        if self._reply.is_over or self._resumes(broken, event):
            return
        error = GatewayError(ErrorKind.UPSTREAM_RESET, "the engine's reply broke off")
        self._end_badly(error, event or error_event(error, self._request.plan.api))

    def _whole(self) -> Reply:
        text = dict(self._reply.fields)
        head_bytes = text.get(HEAD_BYTES, b"")
        content_type = text.get(b"content-type", b"").decode("latin-1")
        return Reply(
            self._status, b"".join(self._answer), content_type, int(head_bytes) if head_bytes.isdigit() else None
        )

    # Going on elsewhere

    def _resumes(self, broken: Handler | None, event: bytes) -> bool:
        """Whether the generation goes on elsewhere; `event` tells why it does not, should that turn out later."""
        translator = self._translator
        if not self.begun or not isinstance(translator, GenerationTranslator) or not translator.can_resume:
            return False
        route_target = self._resume_policy.next_target(
            self._route_target, broken if isinstance(broken, UpstreamHandler) else None
        )
        if route_target is None:
            return False
        is_same, self._route_target = route_target is self._route_target, route_target
        self._outcome.goes_on(route_target)
        if is_same:
            self._resume(translator, event)
        else:
            self._task = asyncio.get_running_loop().create_task(self._resume_later(translator, event))
        return True

    async def _resume_later(self, translator: GenerationTranslator, event: bytes) -> None:
        """Go on at another engine, which may speak another API."""
        generation, version = translator.generation, self._request.plan.call.version or ""
        try:
            codec = cached_codec(self._route_target, generation, version) or await find_codec(
                self._route_target, generation, version
            )
        except Exception as error:
            self._end_badly(self._reported(error), event)
        else:
            self._task = None
            translator.codec = codec
            self._resume(translator, event)

    def _resume(self, translator: GenerationTranslator, event: bytes) -> None:
        try:
            engine_request = translator.resume()
        except Exception as error:
            self._end_badly(self._reported(error), event)
        else:
            self._reply.write(translator.seam())
            self._send(engine_request)

    # Ends

    def _end(self, events: bytes) -> None:
        """The stream has ended as it should; these are its last events."""
        self._reply.end(events)

    def _respond(self, reply: Reply) -> None:
        """The reply is whole."""
        self._reply.respond(reply)

    def _leave_handler(self) -> Handler | None:
        """The handler has ended."""
        handler, self._handler = self._handler, None
        self._has_attempted = handler is None or handler.has_attempted
        self._outcome.add(handler.generated() if isinstance(handler, UpstreamHandler) else None)
        return handler

    def _end_badly(self, error: GatewayError, event: bytes) -> None:
        """There is no reply, or no more of it; `event` tells it amid a stream."""
        self._outcome.failed(error)
        self._release_trace()
        self._reply.fail(error, event)

    def _release_trace(self) -> None:
        if self._trace is not None and self._trace.is_held:
            self._client.plane.request_log.release(self._trace)

    def _stop_engine(self, error: GatewayError) -> None:
        """The engine sends what nobody understands."""
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.client_gone(error.kind.value)
        self._end_badly(error, error_event(error, self._request.plan.api))

    def _refuse(self, error: GatewayError) -> None:
        """The engine is not asked."""
        if self._reply.is_over:
            return
        self._reply.is_over = True
        self._outcome.failed(error)
        known = [*self._route_target.reply_fields, (b"x-request-id", self._request.id or b"")]
        status, content, fields = error_reply(error, self._request.plan.api, known)
        self._count(error.kind.value, status)
        self._client.respond(status, content, fields)

    def _reported(self, error: Exception) -> GatewayError:
        """The error as the client gets it: one that is none of the gateway's is logged."""
        if isinstance(error, GatewayError):
            return self._route_target.nameless(error)
        _log.error("cannot translate %s", self._request.plan, exc_info=error)
        return GatewayError(ErrorKind.INTERNAL, "the gateway failed to translate; its log says why")

    def _count(self, reason: str, status: int) -> None:
        series = self._route_target.series(None)
        seconds = monotonic() - self._started_at
        series.count_error(reason)
        if status:
            series.count_failure(status, seconds)
        log_request(self._client, self._request, status, reason, self._started_at, route_target=self._route_target)


def _request_towards(request: Request, route_target: RouteTarget, engine_request: EngineRequest) -> Request:
    """The request for the target's engine, with those of the client's fields that still hold. Anthropic's clients send
    their key in a field of its own; engines read it where all others send it."""
    fields = [field for field in request.fields if field[0] not in _OF_THE_CLIENT]
    key = request.value(_API_KEY)
    if key and request.value(_AUTHORIZATION) is None:
        fields.append((_AUTHORIZATION, b"Bearer " + key))
    fields.append((_LENGTH, b"%d" % len(engine_request.body)))
    if request.id is not None:
        fields.append((_REQUEST_ID, request.id))
    upstream_request = Request.of_fields(_plan_towards(request.plan, route_target, engine_request), fields)
    upstream_request.timing = request.timing
    return upstream_request


def _plan_towards(plan: PreparedHead, route_target: RouteTarget, engine_request: EngineRequest) -> PreparedHead:
    known = plan.translated
    key = (
        id(route_target),
        engine_request.method,
        engine_request.path,
        engine_request.content_type,
        engine_request.fields,
    )
    found = known.get(key)
    if found is None:
        fields: list[Field] = [field for field in plan.head.fields if field[0] not in _OF_THE_CLIENT]
        if engine_request.body or engine_request.method == "POST":
            fields.append((b"content-type", engine_request.content_type.encode("latin-1")))
        fields += engine_request.fields
        if len(known) >= _MAX_REMEMBERED:
            known.clear()
        found = known[key] = plan.towards(
            route_target, engine_request.method, engine_request.path, fields, engine_request.api
        )
    return found
