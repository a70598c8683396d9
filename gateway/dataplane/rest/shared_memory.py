"""Operations on shared memory, sent to all engines that can map it: a region has one owner."""

from __future__ import annotations

import asyncio
import socket
from typing import Any
from urllib.parse import quote, urlsplit

import orjson

from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client
from gateway.dataplane.context.region_owner import client_address, is_own_address, region_owner
from gateway.dataplane.rest.aggregated_reply import AggregatedReply, agreed, merged, passed_on
from gateway.dataplane.rest.fleet import Fleet, Question
from gateway.dataplane.rest.region_operations import OwnRegions, RegionPath, Registration, without_code
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.merge_replies import merge_regions
from gateway.upstream.endpoint_client import HttpReply


class SharedMemoryOperation:
    """One operation of a client."""

    def __init__(self, client: Client, request: Request, fleet: Fleet) -> None:
        self._client = client
        self._request = request
        self._plan = request.plan
        self._fleet = fleet

    async def answer(self, body: bytes) -> AggregatedReply:
        """Shared memory is shared on one host: only engines here can map a region."""
        questions = [question for question in self._fleet.everywhere() if is_on_this_host(question[1].url)]
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
            reply = await merged(await self._fleet.query_available(at_engines, body), merge_regions, list)
        elif path.action == "register":
            reply = await self._register(questions, path, own, code, body)
        else:
            reply = agreed(await self._fleet.query(at_engines, body), self._fleet.names_engines)
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
            return agreed(failures, self._fleet.names_engines)
        # Whether the client stays or not: one that leaves would keep another's object.
        registering = asyncio.ensure_future(self._register_free(questions, path, own, code, registration))
        registering.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(registering)

    async def _register_free(
        self, questions: list[Question], path: RegionPath, own: OwnRegions, code: str, registration: Registration
    ) -> AggregatedReply:
        """Register an object that nobody had, and take that back unless it is known that nobody else has it."""
        at_engines = path.region + code
        answers = await self._fleet.query(_at(questions, path.target(at_engines)), registration.body)
        reply = agreed(answers, self._fleet.names_engines)
        if reply.status != 200:
            return reply
        is_its_own = False
        try:
            failures = await self._check_object(questions, path, own, registration.key)
            is_its_own = not failures
        finally:
            if not is_its_own:
                await self._fleet.query(_at(questions, path.target(at_engines, "unregister")), b"")
        return reply if is_its_own else agreed(failures, self._fleet.names_engines)

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
        for answer in await self._fleet.query(_at(questions, path.target("", "status")), b"", "GET") if key else ():
            if isinstance(answer, GatewayError) or not answer.is_good:
                failures.append(answer)
            elif own.is_taken(key, answer.body):
                raise GatewayError(ErrorKind.FORBIDDEN, f"shared memory object '{key}' is registered by another client")
        return failures[:1]

    async def _list(self, questions: list[Question], path: RegionPath, own: OwnRegions) -> AggregatedReply:
        answers = await self._fleet.query_available(questions, b"")
        if not answers[0].is_good:
            return passed_on(answers[0])
        return AggregatedReply(200, orjson.dumps(merge_regions(own.of(answer.body) for answer in answers)))

    async def _unregister_all(self, questions: list[Question], path: RegionPath, own: OwnRegions) -> AggregatedReply:
        """Unregister the client's own regions alone."""
        ends: list[Question] = []
        safe = "" if self._plan.facts.protocol == "grpc" else "%"  # as `RegionPath.name` reads it
        statuses = await self._fleet.query(_at(questions, path.target("", "status")), b"", "GET")
        for question, status in zip(questions, statuses, strict=True):
            if not isinstance(status, HttpReply) or not status.is_good:
                return agreed([status], self._fleet.names_engines)
            ends += [(*question[:2], path.target(quote(name, safe=safe))) for name in own.names_at_engine(status.body)]
        reply = agreed(await self._fleet.query(ends, b""), self._fleet.names_engines) if ends else AggregatedReply(200)
        return reply if reply.status != 200 else reply._replace(body=b"")


def is_on_this_host(url: str) -> bool:
    """Whether an endpoint's address is this machine's own, so that both can map the same memory."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", socket.gethostname()) or is_own_address(host)


def _at(questions: list[Question], target: bytes) -> list[Question]:
    return [(engine, endpoint, target) for engine, endpoint, _ in questions]
