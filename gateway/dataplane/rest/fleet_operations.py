"""Operations on the fleet: answered here, gathered from many endpoints, or sent to all of them.

Unlike a load balancer, which sends a `load` to one replica, each operation reaches all endpoints that it concerns. The
reply is one that a client of a single Triton reads.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from time import time
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

import orjson

from gateway.config.operation_access import CONTROL_OPERATIONS
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client
from gateway.dataplane.context.local_handler import LocalHandler
from gateway.dataplane.context.local_replies import JSON, body_too_long, error_reply
from gateway.dataplane.context.prepared_head import no_route
from gateway.dataplane.context.region_owner import client_address, is_own_address, region_owner
from gateway.dataplane.rest.model_list import list_models, one_model
from gateway.dataplane.rest.region_operations import OwnRegions, RegionPath, Registration, without_code
from gateway.observability.audit_record import MAX_BODY_BYTES, AuditRecord
from gateway.protocol.conversion.errors import error_json
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.feedback import read_rating
from gateway.protocol.merge_replies import merge_index, merge_regions, merge_statistics
from gateway.protocol.operations import TRITON_VERSION, LlmApi, Operation
from gateway.protocol.principal import tenant_of
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.endpoint_client import HttpReply, fetch
from gateway.upstream.engine import Engine
from gateway.wire.http1.head import Field

_log = logging.getLogger(__name__)

EXTENSIONS = [
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
]

# Loading a model can take minutes; the engine's own timeout is about inference.
_CONTROL_TIMEOUT_SECONDS = 600.0
# But of a load, which may bring a model's files: each endpoint gets a copy.
_MAX_BODY_BYTES = 64 * 1024


# Fields of the client that say how it sends its body and takes the reply; the gateway reads both.
_OF_BODY = frozenset({b"accept-encoding", b"content-length", b"inference-header-content-length", b"te"})

# A query: the engine, its endpoint, and the request's target there.
Question = tuple[Engine, Endpoint, bytes]


class AggregatedReply(NamedTuple):
    """A whole reply; `reason` names the kind of a failure."""

    status: int
    body: bytes = b""
    fields: Sequence[Field] = ()
    content_type: str = JSON
    reason: str = ""


class FleetOperation(LocalHandler):
    """Answers one operation on the fleet; its body is short, so it is read whole first."""

    def __init__(self, client: Client, request: Request) -> None:
        super().__init__(client, request)
        self._pieces: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        self._names_engines = client.plane.settings.name_decision

    def body_received(self, data: bytes, ended: bool) -> None:
        self._pieces.append(data)
        if ended:
            self._task = asyncio.get_running_loop().create_task(self._answer(b"".join(self._pieces)))
        else:
            self._client.hold_body()

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        if self._task is not None:
            self._task.cancel()
        super().client_gone(reason, status)

    async def _answer(self, body: bytes) -> None:
        try:
            if len(body) > _MAX_BODY_BYTES and self._plan.call.operation is not Operation.LOAD:
                raise body_too_long(_MAX_BODY_BYTES, "of such an operation, which each endpoint gets")
            answer = await _ANSWERS[self._plan.call.operation](self, body)
        except GatewayError as error:
            answer = _refused(error, self._plan.api)
        except asyncio.CancelledError:  # engines may have done it
            self._audit(body, ErrorKind.CANCELLED.status.http)
            raise
        except Exception:
            _log.exception("cannot answer %s", self._plan)
            failure = GatewayError(ErrorKind.INTERNAL, "the gateway failed to answer; its log says why")
            answer = _refused(failure, self._plan.api)
        self._audit(body, answer.status)
        self._respond(*answer)

    def _audit(self, body: bytes, status: int) -> None:
        """Have an operation that changes engines in the audit."""
        plan, client = self._plan, self._client
        if plan.call.operation not in CONTROL_OPERATIONS or plan.head.method != "POST":
            return
        method, target = plan.request_line
        principal = plan.principal
        client.plane.on_audited(
            AuditRecord(
                time=time(),
                principal=" ".join(filter(None, (principal.tenant, principal.key))) if principal is not None else "",
                peer=client.peer,
                protocol=plan.facts.protocol,
                method=method,
                target=target,
                body=body[:MAX_BODY_BYTES],
                num_body_bytes=len(body),
                status=status,
            )
        )

    # Answered here

    async def _metadata(self, body: bytes) -> AggregatedReply:
        text = {"name": self._client.plane.settings.id, "version": TRITON_VERSION, "extensions": EXTENSIONS}
        return AggregatedReply(200, orjson.dumps(text))

    async def _live(self, body: bytes) -> AggregatedReply:
        return self._health("live", True)

    def _health(self, name: str, value: bool) -> AggregatedReply:
        """As Triton, or with the V2 protocol's body for clients that accept JSON by name."""
        status = 200 if value else 400
        if b"application/json" in (self._request.value(b"accept") or b""):
            return AggregatedReply(status, orjson.dumps({name: value}))
        return AggregatedReply(status, content_type="text/plain")

    async def _models(self, body: bytes) -> AggregatedReply:
        answer = list_models if self._plan.call.model is None else one_model
        return AggregatedReply(200, await answer(self._plan, self._names_engines))

    async def _ready(self, body: bytes) -> AggregatedReply:
        plane = self._client.plane
        is_ready = plane.snapshot.is_ready(plane.settings.ready_when) and not plane.is_draining
        return self._health("ready", is_ready)

    async def _feedback(self, body: bytes) -> AggregatedReply:
        """A client's rating of a reply; engines do not get it."""
        is_verified = self._plan.snapshot.identification is not None
        rating = read_rating(body, tenant_of(self._plan.principal) if is_verified else None)
        if await self._client.plane.feedback.give(rating, self._plan.snapshot):
            return AggregatedReply(200, b'{"counted":true}')
        what = f"request {rating.request_id!r}" if rating.session is None else f"session {rating.session!r}"
        text = f"no experiment knows {what}: it took part in none, or is too long ago"
        raise GatewayError(ErrorKind.NOT_FOUND, text)

    # Gathered from all, as far as they answer

    async def _statistics(self, body: bytes) -> AggregatedReply:
        reply = _merged(await self._query_available(self._everywhere(), body), merge_statistics, dict)
        return self._without_hidden(reply, "model_stats")

    async def _model_statistics(self, body: bytes) -> AggregatedReply:
        return _merged(await self._query_available(self._where_the_model_is(), body), merge_statistics, dict)

    async def _index(self, body: bytes) -> AggregatedReply:
        reply = _merged(await self._query_available(self._everywhere(), body), merge_index, list)
        return self._without_hidden(reply)

    def _without_hidden(self, reply: AggregatedReply, field: str = "") -> AggregatedReply:
        """A reply with a list of models, in this field where it is a map, without those that the caller may not use."""
        table, facts = self._plan.snapshot.table, self._plan.facts
        if not table.restricts or reply.status != 200:
            return reply
        try:
            whole = orjson.loads(reply.body)
            models = whole[field] if field else whole
            models[:] = [
                each
                for each in models
                if not table.hides(replace(facts, model=each["name"], operation=Operation.INFER))
            ]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "no engine answered as the V2 protocol says") from error
        return reply._replace(body=orjson.dumps(whole))

    # Sent to all, and done only when all have done it

    async def _control_model(self, body: bytes) -> AggregatedReply:
        return _agreed(await self._query(self._where_the_model_is(), body), self._names_engines)

    async def _settings(self, body: bytes) -> AggregatedReply:
        """Trace and log settings: one server's are read, all servers' are written."""
        of_model = self._plan.call.operation is Operation.MODEL_TRACE
        questions = self._where_the_model_is() if of_model else self._everywhere()
        if self._plan.head.method == "POST":
            return _agreed(await self._query(questions, body), self._names_engines)
        answers = await self._query_available(questions, body)
        return _passed_on(answers[0])

    async def _shared_memory(self, body: bytes) -> AggregatedReply:
        """Shared memory is shared on one host: only engines here can map a region."""
        questions = [question for question in self._everywhere() if is_on_this_host(question[1].url)]
        if not questions:
            raise GatewayError(
                ErrorKind.BAD_REQUEST, "no engine runs on the gateway's host, so none can map shared memory"
            )
        path = RegionPath.of(self._plan.head.target)
        by_grpc = self._plan.facts.protocol == "grpc"
        name = path.name(by_grpc=by_grpc)
        if path.action == "register":
            self._check_client_host()
            if not by_grpc:
                path.check_region()
            await self._client.plane.share_memory()
        own = OwnRegions(self._client.plane.region_names, self._owner)
        if path.action != "register" and not name:
            every = path.action == "unregister"
            return await self._unregister_all(questions, path, own) if every else await self._list(questions, path, own)
        code = own.code(name) if name else ""
        at_engines = _at(questions, path.target(path.region + code))
        if path.action == "status":
            reply = _merged(await self._query_available(at_engines, body), merge_regions, list)
        elif path.action == "register":
            reply = await self._register(questions, path, own, code, body)
        else:
            reply = _agreed(await self._query(at_engines, body), self._names_engines)
        return reply._replace(body=without_code(reply.body, code))

    async def _register(
        self, questions: list[Question], path: RegionPath, own: OwnRegions, code: str, body: bytes
    ) -> AggregatedReply:
        """Register an object that no other client has. Who has registered it is asked once more afterwards: of two
        clients that register one at the same time, the later one at least sees the other.

        Raises: GatewayError.
        """
        registration = Registration.read(path, body, self._client.plane.json_bounds)
        if failures := await self._check_object(questions, path, own, registration.key):
            return _agreed(failures, self._names_engines)
        # Whether the client stays or not: one that leaves would keep another's object.
        registering = asyncio.ensure_future(self._register_free(questions, path, own, code, registration))
        registering.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(registering)

    async def _register_free(
        self, questions: list[Question], path: RegionPath, own: OwnRegions, code: str, registration: Registration
    ) -> AggregatedReply:
        """Register an object that nobody had, and take that back unless it is known that nobody else has it."""
        at_engines = path.region + code
        answers = await self._query(_at(questions, path.target(at_engines)), registration.body)
        reply = _agreed(answers, self._names_engines)
        if reply.status != 200:
            return reply
        is_its_own = False
        try:
            failures = await self._check_object(questions, path, own, registration.key)
            is_its_own = not failures
        finally:
            if not is_its_own:
                await self._query(_at(questions, path.target(at_engines, "unregister")), b"")
        return reply if is_its_own else _agreed(failures, self._names_engines)

    @property
    def _owner(self) -> str:
        return region_owner(self._plan.principal, self._address)

    @property
    def _address(self) -> str:
        client = self._client
        forwarded_for = self._request.value(b"x-forwarded-for")
        return client_address(client.peer, forwarded_for, trust_forwarded=client.plane.settings.trust_forwarded)

    def _check_client_host(self) -> None:
        """Raises: GatewayError(FORBIDDEN) where the client of another host may not name memory of this one."""
        access, is_grpc = self._client.plane.settings.operation_access, self._plan.facts.protocol == "grpc"
        if not is_own_address(self._address) and not access.shares_memory(is_grpc=is_grpc):
            text = f"shared memory is memory of the gateway's host, and {self._address} is another host"
            raise GatewayError(ErrorKind.FORBIDDEN, f"{text}: --allow-control shared-memory lets it register regions")

    async def _check_object(self, questions: list[Question], path: RegionPath, own: OwnRegions, key: str) -> list[Any]:
        """The failures of engines that do not say who has registered the object. Raises: GatewayError(FORBIDDEN) where
        it is another client."""
        failures = []
        for answer in await self._query(_at(questions, path.target("", "status")), b"", "GET") if key else ():
            if isinstance(answer, GatewayError) or not answer.is_good:
                failures.append(answer)
            elif own.is_taken(key, answer.body):
                raise GatewayError(ErrorKind.FORBIDDEN, f"shared memory object '{key}' is registered by another client")
        return failures[:1]

    async def _list(self, questions: list[Question], path: RegionPath, own: OwnRegions) -> AggregatedReply:
        answers = await self._query_available(questions, b"")
        if not answers[0].is_good:
            return _passed_on(answers[0])
        return AggregatedReply(200, orjson.dumps(merge_regions(own.of(answer.body) for answer in answers)))

    async def _unregister_all(self, questions: list[Question], path: RegionPath, own: OwnRegions) -> AggregatedReply:
        """Unregister the client's own regions alone."""
        ends: list[Question] = []
        safe = "" if self._plan.facts.protocol == "grpc" else "%"  # as `RegionPath.name` reads it
        statuses = await self._query(_at(questions, path.target("", "status")), b"", "GET")
        for question, status in zip(questions, statuses, strict=True):
            if not isinstance(status, HttpReply) or not status.is_good:
                return _agreed([status], self._names_engines)
            ends += [(*question[:2], path.target(quote(name, safe=safe))) for name in own.names_at_engine(status.body)]
        reply = _agreed(await self._query(ends, b""), self._names_engines) if ends else AggregatedReply(200)
        return reply if reply.status != 200 else reply._replace(body=b"")

    # Queries

    def _everywhere(self) -> list[Question]:
        engines = [engine for engine in self._plan.snapshot.engines.values() if engine.spec.protocol.is_v2]
        target = self._plan.head.target
        return _once_each([(engine, endpoint, target) for engine in engines for endpoint in engine.endpoints])

    def _where_the_model_is(self) -> list[Question]:
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

    async def _query(self, questions: list[Question], body: bytes, method: str = "") -> list[HttpReply | GatewayError]:
        """Query all at once, by the client's method or another; the result of one that cannot be reached is the
        error."""
        method = method or ("GET" if self._plan.without_body else self._plan.head.method)
        return list(await asyncio.gather(*[self._query_one(question, body, method) for question in questions]))

    async def _query_one(self, question: Question, body: bytes, method: str) -> HttpReply | GatewayError:
        engine, endpoint, target = question
        timeout = _CONTROL_TIMEOUT_SECONDS if method == "POST" else engine.spec.timeout
        by_grpc = self._plan.facts.protocol == "grpc"  # so that what an engine restricts by protocol stays restricted
        fields = self._fields_for(engine)
        try:
            return await fetch(endpoint, method, target, body, fields=fields, timeout=timeout, by_grpc=by_grpc)
        except GatewayError as error:
            if not self._names_engines:
                return error.without_names(engine.name)
            return error.at(f" (engine '{engine.name}', endpoint {endpoint.url})")

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

    async def _query_available(self, questions: list[Question], body: bytes) -> list[HttpReply]:
        """The good answers; where there is none, the first refusal, or else the first failure."""
        answers = await self._query(questions, body)
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


