"""Names of shared memory in ModelInferRequests, as engines have them."""

from __future__ import annotations

from gateway.dataplane.context.call_head import CallHead
from gateway.dataplane.context.region_owner import client_address, region_owner
from gateway.dataplane.grpc.interfaces import CallClient
from gateway.dataplane.grpc.message_body import MessageBody, whole_message
from gateway.dataplane.grpc.stream_requests import RequestReceiver
from gateway.dataplane.grpc.unary_call import UnaryCall
from gateway.protocol.errors import GatewayError, bad_request
from gateway.protocol.infer_message_head import Names, read_names
from gateway.wire.grpc import PREFIX_BYTES, framed


class RegionRenamer:
    """Renames the regions in the messages of one caller."""

    def __init__(self, client: CallClient, head: CallHead) -> None:
        trusts = client.plane.settings.trust_forwarded
        address = client_address(client.peer, head.value(b"x-forwarded-for"), trust_forwarded=trusts)
        self._owner = region_owner(head.plan.principal, address)
        self._names = client.plane.region_names

    def renamed(self, message: bytes) -> bytes:
        """Raises: GatewayError(BAD_REQUEST)."""
        try:
            return self._names.rename_in_message(self._owner, message)
        except ValueError as error:
            raise bad_request(f"malformed ModelInferRequest: {error}") from error


class RegionUnaryCall(UnaryCall):
    """A ModelInfer whose message is read whole before it is decided."""

    __slots__ = ()

    def _decide(self, message: MessageBody) -> None:
        if not message.is_complete:
            return
        plain = message.message(None)
        renamed = RegionRenamer(self.client, self.head).renamed(plain)
        if renamed is not plain:
            whole = whole_message(framed(renamed), 2 * len(renamed) + PREFIX_BYTES)
            assert whole is not None
            self._message = message = whole
        super()._decide(message)


class RenamingReceiver:
    """Hands the messages of a stream on, with the names at engines."""

    def __init__(self, receiver: RequestReceiver, renamer: RegionRenamer) -> None:
        self._receiver = receiver
        self._renamer = renamer

    def take(self, data: bytes, plain: bytes | None, names: Names) -> None:
        message = data[PREFIX_BYTES:] if plain is None else plain
        renamed = self._renamer.renamed(message)
        if renamed is message:
            self._receiver.take(data, plain, names)
        else:
            self._receiver.take(framed(renamed), renamed, read_names(renamed, 0, len(renamed)))

    def second_model_comes(self, first: Names) -> None:
        self._receiver.second_model_comes(first)

    def holds(self, size: int) -> None:
        self._receiver.holds(size)

    def requests_go_on(self, error: GatewayError | None) -> None:
        self._receiver.requests_go_on(error)
