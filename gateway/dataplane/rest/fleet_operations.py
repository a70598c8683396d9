"""Operations on the fleet: answered here, gathered from many endpoints, or sent to all of them.

Unlike a load balancer, which sends a `load` to one replica, each operation reaches all endpoints that it concerns. The
reply is one that a client of a single Triton reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from time import time

import orjson

from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client
from gateway.dataplane.context.local_handler import LocalHandler
from gateway.dataplane.context.local_replies import body_too_long, error_reply
from gateway.dataplane.context.readiness import is_ready
from gateway.dataplane.rest.aggregated_reply import AggregatedReply, agreed, merged, passed_on
from gateway.dataplane.rest.flag_evaluation import evaluate_flags
from gateway.dataplane.rest.fleet import Fleet
from gateway.dataplane.rest.known_indexes import known_indexes, merge_ready, wants_ready
from gateway.dataplane.rest.model_list import list_models, one_model
from gateway.dataplane.rest.shared_memory import SharedMemoryOperation
from gateway.observability.audit_record import MAX_BODY_BYTES, AuditRecord
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.feedback import read_rating
from gateway.protocol.merge_replies import merge_index, merge_statistics
from gateway.protocol.operations import TRITON_VERSION, LlmApi, Operation
from gateway.protocol.principal import tenant_of
from gateway.protocol.restricted_apis import CONTROL_OPERATIONS
from gateway.upstream.endpoint_client import HttpReply

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

# Of each operation but a load, which may bring a model's files: each endpoint gets a copy.
_MAX_BODY_BYTES = 64 * 1024


class FleetOperation(LocalHandler):
    """Answers one operation on the fleet; its body is short, so it is read whole first."""

    def __init__(self, client: Client, request: Request) -> None:
        super().__init__(client, request)
        self._pieces: list[bytes] = []
        self._task: asyncio.Task[None] | None = None
        self._fleet = Fleet(client, request, self._request_id)

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
        return AggregatedReply(200, await answer(self._plan, self._fleet.names_engines))

    async def _ready(self, body: bytes) -> AggregatedReply:
        return self._health("ready", is_ready(self._client.plane))

    async def _feedback(self, body: bytes) -> AggregatedReply:
        """A client's rating of a reply; engines do not get it."""
        is_verified = self._plan.snapshot.identification is not None
        rating = read_rating(body, tenant_of(self._plan.principal) if is_verified else None)
        if await self._client.plane.feedback.give(rating, self._plan.snapshot):
            return AggregatedReply(200, b'{"counted":true}')
        what = f"request {rating.request_id!r}" if rating.session is None else f"session {rating.session!r}"
        text = f"no experiment knows {what}: it took part in none, or is too long ago"
        raise GatewayError(ErrorKind.NOT_FOUND, text)

    async def _flags(self, body: bytes) -> AggregatedReply:
        """The arms of an application's user, in OpenFeature's protocol."""
        return await evaluate_flags(self._client.plane, self._request, body)

    # Gathered from all, as far as they answer

    async def _statistics(self, body: bytes) -> AggregatedReply:
        reply = await merged(await self._fleet.query_available(self._fleet.everywhere(), body), merge_statistics, dict)
        return self._without_hidden(reply, "model_stats")

    async def _model_statistics(self, body: bytes) -> AggregatedReply:
        return await merged(
            await self._fleet.query_available(self._fleet.where_the_model_is(), body), merge_statistics, dict
        )

    async def _index(self, body: bytes) -> AggregatedReply:
        questions, ready = self._fleet.everywhere(), wants_ready(body)
        known: list[HttpReply] = []
        if ready is not None:
            by_grpc = self._plan.facts.protocol == "grpc"
            known, questions = await known_indexes(self._client.plane, questions, by_grpc)
        answers = [*known, *await self._fleet.query_good(questions, body)] if known else []
        answers = answers or await self._fleet.query_available(questions, body)
        reply = await merged(answers, merge_ready if ready else merge_index, list, as_it_is=not (known and ready))
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

    async def _shared_memory(self, body: bytes) -> AggregatedReply:
        return await SharedMemoryOperation(self._client, self._request, self._fleet).answer(body)

    async def _control_model(self, body: bytes) -> AggregatedReply:
        questions = self._fleet.where_the_model_is()
        replies = await self._fleet.query(questions, body)
        await self._client.plane.models_changed({(engine.name, endpoint.url) for engine, endpoint, _ in questions})
        return agreed(replies, self._fleet.names_engines)

    async def _settings(self, body: bytes) -> AggregatedReply:
        """Trace and log settings: one server's are read, all servers' are written."""
        of_model = self._plan.call.operation is Operation.MODEL_TRACE
        questions = self._fleet.where_the_model_is() if of_model else self._fleet.everywhere()
        if self._plan.head.method == "POST":
            return agreed(await self._fleet.query(questions, body), self._fleet.names_engines)
        answers = await self._fleet.query_available(questions, body)
        return passed_on(answers[0])


def _refused(error: GatewayError, api: LlmApi | None) -> AggregatedReply:
    return AggregatedReply(*error_reply(error, api), reason=error.kind.value)


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
    Operation.FLAGS: FleetOperation._flags,
}
