"""A REST request whose target has fallbacks: where an engine fails or refuses it, the next one gets it.

    body, whole up to a bound
         -> handler of the target -> reply below 400            -> the client; it is the handler's from here
                                  -> error, or reply from 400   -> a reason for a fallback? then its target's handler
                                                                   gets the request, else the client gets what came

It is the client of the handlers, one after another. The request's body is held up to `--retry-body-bytes`. A request of
a sequence stays where its sequence is, and one that may have run and does harm twice is not repeated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic

from gateway.dataplane.attempts.fallback_counts import count_fallback, count_passed_over
from gateway.dataplane.context.active_requests import Progress, Stage, progress_of
from gateway.dataplane.context.capture import BoundedCopy
from gateway.dataplane.context.fallbacks import takes_requests
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client, Handler
from gateway.dataplane.context.interposed_handler import InterposedHandler
from gateway.dataplane.context.local_handler import ErrorHandler
from gateway.dataplane.context.local_replies import JSON
from gateway.dataplane.context.route_target import RouteTarget
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.fallback_reasons import DOWN, Reasons, reasons_of_error, reasons_of_reply, status_of_events
from gateway.protocol.operations import INFERENCE_OPERATIONS, OF_V2
from gateway.protocol.sequence import AnySession
from gateway.wire.http1.head import Field, ResponseHead

_V2_APIS = (None, *OF_V2)
_SAFE_METHODS = frozenset({"GET", "HEAD"})
# In a JSON text; letters of ASCII that are escaped, as no library does it, could spell it, too
_SEQUENCE = re.compile(rb'"sequence_id"|\\u00[4-7]')
_EVENTS = b"text/event-stream"
# An error reply that is longer goes to the client as it comes.
_MAX_HELD_BYTES = 64 * 1024


# Makes the handler of a request for one target, and the body that it takes.
ServeOne = Callable[[Client, Request, bytes, RouteTarget, AnySession | None], tuple[Handler, bytes]]


class FallbackHandler(InterposedHandler):
    """`serve` makes the handler of a request for one target, from what has come of the body."""

    def __init__(
        self,
        client: Client,
        request: Request,
        route_target: RouteTarget,
        session: AnySession | None,
        serve: ServeOne,
    ) -> None:
        super().__init__(client)
        if request.id is None:  # all engines get the same
            request = request.of(request.plan)
            request.id = client.plane.new_request_id()
        self._request = request
        if self.plane.spans is not None:
            self.trace = self.plane.spans.hold(client.trace, request.traceparent, monotonic())
        self._route_target = route_target
        self._session = session
        self._serve = serve
        self._max_bytes = client.plane.settings.limits.retry_body_bytes
        self._body = BoundedCopy(self._max_bytes)
        self._body_ended = False
        self._is_committed = False  # the reply is the client's
        self._held: list[Callable[[], None]] | None = None  # an error reply, until it is whole
        self._held_status = 0
        self._is_stream_held = False
        self._text: BoundedCopy | None = None  # of that
        self._handler = None

    def take_over(self, handler: Handler, body: bytes) -> None:
        """Stand between the client and a handler that has got this whole body, and has not begun to answer."""
        self._keep(body, True)
        self._handler = handler

    @property
    def begun(self) -> bool:
        return self._is_committed and super().begun

    # As the handler

    def body_received(self, data: bytes, ended: bool) -> None:
        if self._handler is not None:
            self._keep(data, ended)
            self._handler.body_received(data, ended)
            return
        held = self._body.pieces
        if self._body.size + len(data) <= self._max_bytes:
            self._keep(data, ended)
            if not ended:
                self._client.hold_body()
            elif not self._passes_over_failing():
                self._start(b"".join(held))
        elif self._passes_over_failing():
            self.body_received(data, ended)
        else:
            held = [*held, data]
            self._keep(data, ended)
            self._start(b"".join(held))

    def _keep(self, data: bytes, ended: bool) -> None:
        if not self._is_committed:
            self._body.add(data)
            self._body_ended = ended

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        if self._handler is None:  # which counts it
            self._handler = ErrorHandler(self._client, self._request, GatewayError(ErrorKind.REQUEST_TIMEOUT, reason))
        self._handler.client_gone(reason, status)
        self._release_trace()

    def progress(self) -> Progress:
        if self._handler is not None:
            return self._handler.progress()
        return progress_of(self._request, Stage.READING, monotonic(), route_target=self._route_target)

    def _passes_over_failing(self) -> bool:
        """Whether the request goes to a fallback at once, since no endpoint of the first engine takes requests."""
        now, first = monotonic(), self._route_target
        if takes_requests(first.engine, now) or first.fallbacks is None or not self._may_go_elsewhere():
            return False
        target = first.fallbacks.find(DOWN, now, was_admitted=False)
        if target is None or not takes_requests(target.engine, now):
            return False
        count_passed_over(
            self.plane, first, self._rated_id, self._body.size, is_inference=self._request.plan.is_inference
        )
        self._go_to(target, 0)
        return True

    # As the client

    def relay(
        self, head: ResponseHead, route_target: RouteTarget, added: Sequence[Field], request_id: bytes, data: bytes
    ) -> None:
        status = head.status
        if status == 200 and not self._is_committed and (head.value(b"content-type") or b"").startswith(_EVENTS):
            status = status_of_events(data)
        if self._is_committed or not self._holds(status):
            self._client.relay(head, route_target, added, request_id, data)
            return
        self._held_status = status
        self._is_stream_held = head.status == 200
        self._held = [partial(self._client.relay, head, route_target, added, request_id, data)]
        self._text = BoundedCopy(_MAX_HELD_BYTES)
        self._text.add(data)

    def write(self, data: bytes) -> None:
        if self._held is None:
            self._client.write(data)
        else:
            self._hold(partial(self._client.write, data), data)

    def write_piece(self, data: bytes, ended: bool = False) -> None:
        if self._held is None:
            self._client.write_piece(data, ended)
        else:
            self._hold(partial(self._client.write_piece, data, ended), data)

    def reply_ended(self) -> None:
        self._end(self._client.reply_ended)

    def break_off(self, event: bytes = b"") -> None:
        self._end(partial(self._client.break_off, event))

    def start_stream(self, content_type: str, fields: Sequence[Field], data: bytes) -> None:
        self._commit()
        self._client.start_stream(content_type, fields, data)

    def respond(self, status: int, body: bytes, fields: Sequence[Field] = (), content_type: str = JSON) -> None:
        if not self._falls_back(self._reasons_of_reply(status, body), status):
            self._commit()
            self._client.respond(status, body, fields, content_type)

    def refuse(self, error: GatewayError, fields: Sequence[Field] = ()) -> None:
        reasons = reasons_of_error(error.kind, is_idempotent=self._is_idempotent)
        if not self._falls_back(reasons, error.status.http):
            self._commit()
            self._client.refuse(error, fields)

    # A reply that may be a reason

    def _holds(self, status: int) -> bool:
        """Whether a reply of this status is held until it is whole; else it is the client's."""
        if status >= 400 and self._route_target.fallbacks is not None and self._may_go_elsewhere():
            return True
        self._commit()
        return False

    def _hold(self, write: Callable[[], None], data: bytes) -> None:
        assert self._held is not None and self._text is not None
        self._held.append(write)
        self._text.add(data)
        if not self._text.is_whole:
            self._release()

    def _end(self, write: Callable[[], None]) -> None:
        """The reply has ended."""
        if self._held is not None and self._text is not None:
            reasons = self._reasons_of_reply(self._held_status, b"".join(self._text.pieces))
            # An arm's stream counts as answered, and is a failure though its status be 5xx
            if self._falls_back(reasons, 400 if self._is_stream_held else self._held_status):
                return
            self._release()
        write()

    def _release(self) -> None:
        """The reply that was held is the client's."""
        self._commit()
        held, self._held = self._held or [], None
        for write in held:
            write()

    def _commit(self) -> None:
        self._is_committed = True
        self._body.pieces.clear()
        self._release_trace()

    def _release_trace(self) -> None:
        """The request ends with the handler that answers it now."""
        if self.trace is not None and self.trace.is_held:
            self.plane.request_log.release(self.trace)

    def _reasons_of_reply(self, status: int, text: bytes) -> Reasons:
        return reasons_of_reply(status, text, is_idempotent=self._is_idempotent)

    # Going elsewhere

    @property
    def _is_idempotent(self) -> bool:
        """Whether the engine may have run the request without harm, should another one run it: where it is for text or
        vectors, or the rules say so."""
        plan, spec = self._request.plan, self._route_target.engine.spec
        if plan.head.method in _SAFE_METHODS or plan.call.api not in _V2_APIS or spec.protocol.traits.has_dialects:
            return True
        return spec.retry.idempotent == "infer" and plan.call.operation in INFERENCE_OPERATIONS

    def _may_go_elsewhere(self) -> bool:
        """Whether the body is held as far as it has come, and names no sequence."""
        if self._is_committed or not self._body.is_whole:
            return False
        plan, json_bytes = self._request.plan, self._request.json_bytes
        if plan.head.method in _SAFE_METHODS or plan.call.api not in _V2_APIS:
            return True
        if plan.encoding is not None or not (self._body_ended or (json_bytes and self._body.size >= json_bytes)):
            return False
        body = b"".join(self._body.pieces)
        return _SEQUENCE.search(body, 0, len(body) if json_bytes is None else json_bytes) is None

    def _falls_back(self, reasons: Reasons, status: int) -> bool:
        fallbacks = self._route_target.fallbacks
        if not reasons or fallbacks is None or not self._may_go_elsewhere():
            return False
        was_admitted = self._route_target.was_admitted or self.has_attempted
        target = fallbacks.find(reasons, monotonic(), was_admitted=was_admitted)
        if target is None:
            return False
        self._go_to(target, status)
        return True

    def _go_to(self, target: RouteTarget, status: int) -> None:
        """Have the fallback's engine answer; `status` is that of the reply which is left."""
        left, self._route_target, self._held = self._route_target, target, None
        if self.trace is not None:
            self.trace.ended = None
        is_inference = self._request.plan.is_inference
        count_fallback(self.plane.metrics, left, target, self._rated_id, status, is_inference=is_inference)
        if not self._body_ended:
            self._client.resume_body()
        self._start(b"".join(self._body.pieces))

    def _start(self, body: bytes) -> None:
        """Have the target's engine answer."""
        try:
            handler, body = self._serve(self, self._request, body, self._route_target, self._session)
        except GatewayError as error:
            handler = ErrorHandler(self, self._request, error)
        self._handler = handler
        handler.body_received(body, self._body_ended)

    @property
    def _rated_id(self) -> bytes:
        return self._request.plan.rater + (self._request.id or b"")
