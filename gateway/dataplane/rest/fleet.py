"""Queries to the fleet: one request to many endpoints at once."""

from __future__ import annotations

import asyncio
from time import monotonic

from gateway.dataplane.attempts.trace_fields import fields_with_trace
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client
from gateway.dataplane.context.request_refusals import no_route
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.endpoint_client import HttpReply, fetch
from gateway.upstream.engine import Engine
from gateway.wire.http1.head import Field

# Loading a model can take minutes; the engine's own timeout is about inference.
_CONTROL_TIMEOUT_SECONDS = 600.0

# Of one endpoint's reply: 10,000 models' statistics have 15 MB.
_MAX_REPLY_BYTES = 16 * 1024 * 1024

# Fields of the client that say how it sends its body and takes the reply; the gateway reads both.
_OF_BODY = frozenset({b"accept-encoding", b"content-length", b"inference-header-content-length", b"te"})

# A query: the engine, its endpoint, and the request's target there.
Question = tuple[Engine, Endpoint, bytes]


class Fleet:
    """The endpoints that a client's request concerns, which it is sent to."""

    def __init__(self, client: Client, request: Request, request_id: bytes) -> None:
        self._client = client
        self._request = request
        self._request_id = request_id
        self._plan = request.plan
        self.names_engines = client.plane.settings.name_decision

    def everywhere(self) -> list[Question]:
        engines = [engine for engine in self._plan.snapshot.engines.values() if engine.spec.protocol.is_v2]
        target = self._plan.head.target
        return _once_each([(engine, endpoint, target) for engine in engines for endpoint in engine.endpoints])

    def where_the_model_is(self) -> list[Question]:
        """Every endpoint of every engine that the rules may send this model's requests to."""
        snapshot, plan = self._plan.snapshot, self._plan
        questions: list[Question] = []
        targets = snapshot.table.targets_for(plan.facts)
        for target in targets:
            engine = snapshot.engines[target.engine]
            if not engine.spec.protocol.is_v2:
                continue
            path = engine.target(plan.call, plan.head.target, target.model)
            questions += [(engine, endpoint, path) for endpoint in engine.endpoints]
        if not questions and targets:
            protocols = ", ".join(sorted({snapshot.engines[target.engine].spec.protocol.value for target in targets}))
            what = f"engines of protocol {protocols} have no '{plan.call.operation.value}' of a model"
            raise GatewayError(ErrorKind.UNSUPPORTED, what)
        if not questions:
            raise no_route(plan.facts)
        return _once_each(questions)

    async def query(self, questions: list[Question], body: bytes, method: str = "") -> list[HttpReply | GatewayError]:
        """Query all at once, by the client's method or another; the result of one that cannot be reached is the
        error."""
        method = method or ("GET" if self._plan.without_body else self._plan.head.method)
        return list(await asyncio.gather(*[self._query_one(question, body, method) for question in questions]))

    async def _query_one(self, question: Question, body: bytes, method: str) -> HttpReply | GatewayError:
        engine, endpoint, target = question
        timeout = _CONTROL_TIMEOUT_SECONDS if method == "POST" else engine.spec.timeout
        by_grpc = self._plan.facts.protocol == "grpc"  # so that what an engine restricts by protocol stays restricted
        trace, attempt, since = self._client.trace, object(), monotonic()
        fields = fields_with_trace(trace, attempt, engine, self._fields_for(engine))
        span_id = trace.span_id_of(attempt) if trace is not None else b""
        reply: HttpReply | GatewayError
        try:
            reply = await fetch(
                endpoint,
                method,
                target,
                body,
                fields=fields,
                timeout=timeout,
                by_grpc=by_grpc,
                max_bytes=_MAX_REPLY_BYTES,
            )
        except GatewayError as error:
            if self.names_engines:
                reply = error.at(f" (engine '{engine.name}', endpoint {endpoint.url})")
            else:
                reply = error.without_names(engine.name)
        if trace is not None and trace.is_sampled:
            failure, status = ("", reply.status) if isinstance(reply, HttpReply) else (reply.kind.value, 0)
            times = since, since, 0.0, monotonic()
            span = span_id, engine.name, endpoint.url, *times, status, failure, False
            trace.add([span])
        return reply

    def _fields_for(self, engine: Engine) -> list[Field]:
        """The client's fields as the engine gets them: those of a request that passes, but for those of its body; then
        the engine's own, which replace them."""
        client, plan = self._client, self._plan
        lines = (
            plan.lines_for(engine)
            + self._request.lines
            + client.forwarded_for_line
            + (b"" if plan.keeps_forwarded_proto else client.forwarded_proto_line)
        )
        split = [line.partition(b":") for line in lines.split(b"\r\n")[:-1]]
        fields = [(name.lower(), value.strip(b" \t")) for name, _, value in split]
        fields.append((b"x-request-id", self._request_id))
        replaced = _OF_BODY.union(engine.extra_names)
        return [field for field in fields if field[0] not in replaced] + engine.extra_fields

    async def query_good(self, questions: list[Question], body: bytes) -> list[HttpReply]:
        """The good answers, which may be none."""
        answers = await self.query(questions, body)
        return [answer for answer in answers if isinstance(answer, HttpReply) and answer.is_good]

    async def query_available(self, questions: list[Question], body: bytes) -> list[HttpReply]:
        """The good answers; where there is none, the first refusal, or else the first failure."""
        answers = await self.query(questions, body)
        fetched = [answer for answer in answers if isinstance(answer, HttpReply)]
        good = [answer for answer in fetched if answer.is_good]
        if good:
            return good
        if fetched:
            return fetched[:1]
        for answer in answers:
            if isinstance(answer, GatewayError):
                raise answer.at("")  # a copy: its traceback refers to `answers`, which must not refer to it
        raise GatewayError(ErrorKind.NO_HEALTHY_ENDPOINT, "the rules name no engine")


def _once_each(questions: list[Question]) -> list[Question]:
    """Each server once: engines of other limits may stand for the same one."""
    return list({(endpoint.url, target): (engine, endpoint, target) for engine, endpoint, target in questions}.values())