def is_on_this_host(url: str) -> bool:
    """Whether an endpoint's address is this machine's own, so that both can map the same memory."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", socket.gethostname()) or is_own_address(host)


def _at(questions: list[Question], target: bytes) -> list[Question]:
    return [(engine, endpoint, target) for engine, endpoint, _ in questions]


def _refused(error: GatewayError, api: LlmApi | None) -> AggregatedReply:
    return AggregatedReply(*error_reply(error, api), reason=error.kind.value)


def _merged(answers: list[HttpReply], merge: Callable[[list[Any]], Any], shape: type) -> AggregatedReply:
    """One answer from those that have its shape; a single one stays as it is, to the byte."""
    if len(answers) == 1:
        return _passed_on(answers[0])
    values = [value for answer in answers if isinstance(value := _json_of(answer), shape)]
    if not values:
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "no engine answered as the V2 protocol says")
    return AggregatedReply(200, orjson.dumps(merge(values)))


def _json_of(answer: HttpReply) -> Any:
    """What an endpoint answered; None where that is not JSON."""
    try:
        return orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        return None


def _agreed(answers: list[HttpReply | GatewayError], names_engines: bool) -> AggregatedReply:
    """Success where all succeeded, else the first failure, and how many succeeded."""
    failures = [answer for answer in answers if isinstance(answer, GatewayError) or not answer.is_good]
    if not failures:
        return _passed_on(next(answer for answer in answers if isinstance(answer, HttpReply)))
    failure = failures[0]
    if len(answers) == 1 and isinstance(failure, HttpReply):
        return _passed_on(failure)
    done = f"; done on {len(answers) - len(failures)} of {len(answers)} endpoints" if len(answers) > 1 else ""
    if isinstance(failure, GatewayError):
        raise GatewayError(failure.kind, failure.message + done)
    where = f" (endpoint {failure.endpoint.url}{done})" if names_engines else done
    text = _error_text(failure) + where
    return AggregatedReply(failure.status, error_json(text), _code_of(failure))


def _error_text(failure: HttpReply) -> str:
    try:
        return str(orjson.loads(failure.body)["error"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return failure.body.decode("utf-8", "replace") or f"status {failure.status}"


def _passed_on(answer: HttpReply) -> AggregatedReply:
    return AggregatedReply(answer.status, answer.body, _code_of(answer), answer.content_type)


def _code_of(answer: HttpReply) -> Sequence[Field]:
    """The status of the engine's gRPC for a client of gRPC: REST has fewer."""
    return () if answer.code is None else ((b"grpc-status", b"%d" % answer.code),)


_ANSWERS: dict[Operation, Callable[[FleetOperation, bytes], Awaitable[AggregatedReply]]] = {
    Operation.SERVER_METADATA: FleetOperation._metadata,
    Operation.SERVER_LIVE: FleetOperation._live,
    Operation.SERVER_READY: FleetOperation._ready,
    Operation.SERVER_STATS: FleetOperation._statistics,
    Operation.MODEL_STATS: FleetOperation._model_statistics,
    Operation.REPOSITORY_INDEX: FleetOperation._index,
    Operation.LOAD: FleetOperation._control_model,
    Operation.UNLOAD: FleetOperation._control_model,
    Operation.MODEL_TRACE: FleetOperation._settings,
    Operation.TRACE: FleetOperation._settings,
    Operation.LOGGING: FleetOperation._settings,
    Operation.MODEL_LIST: FleetOperation._models,
    Operation.SHARED_MEMORY: FleetOperation._shared_memory,
    Operation.FEEDBACK: FleetOperation._feedback,
}
