"""Evaluates experiments as flags for applications: `POST /ofrep/v1/evaluate/flags`, see `protocol.ofrep`.

A session keeps the arm that an application is told: its requests get it, whatever the weights are by then. Its first
request is its exposure, as that of a session that nobody asked about, unless the context asks for it at once: an
application asks for all flags and shows few, and a unit that sends nothing has no outcome. A first request after a
change of the shares is not counted as an exposure, since the shares that it was drawn with are no longer expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import time
from typing import Any
from zlib import crc32

import orjson

from gateway.auth.identity import unauthenticated
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.local_replies import NOT_MODIFIED
from gateway.dataplane.rest.aggregated_reply import AggregatedReply
from gateway.observability.arm_stats import NUM_BUCKETS
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.ofrep import FlagContext, FlagError, FlagErrorCode, is_unchanged, read_context, write_flags
from gateway.protocol.operations import flag_key
from gateway.protocol.sequence import name_of
from gateway.routing.assignment import encoded, settled_token
from gateway.routing.flags import AssignedArm, ExperimentFlag, FlagUnit
from gateway.sessions.session import Session


async def evaluate_flags(plane: DataPlane, request: Request, body: bytes) -> AggregatedReply:
    """The reply to an application that asks for one flag, or for all that its caller may evaluate.

    Raises: GatewayError (UNAUTHENTICATED, FORBIDDEN, BODY_TOO_LARGE).
    """
    evaluation = _FlagEvaluation(plane, request)
    key = flag_key(request.plan.head.target.partition(b"?")[0].decode("latin-1"))
    try:
        context = read_context(body)
        if key:
            return AggregatedReply(200, orjson.dumps(await evaluation.one(key, context)))
        return await evaluation.all(context)
    except FlagError as error:
        reason = _REASONS[error.status]
        fields = [(b"x-pointsman-reason", reason.encode("ascii"))]
        return AggregatedReply(error.status, orjson.dumps(error.json(key or None)), fields, reason=reason)


_REASONS = {400: ErrorKind.BAD_REQUEST.value, 404: ErrorKind.NOT_FOUND.value}


class _FlagEvaluation:
    """The flags of one request."""

    def __init__(self, plane: DataPlane, request: Request) -> None:
        self._plane = plane
        self._request = request
        self._plan = request.plan
        self._flags = request.plan.snapshot.flags
        self._names_engines = plane.settings.name_decision

    async def one(self, key: str, context: FlagContext) -> dict[str, Any]:
        """Raises: FlagError, GatewayError (UNAUTHENTICATED, FORBIDDEN)."""
        flag = self._flags.find(key)
        principal = self._plan.principal
        if not flag.admits(principal):
            if principal is None:
                raise unauthenticated(f"experiment '{key}' needs an API key")
            raise GatewayError(ErrorKind.FORBIDDEN, f"this caller may not use experiment '{key}'")
        return await self._evaluate(flag, context)

    async def all(self, context: FlagContext) -> AggregatedReply:
        """Raises: FlagError where no flag has a unit."""
        found: list[dict[str, Any]] = []
        errors: list[FlagError] = []
        for flag in self._flags.admitting(self._plan.principal):
            try:
                found.append(await self._evaluate(flag, context))
            except FlagError as error:
                errors.append(error)
                found.append(error.json(flag.key))
        if errors and _are_all(errors, len(found), FlagErrorCode.TARGETING_KEY_MISSING):
            raise errors[0]
        body, tag = write_flags(found)
        unchanged = is_unchanged(self._request.value(b"if-none-match"), tag)
        return AggregatedReply(NOT_MODIFIED if unchanged else 200, body, [(b"etag", tag)])

    async def _evaluate(self, flag: ExperimentFlag, context: FlagContext) -> dict[str, Any]:
        unit = flag.unit(context, self._plan.principal)
        forced = self._plan.facts.forced
        if unit.session is None:
            assigned = flag.assign(unit, None, forced)
        else:
            wait = flag.split.spec.lookup_timeout
            known = await self._plane.affinity.book.load(name_of(unit.session), flag.key, wait)
            assigned = flag.assign(unit, known.arms.get(flag.key), forced)
            if assigned.token is not None:
                assigned = await self._kept(flag, unit, known, assigned, is_exposure=context.is_exposure)
        return flag.value(assigned, names_engines=self._names_engines).json()

    async def _kept(
        self, flag: ExperimentFlag, unit: FlagUnit, known: Session, assigned: AssignedArm, *, is_exposure: bool
    ) -> AssignedArm:
        """The arm that the session keeps from now on: the one assigned, unless another worker was faster."""
        book, token = self._plane.affinity.book, assigned.token
        assert token is not None
        is_reserved = settled_token(token) != token
        if assigned.is_kept and not (is_reserved and is_exposure):
            if is_reserved:
                known.fresh_at = 0.0  # its first request may come to another worker, which then settles the arm
            return assigned
        exposes = is_exposure and flag.split.is_reserved_now(token)
        stored = settled_token(token) if is_exposure else token
        replaces = known.arms.get(flag.key) is not None
        found = await book.reserve_arm(known, flag.key, stored, time(), replaces=replaces, settles=is_exposure)
        if found == stored:
            if exposes:
                bucket = crc32(encoded(unit.text)) % NUM_BUCKETS
                self._plane.metrics.arms.meter(flag.key, assigned.arm).of_bucket(bucket).exposed()
            return assigned
        return flag.assign(unit, found, None)


def _are_all(errors: Sequence[FlagError], number: int, code: FlagErrorCode) -> bool:
    return len(errors) == number and all(error.code is code for error in errors)
