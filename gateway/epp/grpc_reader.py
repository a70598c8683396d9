"""Reads calls of V2's gRPC. The names in the first message decide, so that streams need not end before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.dataplane.context.call_target import CallTarget
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.prepared_head import undecided
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.grpc.message_body import PiecewiseMessage
from gateway.epp.interfaces import Routing, any_server, not_passed
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.ext_proc import HeaderField
from gateway.protocol.grpc_services import OPERATIONS as SERVICE_OPERATIONS
from gateway.protocol.infer_message_head import Names
from gateway.protocol.llm.request_facts import prompt_of_message
from gateway.protocol.operations import INFERENCE_OPERATIONS, LlmApi, Operation
from gateway.protocol.request_urgency import NO_URGENCY, Urgency, urgency_of_message
from gateway.protocol.sequence import AnySession
from gateway.routing.decision import Undecided
from gateway.wire.http2.fields import Block

# Written by HTTP/2 itself, or for each hop: nothing that rules read.
_LEFT_OUT = frozenset({b"transfer-encoding", b"connection", b"keep-alive", b"te"})


class GrpcReader:
    """One call; see `RequestReader`."""

    over_grpc = True
    passes_unseen = False  # a later piece may name another model
    api: LlmApi | None = None

    def __init__(self, plane: DataPlane, fields: Sequence[HeaderField], named: Mapping[bytes, bytes]) -> None:
        """`named` has the first of the fields of each name.

        Raises: GatewayError where the head is malformed.
        """
        self._plane = plane
        self._fields = named
        if b":path" not in self._fields:
            raise GatewayError(ErrorKind.BAD_REQUEST, "the proxy sends no :path")
        block = Block([field for field in fields if field[0] not in _LEFT_OUT])
        if block.error is not None:
            raise GatewayError(ErrorKind.BAD_REQUEST, block.error)
        self._head = plane.read_call(block)
        rpc = self._head.plan.rpc
        self._is_stream = rpc is not None and rpc.is_stream
        limits = plane.settings.limits
        self._message = PiecewiseMessage(self._head.plan.encoding, limits)
        self._held: list[bytes] = []  # of a call whose messages name no model
        self._model: bytes | None = None
        self._max_bytes: int | None = None
        self.size = 0

    def add(self, data: bytes, ended: bool) -> None:
        self.size += len(data)
        rpc = self._head.plan.rpc
        if rpc is not None and (rpc.is_relayed or rpc.is_stream):
            self._message.add(data, ended)
        else:
            self._held.append(data)

    def route(self) -> Routing | None:
        head = self._head
        if head.error is not None:
            raise head.error.again()
        rpc = head.plan.rpc
        if rpc is None or not (rpc.is_relayed or rpc.is_stream):
            operation = rpc.operation if rpc is not None else SERVICE_OPERATIONS.get(head.plan.path)
            if operation is None:
                path = head.plan.path.decode("latin-1")
                raise GatewayError(ErrorKind.UNSUPPORTED, f"unknown method {path}")
            server = any_server(head.plan.snapshot, operation, is_v2=True, over_grpc=True)
            return Routing(server, is_inference=False, over_grpc=True)
        names = self._message.names
        decision = self._decided(names) if names is not None else None
        if names is None or decision is None:
            return None
        target, session = decision
        return self._routing(target.route_target, session, names, rpc.operation)

    def take(self) -> bytes:
        if self._held:
            data = b"".join(self._held)
            self._held.clear()
            return data
        return self._message.take(self._model, keeps=False)

    def pass_on(self, data: bytes, ended: bool) -> bytes:
        self.size += len(data)
        if self._message.names is not None and not self._is_stream:
            self._message.pass_on(data, ended)
        return data

    def field(self, name: bytes) -> bytes | None:
        return self._fields.get(name)

    def urgency(self) -> Urgency:
        message = self._whole_message()
        return urgency_of_message(message) if message is not None else NO_URGENCY

    # Deciding

    def _decided(self, names: Names) -> tuple[CallTarget, AnySession | None] | None:
        """The target and the session; None while more of the message must come. Raises: GatewayError."""
        head = self._head
        decision = head.plan.decide(names, None, head)
        if decision is Undecided.NEEDS_BODY:
            facts = self._message.facts()
            if facts is None:
                return None
            decision = head.plan.decide(names, facts, head)
        if isinstance(decision, Undecided):
            raise undecided(decision, head.plan.facts(names))
        target, session = decision
        target.check_size(self._message.declared_size)
        if session is not None and target.route_target.is_sticky:
            found = self._plane.affinity.lookup_cached(target.route_target, session, head, sets_pin=False)
            target = head.plan.target(found) if found is not None else target
        return target, session

    def _routing(
        self, route_target: RouteTarget, session: AnySession | None, names: Names, operation: Operation
    ) -> Routing | None:
        engine, model = route_target.engine, route_target.spec.model
        if not engine.speaks_grpc:
            raise not_passed(route_target, "V2's gRPC")
        if model is not None:
            if self._is_stream:
                what = (
                    f"route '{route_target.spec.route}' renames the model, which a picker does in no stream of messages"
                )
                raise GatewayError(ErrorKind.UNSUPPORTED, what)
            self._model = model.encode()
        named, version = names.of_model
        is_inference = operation in INFERENCE_OPERATIONS
        prompt = None
        if is_inference and engine.prefixes is not None:
            message = self._whole_message()
            if message is None:
                return None
            prompt = prompt_of_message(message)
        return Routing(
            route_target,
            session,
            (model or named, version),
            prompt,
            is_inference=is_inference,
            over_grpc=True,
            is_rewritten=model is not None,
        )

    def _whole_message(self) -> bytes | None:
        """The first message; None while it is not whole."""
        message = self._message
        if message.names is None or message.size < message.declared_size:
            return None
        return message.message(None)
