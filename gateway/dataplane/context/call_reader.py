"""Reads the fields of gRPC calls, and caches what follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from gateway.config.settings import Settings
from gateway.dataplane.context.call_head import (
    FEW_DIFFER_IN,
    REQUEST_ID,
    TIMEOUT,
    CallHead,
    CallPlan,
    OwnLayout,
    Templates,
)
from gateway.dataplane.context.head_reader import (
    DROPPED,
    MALFORMED,
    OWN,
    PASSED,
    SHARED,
    FieldKinds,
    fields_of,
)
from gateway.dataplane.context.identification import Peer
from gateway.dataplane.context.snapshot import Snapshot
from gateway.protocol.principal import Principal
from gateway.wire.http2.field_decoder import OwnNames
from gateway.wire.http2.fields import Block, Field
from gateway.wire.memo import Memo

# Orders of names that are remembered
_MAX_LAYOUTS = 1024
_MAX_LAYOUT_BYTES = 1024  # of their names


class CallReader:
    """Reads calls' fields by one snapshot of the rules, and caches what follows from them. `own_names` are those of
    the fields that are not in plans."""

    def __init__(self, snapshot: Snapshot, settings: Settings) -> None:
        few = FEW_DIFFER_IN | settings.operation_access.grpc.headers
        self._kinds = kinds = FieldKinds(snapshot, settings, (REQUEST_ID, TIMEOUT), few)
        self.own_names = OwnNames(lambda name: kinds[name] in (OWN, PASSED, DROPPED))
        self._snapshot = snapshot
        self._layouts: dict[tuple[bytes, ...], OwnLayout] = {}
        self._templates: Templates = {}
        new_plan = self._new_plan = partial(CallPlan, snapshot=snapshot, settings=settings)
        self._plans = Memo(lambda key: new_plan(fields_of(key.split(b"\0"))))

    def __call__(self, block: Block, peer: Peer | None = None) -> CallHead:
        """Read a block; `peer` is the connection that it came on."""
        if block.has_blanks:
            plan, own, sent = self._split_blanks(block.fields)
            head = CallHead(plan, own)
            head.use_sent(sent)
            return head
        shared, own = self._split(block.fields)
        return CallHead(self._plans(b"\0".join(shared)), own)

    def _split(self, fields: Iterable[Field]) -> tuple[list[bytes], list[Field]]:
        """The fields of the plan, each name followed by its value; and those of the call alone."""
        shared: list[bytes] = []
        own: list[Field] = []
        for field in fields:
            kind = self._kinds[field[0]]
            if kind is SHARED or kind is MALFORMED:  # pseudo-fields
                shared += field
            elif kind is not DROPPED:
                own.append(field)
        return shared, own

    def _split_blanks(
        self, fields: list[Field], principal: Principal | None = None
    ) -> tuple[CallPlan, list[Field], list[Field]]:
        """The plan of a call whose values have blanks around them, the fields of the call alone, and these with their
        blanks: so they reach the engine, as Triton's models see them; the gateway reads values without."""
        stripped = [(name, value.strip(b" \t")) for name, value in fields]
        shared, own = self._split(stripped)
        plan = self._new_plan(fields_of(shared), principal=principal)
        sent = dict(zip(stripped, fields, strict=True))
        plan.passing = [sent.get(field, field) for field in plan.fields]
        return plan, own, self._split(fields)[1]

    def again(self, head: CallHead, block: Block) -> CallHead | None:
        """The head of a call whose block has a few fields of its own beside those of an earlier block; None where the
        block must be read whole: values have blanks, or the connection is older than the rules, which read some of
        these fields."""
        if block.has_blanks:
            return None
        names = block.own_names
        layout = self._layouts.get(names)
        if layout is None:
            layout = OwnLayout(names, self._kinds, self._snapshot)
            if sum(map(len, names)) <= _MAX_LAYOUT_BYTES:
                if len(self._layouts) >= _MAX_LAYOUTS:
                    self._layouts.clear()
                    self._templates.clear()
                self._layouts[names] = layout
        return layout.head(head, block, self._templates)
