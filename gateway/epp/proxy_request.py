"""One request of a proxy, from its head to the end of its reply: messages in, answers out.

    head -> read -> routed -> admitted -> picked -> replied -> ended
               |       |          |          |
               +-------+----------+----------+---- refused: the proxy answers with an error

A proxy sends a body full-duplex (FULL_DUPLEX_STREAMED: every piece goes through the picker, and the head waits until
the picker has read enough), whole (BUFFERED: the head waits at the proxy) or not at all; then the head must say enough.
Where proxies do not say how, it is full-duplex, as the endpoint picker protocol requires.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from gateway.dataplane.attempts.model_refusal import lacks_model
from gateway.dataplane.context.local_replies import body_too_long, error_reply
from gateway.dataplane.context.reply_fields import reason_fields
from gateway.dataplane.context.route_target import RouteTarget
from gateway.epp.endpoint_picker import EndpointPicker, address_of, at_address
from gateway.epp.interfaces import RequestReader, Routing
from gateway.epp.pick_admission import PickAdmission
from gateway.protocol import ext_proc
from gateway.protocol.engine_load import read_orca
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.ext_proc import BodyMode, HeaderField, Mutation, Part
from gateway.protocol.grpc_status import OK, http_status, read_status
from gateway.protocol.protobuf import Message
from gateway.protocol.sequence import Sequence as TritonSequence
from gateway.upstream.endpoint import Endpoint

if TYPE_CHECKING:
    from gateway.observability.metrics import RequestSeries

# Statuses that may say that an endpoint lacks the model, and the longest reply that does.
_MAY_LACK_MODEL = (400, 404, 503)
_MAX_REFUSAL_BYTES = 16 * 1024
# Envoy's own words for a reply that the endpoint has sent; in other replies it reports that it reached none.
_CODE_DETAILS = "response.code_details"
_VIA_UPSTREAM = "via_upstream"
_UPSTREAM_TIME = b"x-envoy-upstream-service-time"
_ORCA = b"endpoint-load-metrics"
_TOO_MANY_REQUESTS = 429


class ProxyRequest:
    """Answers by `send`, each answer a serialised ProcessingResponse."""

    def __init__(self, picker: EndpointPicker, send: Callable[[bytes], None]) -> None:
        self._picker = picker
        self._send = send
        self._started_at = self._active_at = monotonic()
        self._modes = BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED
        self._subset: frozenset[str] | None = None
        self._request_id: bytes | None = None
        self._reader: RequestReader | None = None
        self._routing: Routing | None = None
        self._at = Part.REQUEST_HEADERS  # the message that gets the choice as its answer
        self._has_body = self._body_has_ended = self._has_trailers = False
        self._held_bytes = 0
        self._admission: PickAdmission | None = None
        self._endpoint: Endpoint | None = None  # that the request is counted at
        self._series: RequestSeries | None = None
        self._picked_at = 0.0
        self._replied_at = 0.0
        self._status = 0
        self._is_reached = True  # the reply is the endpoint's own
        self._grpc_status: int | None = None
        self._refusal = b""  # what has come of a reply that may refuse the model
        self._may_refuse = False
        self._sizes = [0, 0]  # of the request's body and the reply's
        self._is_refused = self._is_over = False
        picker.metrics.num_open += 1

    # What the proxy sends

    def receive(self, request: Message) -> None:
        """Take a ProcessingRequest. Errors of the client's request are answers; others are raised."""
        found = ext_proc.part_of(request)
        if found is None or self._is_over or request.observability_mode:
            return
        part, message = found
        self._active_at = monotonic()
        if self._is_refused:
            return
        try:
            _STEPS[part](self, request, message)
        except GatewayError as error:
            self._refuse(error)

    def end(self) -> None:
        """The proxy has closed the stream: the request is over, or its client gone."""
        if self._is_over:
            return
        self._is_over = True
        self._picker.metrics.num_open -= 1
        self._hold(0)
        self._end_admission()
        if self._endpoint is None:
            if not self._is_refused:
                self._picker.plane.metrics.unrouted.count_error("client_gone")
            return
        self._close()

    def sweep(self, now: float) -> None:
        """Called about once a second: refuse a request whose body does not come. A body that the proxy holds has the
        proxy's own time."""
        limit = self._picker.settings.body_timeout
        is_waiting = self._has_body and not self._body_has_ended and self._routing is None and not self._is_refused
        if is_waiting and not self._modes[0].is_whole and now - self._active_at > limit:
            self._refuse(GatewayError(ErrorKind.REQUEST_TIMEOUT, f"no more of the body came for {limit:g} s"))

    # The request

    def _take_head(self, request: Message, headers: Message) -> None:
        settings = self._picker.settings
        self._modes = ext_proc.modes_of(request) or self._modes
        self._subset = ext_proc.subset_of(request)
        fields = ext_proc.fields_of(headers.headers)
        named = dict(reversed(fields))
        self._request_id = named.get(b"x-request-id")
        self._has_body = not headers.end_of_stream
        if self._picker.metrics.num_open > settings.max_requests:
            what = f"{settings.max_requests} requests are under way already (--max-requests)"
            raise GatewayError(ErrorKind.OVERLOADED, what)
        self._reader = self._picker.reader(fields, named, has_body=self._has_body)
        if not self._has_body:
            self._body_has_ended = True
            self._reader.add(b"", True)
        self._route(Part.REQUEST_HEADERS)
        if self._routing is None:
            if self._modes[0].is_whole and self._has_body:
                self._send(ext_proc.go_on(Part.REQUEST_HEADERS))
            elif self._modes[0] is not BodyMode.FULL_DUPLEX_STREAMED:
                what = (
                    "the rules need this request's body, which the proxy does not send before the head: set "
                    "request_body_mode of its external processing to FULL_DUPLEX_STREAMED or BUFFERED"
                )
                raise GatewayError(ErrorKind.INTERNAL, what)

    def _take_body(self, request: Message, body: Message) -> None:
        assert self._reader is not None
        data, mode = body.body, self._modes[0]
        self._body_has_ended = body.end_of_stream
        self._sizes[0] += len(data)
        if self._endpoint is not None:
            if mode is BodyMode.FULL_DUPLEX_STREAMED:
                self._send_pieces(self._reader.pass_on(data, body.end_of_stream), body.end_of_stream)
            else:
                self._send(ext_proc.go_on(Part.REQUEST_BODY))
            return
        self._reader.add(data, body.end_of_stream or mode.is_whole)
        self._hold(self._reader.size)
        if self._routing is None:
            self._route(Part.REQUEST_BODY)

    def _take_trailers(self, request: Message, trailers: Message) -> None:
        assert self._reader is not None
        self._body_has_ended = self._has_trailers = True
        if self._endpoint is None and self._routing is None:
            self._reader.add(b"", True)
            self._route(Part.REQUEST_BODY)
        elif self._endpoint is not None:
            self._send(ext_proc.go_on(Part.REQUEST_TRAILERS))

    def _hold(self, size: int) -> None:
        """So many bytes of the body are held. Raises: GatewayError where they are too many."""
        settings, metrics = self._picker.settings, self._picker.metrics
        metrics.held_bytes += size - self._held_bytes
        self._held_bytes = size
        if size > settings.max_body_bytes:
            raise body_too_long(settings.max_body_bytes)
        if size and metrics.held_bytes > settings.max_buffered_bytes:
            what = f"the picker holds {settings.max_buffered_bytes} bytes of bodies already (--max-buffered-bytes)"
            raise GatewayError(ErrorKind.OUT_OF_BUFFERS, what)

    def _route(self, part: Part) -> None:
        """Decide by the rules, as far as enough has come; then pick, or wait for the engine."""
        assert self._reader is not None
        routing = self._reader.route()
        if routing is None:
            if self._body_has_ended:
                raise GatewayError(ErrorKind.BAD_REQUEST, "the body ends before the rules can be followed")
            return
        self._routing, self._at = routing, part
        admission = routing.route_target.engine.overload
        if admission is not None and routing.is_inference:
            self._admission = PickAdmission(self._picker.plane, admission, self._reader, self._admitted)
            if not self._admission.start(monotonic()):
                return
        self._pick()

    def _admitted(self, error: GatewayError | None) -> None:
        """The request has waited for its engine."""
        if self._is_over or self._is_refused:
            return
        try:
            if error is not None:
                raise error
            self._pick()
        except GatewayError as refusal:
            self._refuse(refusal)

    def _pick(self) -> None:
        """Choose, and send the choice with all that has come."""
        assert self._routing is not None and self._reader is not None
        routing, now, over_grpc = self._routing, monotonic(), self._routing.over_grpc
        chosen = self._picker.choose(routing, self._subset, now)
        self._picked_at = now
        self._count_at(chosen[0], now)
        self._picker.metrics.picked(routing.route_target.engine.name, now - self._started_at)
        mutation = _mutation(routing)
        destination = ",".join(address_of(each, over_grpc=over_grpc) for each in chosen)
        held = self._reader.take()
        self._hold(0)
        if self._at is Part.REQUEST_BODY and self._modes[0].is_whole:
            if routing.is_rewritten:
                mutation.body = held
                if not over_grpc:
                    mutation.fields.append((b"content-length", b"%d" % len(held)))
            self._send(ext_proc.destined(Part.REQUEST_BODY, destination, mutation))
            return
        # Envoy follows this where bodies come whole, and not full-duplex
        needs_no_body = self._has_body and self._modes[0].is_whole and self._reader.passes_unseen
        reply_mode = self._modes[1] if needs_no_body else None
        self._send(ext_proc.destined(Part.REQUEST_HEADERS, destination, mutation, reply_mode))
        ended = self._body_has_ended and not self._has_trailers
        if held or (ended and self._has_body and self._modes[0] is BodyMode.FULL_DUPLEX_STREAMED):
            self._send_pieces(held, ended)
        if self._has_trailers:
            self._send(ext_proc.go_on(Part.REQUEST_TRAILERS))

    def _send_pieces(self, data: bytes, ended: bool) -> None:
        for piece in ext_proc.pieces(Part.REQUEST_BODY, data, ended):
            self._send(piece)

    def _refuse(self, error: GatewayError) -> None:
        """Have the proxy answer with this error."""
        self._is_refused = True
        self._hold(0)
        self._end_admission()
        routing, reader = self._routing, self._reader
        route_target = routing.route_target if routing is not None else None
        self._picker.metrics.refusals[error.kind.value] += 1
        self._count_refused(error, route_target)
        if route_target is not None:
            error = route_target.client_error(error)
        fields: list[HeaderField] = [(b"x-request-id", self._request_id)] if self._request_id else []
        if reader is not None and reader.over_grpc:
            content, grpc_status = error.message.encode(), error.status.grpc
            status, fields = error.status.http, fields + reason_fields(error)
            grpc: int | None = grpc_status
        else:
            status, content, fields = error_reply(error, reader.api if reader is not None else None, fields)
            fields.append((b"content-type", b"application/json"))
            grpc = None
        if error.kind is ErrorKind.OVERLOADED:  # as the endpoint picker protocol has it
            status = _TOO_MANY_REQUESTS
        if route_target is not None:
            fields = [*fields, *route_target.reply_fields]
        self._send(ext_proc.immediate(status, content, fields, grpc, f"pointsman_{error.kind.value}"))

    def _count_refused(self, error: GatewayError, route_target: RouteTarget | None) -> None:
        plane = self._picker.plane
        series = plane.metrics.unrouted if route_target is None else route_target.series(None)
        series.count_error(error.kind.value)
        series.count_failure(error.status.http, monotonic() - self._started_at)

    def _end_admission(self) -> None:
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.end()

    # Counting

    def _count_at(self, endpoint: Endpoint, now: float) -> None:
        """The request is at this endpoint."""
        assert self._routing is not None
        self._endpoint = endpoint
        self._series = self._routing.route_target.series(endpoint)
        endpoint.in_flight += 1
        self._series.in_flight += 1
        if not endpoint.breaker.is_spotless:
            endpoint.breaker.sent(now)

    def _leave(self) -> None:
        assert self._endpoint is not None and self._series is not None
        self._endpoint.in_flight -= 1
        self._series.in_flight -= 1

    def _close(self) -> None:
        """Count the request as ended."""
        assert self._routing is not None and self._endpoint is not None and self._series is not None
        self._leave()
        now, series, endpoint, session = monotonic(), self._series, self._endpoint, self._routing.session
        if not self._status:
            endpoint.breaker.abandoned()
            series.count_error("client_gone")
            return
        status = self._status
        if self._grpc_status is not None and self._grpc_status != OK:
            status = http_status(self._grpc_status)
        if self._is_reached and endpoint.counts_as_failure(status):
            endpoint.breaker.failed(now)
        elif self._is_reached and not endpoint.breaker.is_spotless:
            endpoint.breaker.succeeded()
        if isinstance(session, TritonSequence) and session.ends:
            self._picker.plane.affinity.ended(session)
        series.request_bytes += self._sizes[0]
        series.response_bytes += self._sizes[1]
        series.count(status, now - self._started_at, self._replied_at - self._started_at, now - self._picked_at)

    # The reply

    def _take_reply_head(self, request: Message, headers: Message) -> None:
        fields = dict(reversed(ext_proc.fields_of(headers.headers)))
        routing, now = self._routing, monotonic()
        if routing is None or self._endpoint is None:  # the proxy's own reply to a request that it kept
            self._send(ext_proc.go_on(Part.RESPONSE_HEADERS))
            return
        status = fields.get(b":status", b"")
        self._status = int(status) if status.isdigit() else 500
        self._replied_at = now
        if b"grpc-status" in fields:
            self._grpc_status = read_status(fields[b"grpc-status"])
        self._move_to_served(request, now)
        self._observe(request, fields, now)
        self._may_refuse = self._is_reached and self._status in _MAY_LACK_MODEL and routing.is_inference
        if self._may_refuse and (headers.end_of_stream or self._modes[1] is BodyMode.NONE):
            self._learn_refusal()
        reply_fields = routing.route_target.reply_fields
        self._send(ext_proc.with_fields(Part.RESPONSE_HEADERS, tuple(reply_fields)))

    def _move_to_served(self, request: Message, now: float) -> None:
        """The proxy may have gone to another endpoint than the first, which has failed then."""
        served = ext_proc.served_by(request)
        if served is None or self._routing is None or self._endpoint is None:
            return
        over_grpc = self._routing.over_grpc
        if served == address_of(self._endpoint, over_grpc=over_grpc):
            return
        self._picker.metrics.served_elsewhere += 1
        at = at_address(self._routing.route_target.engine, served, over_grpc=over_grpc)
        if at is not None:
            self._endpoint.breaker.failed(now)
            self._leave()
            self._count_at(at, now)

    def _observe(self, request: Message, fields: dict[bytes, bytes], now: float) -> None:
        """Learn of the endpoint from the head of its reply."""
        assert self._routing is not None and self._endpoint is not None
        endpoint = self._endpoint
        details = ext_proc.attribute_of(request, _CODE_DETAILS)
        if details is not None:
            is_its_own = details == _VIA_UPSTREAM
        else:
            is_its_own = self._status != 503 or _UPSTREAM_TIME in fields
        if not is_its_own:
            endpoint.breaker.failed(now)
            self._is_reached = False
            return
        endpoint.observe_latency(now - self._picked_at)
        if self._admission is not None and self._status < 500:
            self._admission.replied(endpoint, now - self._picked_at, now)
        if endpoint.engine.load.source == "orca" and (report := fields.get(_ORCA)) is not None:
            endpoint.observe_load(read_orca(report))

    def _take_reply_body(self, request: Message, body: Message) -> None:
        data, ended = body.body, body.end_of_stream
        self._sizes[1] += len(data)
        if self._modes[1] is BodyMode.FULL_DUPLEX_STREAMED:
            for piece in ext_proc.pieces(Part.RESPONSE_BODY, data, ended):
                self._send(piece)
        else:
            self._send(ext_proc.go_on(Part.RESPONSE_BODY))
        if self._may_refuse:
            self._refusal += data
            if len(self._refusal) > _MAX_REFUSAL_BYTES:
                self._may_refuse, self._refusal = False, b""
            elif ended or self._modes[1].is_whole:
                self._learn_refusal()

    def _take_reply_trailers(self, request: Message, trailers: Message) -> None:
        for name, value in ext_proc.fields_of(trailers.trailers):
            if name == b"grpc-status":
                self._grpc_status = read_status(value)
        if self._may_refuse:
            self._learn_refusal()
        self._send(ext_proc.go_on(Part.RESPONSE_TRAILERS))

    def _learn_refusal(self) -> None:
        """Remember an endpoint that lacks the model, by its reply: without its body, by a 404 alone, since the path is
        one that engines know."""
        routing, endpoint = self._routing, self._endpoint
        self._may_refuse = False
        if routing is None or endpoint is None or routing.model is None:
            return
        is_seen = bool(self._refusal)
        if lacks_model(self._status, self._refusal) if is_seen else self._status == 404:
            routing.route_target.engine.learn_lack(routing.model, endpoint, monotonic())
        self._refusal = b""


def _mutation(routing: Routing) -> Mutation:
    """What its engine gets changed of a request, apart from its body: the path, and the fields that rules declare."""
    engine = routing.route_target.engine
    if not engine.extra_names and routing.path is None and not routing.removed:  # mostly
        return Mutation()
    fields = list(engine.extra_fields)
    declared = {name for name, _ in fields}
    removed = [*routing.removed, *(name for name in engine.extra_names if name not in declared)]
    if routing.path is not None:
        fields.append((b":path", routing.path))
    return Mutation(fields, removed)


_STEPS: dict[Part, Callable[[ProxyRequest, Message, Message], None]] = {
    Part.REQUEST_HEADERS: ProxyRequest._take_head,
    Part.REQUEST_BODY: ProxyRequest._take_body,
    Part.REQUEST_TRAILERS: ProxyRequest._take_trailers,
    Part.RESPONSE_HEADERS: ProxyRequest._take_reply_head,
    Part.RESPONSE_BODY: ProxyRequest._take_reply_body,
    Part.RESPONSE_TRAILERS: ProxyRequest._take_reply_trailers,
}
