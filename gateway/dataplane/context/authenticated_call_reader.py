"""Reads the fields of gRPC calls where the rules have `auth:`; see `authenticated_head_reader`."""

from __future__ import annotations

from gateway.config.settings import Settings
from gateway.dataplane.context.call_head import CallHead, CallPlan
from gateway.dataplane.context.call_reader import CallReader
from gateway.dataplane.context.head_reader import fields_of
from gateway.dataplane.context.identification import OPEN_OPERATIONS, Identification, Peer
from gateway.dataplane.context.snapshot import Snapshot
from gateway.protocol.grpc_services import CHECK_PATH, WATCH_PATH
from gateway.protocol.principal import principal_of_mark
from gateway.wire.http2.fields import Block
from gateway.wire.memo import Memo

# grpc.health.v1, as load balancers probe it.
_OPEN_PATHS = (CHECK_PATH, WATCH_PATH)


class AuthenticatedCallHead(CallHead):
    """A call whose caller is known, or may be anonymous, until `expires_at`."""

    __slots__ = ("expires_at",)

    expires_at: float


class AuthenticatedCallReader(CallReader):
    """Reads calls' fields by one snapshot of the rules, which has this identification."""

    def __init__(self, snapshot: Snapshot, settings: Settings, identification: Identification) -> None:
        super().__init__(snapshot, settings)
        self._identification = identification
        new_plan = self._new_plan

        def plan_of(key: bytes) -> CallPlan:
            mark, *rest = key.split(b"\0")
            return new_plan(fields_of(rest), principal=principal_of_mark(mark) if mark else None)

        self._plans_by_mark = Memo(plan_of)

    def __call__(self, block: Block, peer: Peer | None = None) -> CallHead:
        identification = self._identification
        if identification.varies and peer is not None:
            identification = identification.of(peer)
        names = identification.fields
        claimed = [(name, value.strip(b" \t")) for name, value in block.fields if name in names]
        identity, forwarded = identification.find(claimed)
        fields = [field for field in block.fields if field[0] not in names] + forwarded
        if block.has_blanks:
            plan, own, sent = self._split_blanks(fields, identity.principal)
        else:
            shared, own = self._split(fields)
            plan, sent = self._plans_by_mark(b"\0".join((identity.mark, *shared))), own
        head = AuthenticatedCallHead(plan, own)
        head.use_sent(sent)
        rpc = plan.rpc
        is_open = plan.path in _OPEN_PATHS or (rpc is not None and rpc.operation in OPEN_OPERATIONS)
        if identity.error is not None and not is_open:
            head.error = identity.error
        head.expires_at = identity.expires_at
        return head
