"""Reads request heads where the rules have `auth:`.

The fields that say who the caller is are taken out of a head. A verified principal is part of the plan, and its tenant
stands in the plan's fields as clients' tenant headers do without `auth:`, for rules, limits and engines.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import time

from gateway.auth.identity import Identity
from gateway.config.settings import Settings
from gateway.dataplane.context.head_reader import (
    DROPPED,
    IDENTITY,
    MAX_PLANS,
    SHARED,
    HeadReader,
    Request,
    bad_request,
    fields_of,
)
from gateway.dataplane.context.identification import OPEN_OPERATIONS
from gateway.dataplane.context.prepared_head import PreparedHead
from gateway.dataplane.context.snapshot import Snapshot
from gateway.protocol.principal import Principal, principal_of_mark
from gateway.wire.http1.head import Field, RequestHead, head_of_lines, read_request_head
from gateway.wire.memo import Memo


class AuthenticatedRequest(Request):
    """A request whose caller is known, or may be anonymous, until `expires_at`."""

    __slots__ = ("expires_at",)

    expires_at: float


class AuthenticatedHeadReader(HeadReader):
    """Reads heads by one snapshot of the rules, which has an `Identification`."""

    _authenticates = True

    def __init__(self, snapshot: Snapshot, settings: Settings) -> None:
        assert snapshot.identification is not None
        self._identification = snapshot.identification
        self._plans_by_mark = Memo(partial(_plan_of_mark, snapshot=snapshot, settings=settings), MAX_PLANS)
        self._plans_of_fields_by_mark = Memo(partial(_plan_of_fields, snapshot=snapshot, settings=settings), MAX_PLANS)
        super().__init__(snapshot, settings)

    def __call__(self, head: bytes) -> Request:
        request = self._requests(head)
        if request.expires_at > time():  # type: ignore[attr-defined]
            return request
        return self._read(head)

    def of_fields(self, method: bytes, target: bytes, fields: list[Field]) -> Request:
        shared: list[bytes] = [method, target]
        others: list[Field] = []
        claimed: list[Field] = []
        for field in fields:
            kind = self._kinds[field[0]]
            if kind is SHARED:
                shared += field
            elif kind is IDENTITY:
                claimed.append(field)
            elif kind is not DROPPED:
                others.append(field)
        identity, forwarded = self._identification.find(claimed)
        plan = self._plans_of_fields_by_mark(b"\0".join((identity.mark, *shared)))
        others += forwarded
        return self._made(identity, plan, partial(AuthenticatedRequest.of_fields, fields=others))

    def _read_identified(self, head: bytes, shared: list[bytes], own: list[Field], passed: list[bytes]) -> Request:
        names = self._identification.fields
        identity, forwarded = self._identification.find([field for field in own if field[0] in names])
        own = [field for field in own if field[0] not in names]
        plan = self._plans_by_mark(b"\r\n".join((identity.mark, *shared)))
        if plan.head.names_fields_of_this_hop:
            return self._read_strictly(head)
        passed += [b"%b: %b" % field for field in forwarded]
        passed.append(b"")
        lines = b"\r\n".join(passed)
        return self._made(identity, plan, partial(AuthenticatedRequest, own=own, lines=lines))

    def _read_strictly(self, head: bytes) -> Request:
        parsed = read_request_head(head)
        names = self._identification.fields
        identity, forwarded = self._identification.find([field for field in parsed.fields if field[0] in names])
        parsed.fields = [field for field in parsed.fields if field[0] not in names] + forwarded
        plan = PreparedHead(parsed, self._snapshot, self._settings, principal=identity.principal)
        return self._made(identity, plan, partial(self._strict, AuthenticatedRequest))

    def _made(self, identity: Identity, plan: PreparedHead, make: Callable[[PreparedHead], Request]) -> Request:
        """The request of this caller. Raises: GatewayError(BAD_REQUEST)."""
        if identity.error is not None and plan.call.operation not in OPEN_OPERATIONS:
            plan = plan.refused(identity.error)
        try:
            request = make(plan)
        except ValueError as error:
            raise bad_request(error) from error
        assert isinstance(request, AuthenticatedRequest)
        request.expires_at = identity.expires_at
        return request


def _plan_of_mark(key: bytes, snapshot: Snapshot, settings: Settings) -> PreparedHead:
    """The plan of heads with these lines of the kind SHARED, behind the principal's mark.

    Raises: GatewayError(BAD_REQUEST).
    """
    mark, request_line, *lines = key.split(b"\r\n")
    try:
        head = head_of_lines(request_line, lines)
        return PreparedHead(head, snapshot, settings, principal=_principal(mark))
    except ValueError as error:
        raise bad_request(error) from error


def _plan_of_fields(key: bytes, snapshot: Snapshot, settings: Settings) -> PreparedHead:
    mark, method, target, *rest = key.split(b"\0")
    head = RequestHead(method, target, fields_of(rest), False)
    return PreparedHead(head, snapshot, settings, principal=_principal(mark))


def _principal(mark: bytes) -> Principal | None:
    return principal_of_mark(mark) if mark else None
