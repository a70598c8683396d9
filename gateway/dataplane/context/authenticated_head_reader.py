"""Reads request heads where the rules have `auth:`.

The fields that say who the caller is are taken out of a head. A verified principal is part of the plan, and its tenant
stands in the plan's fields as clients' tenant headers do without `auth:`, for rules, limits and engines.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from time import time

from gateway.auth.identity import UnverifiedError
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
from gateway.dataplane.context.identification import OPEN_OPERATIONS, Identification, Peer
from gateway.dataplane.context.prepared_head import PreparedHead
from gateway.dataplane.context.snapshot import Snapshot
from gateway.protocol.errors import GatewayError
from gateway.protocol.principal import Principal, principal_of_mark
from gateway.wire.http1.head import Field, RequestHead, head_of_lines
from gateway.wire.memo import Memo

_MAX_READERS = 1024


class AuthenticatedRequest(Request):
    """A request whose caller is known, or may be anonymous, until `expires_at`. `again` reads it once more, where the
    plan's error is an `UnverifiedError`."""

    __slots__ = ("again", "expires_at")

    expires_at: float
    again: Callable[[], Request]


class AuthenticatedHeadReader(HeadReader):
    """Reads heads by one snapshot of the rules, which has this identification."""

    _authenticates = True

    def __init__(self, snapshot: Snapshot, settings: Settings, identification: Identification) -> None:
        self._identification = identification
        self._verified, self._forwards = identification.verified, identification.forwards
        self._varies = identification.varies
        self._others: dict[Identification, AuthenticatedHeadReader] = {}  # of peers whose heads mean something else
        self._plans_by_mark = Memo(partial(_plan_of_mark, snapshot=snapshot, settings=settings), MAX_PLANS)
        self._plans_of_fields_by_mark = Memo(partial(_plan_of_fields, snapshot=snapshot, settings=settings), MAX_PLANS)
        super().__init__(snapshot, settings)

    def __call__(self, head: bytes, peer: Peer | None = None) -> Request:
        if self._varies and peer is not None:
            return self._of(peer)(head)
        request = self._requests(head)
        if request.expires_at > time():  # type: ignore[attr-defined]
            return request
        return self._read(head)

    def _of(self, peer: Peer) -> AuthenticatedHeadReader:
        """The reader of a peer's heads: plans are shared, what heads come to is not."""
        identification = self._identification.of(peer)
        found = self._others.get(identification)
        if found is None:
            if len(self._others) >= _MAX_READERS:
                self._others.clear()
            found = copy(self)
            found._identification, found._others = identification, {}
            found._requests = Memo(copy(found)._read, on_second_sight=True)
            self._others[identification] = found
        return found

    def of_fields(self, method: bytes, target: bytes, fields: list[Field], peer: Peer | None = None) -> Request:
        if self._varies and peer is not None:
            return self._of(peer).of_fields(method, target, fields)
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
        plan = self._plans_of_fields_by_mark(b"\0".join((*shared, identity.mark)))
        if identity.error is not None:
            plan = _refused(plan, identity.error)
        try:
            request = AuthenticatedRequest.of_fields(plan, others + forwarded)
        except ValueError as error:
            raise bad_request(error) from error
        assert isinstance(request, AuthenticatedRequest)
        request.expires_at = identity.expires_at
        request.again = partial(self.of_fields, method, target, fields)
        return request

    def _read_identified(self, head: bytes, shared: list[bytes], own: list[Field], passed: list[bytes]) -> Request:
        names = self._identification.fields
        claimed: list[Field] = []
        others: list[Field] = []
        for field in own:
            (claimed if field[0] in names else others).append(field)
        identity = self._verified.get(claimed[0]) if len(claimed) == 1 else None
        if identity is None or identity.expires_at <= time():
            identity, forwarded = self._identification.find(claimed)
        else:  # nearly always
            forwarded = claimed if self._forwards else []
        shared.append(identity.mark)
        plan = self._plans_by_mark(b"\r\n".join(shared))
        if plan.head.names_fields_of_this_hop:
            return self._read_strictly(head)
        if forwarded:
            passed += [b"%b: %b" % field for field in forwarded]
        passed.append(b"")
        if identity.error is not None:
            plan = _refused(plan, identity.error)
        try:
            request = AuthenticatedRequest(plan, others, b"\r\n".join(passed))
        except ValueError as error:
            raise bad_request(error) from error
        request.expires_at = identity.expires_at
        if isinstance(plan.error, UnverifiedError):
            request.again = partial(self._read, head)
        return request

    def _read_strictly(self, head: bytes) -> Request:
        parsed = self._parsed(head)
        names = self._identification.fields
        identity, forwarded = self._identification.find([field for field in parsed.fields if field[0] in names])
        parsed.fields = [field for field in parsed.fields if field[0] not in names] + forwarded
        plan = PreparedHead(parsed, self._snapshot, self._settings, principal=identity.principal)
        if identity.error is not None:
            plan = _refused(plan, identity.error)
        request = self._strict(AuthenticatedRequest, plan)
        assert isinstance(request, AuthenticatedRequest)
        request.expires_at = identity.expires_at
        request.again = partial(self._read, head)
        return request


def _refused(plan: PreparedHead, error: GatewayError) -> PreparedHead:
    """The plan of a caller who is not known, unless anybody may call."""
    return plan if plan.call.operation in OPEN_OPERATIONS else plan.refused(error)


def _plan_of_mark(key: bytes, snapshot: Snapshot, settings: Settings) -> PreparedHead:
    """The plan of heads with these lines of the kind SHARED, before the principal's mark.

    Raises: GatewayError(BAD_REQUEST).
    """
    request_line, *lines, mark = key.split(b"\r\n")
    try:
        head = head_of_lines(request_line, lines)
        return PreparedHead(head, snapshot, settings, principal=_principal(mark))
    except ValueError as error:
        raise bad_request(error) from error


def _plan_of_fields(key: bytes, snapshot: Snapshot, settings: Settings) -> PreparedHead:
    method, target, *rest, mark = key.split(b"\0")
    head = RequestHead(method, target, fields_of(rest), False)
    return PreparedHead(head, snapshot, settings, principal=_principal(mark))


def _principal(mark: bytes) -> Principal | None:
    return principal_of_mark(mark) if mark else None
