"""The one message of a unary call: held until the names in it decide where it goes, then passed on."""

from __future__ import annotations

from gateway.config.settings import Limits
from gateway.dataplane.context.call_head import CallHead
from gateway.dataplane.context.ended_request import DecisionFacts
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.infer_message_head import Names, NamesReader, facts_or_error, read_names, renamed
from gateway.protocol.llm.request_facts import prompt_of_message
from gateway.protocol.message_layouts import LAYOUTS
from gateway.protocol.v2_facts import NO_BODY, BodyFacts
from gateway.wire.grpc import PREFIX, PREFIX_BYTES, decompress, framed, too_long

# Holding more than this until the reply comes doubles the cost of passing it on, since the next read then needs memory
# that is not in the processor's cache.
_CHEAP_BYTES = 64 * 1024


class CompleteMessage:
    """A message that came in one piece, not compressed; its methods are those of `PiecewiseMessage`."""

    __slots__ = ("_data", "names")

    is_complete = True
    can_be_sent_again = True

    def __init__(self, data: bytes, names: Names) -> None:
        self._data = data
        self.names = names

    @property
    def size(self) -> int:
        return len(self._data)

    @property
    def declared_size(self) -> int:
        """That of the message and its prefix."""
        return len(self._data)

    def add(self, data: bytes, ended: bool) -> None:
        """Nothing follows."""

    def pass_on(self, data: bytes, ended: bool) -> None:
        """Nothing follows."""

    def facts(self) -> BodyFacts | None:
        return facts_or_error(self._data[PREFIX_BYTES:])

    def take(self, model: bytes | None, *, keeps: bool) -> bytes:
        if model is None:
            return self._data
        return framed(renamed(self._data[PREFIX_BYTES:], self.names, model))

    def message(self, model: bytes | None) -> bytes:
        """The message as the engine gets it, without its prefix and not compressed."""
        data = self._data[PREFIX_BYTES:]
        return data if model is None else renamed(data, self.names, model)

    def keep_up_to(self, size: int) -> None:
        """All of it is at hand."""

    def keep(self) -> None:
        """All of it is at hand."""

    @property
    def prompt(self) -> bytes | None:
        """What a language model would read of it."""
        return prompt_of_message(self._data[PREFIX_BYTES:])

    @property
    def may_name_a_sequence(self) -> bool:
        return b"sequence_id" in self._data


def whole_message(data: bytes, limit: int) -> CompleteMessage | None:
    """All that a call sends; None where that is not one plain message, of up to `limit` bytes.

    Raises: GatewayError(BAD_REQUEST) where it is no protobuf message.
    """
    size = len(data)
    if not PREFIX_BYTES <= size <= limit or PREFIX.unpack_from(data) != (0, size - PREFIX_BYTES):
        return None
    return CompleteMessage(data, LAYOUTS.read_names(data, PREFIX_BYTES, size))


class PiecewiseMessage:
    """A message that comes in pieces, or compressed.

    A message up to `high_water_bytes` is read whole, so that names which come late or twice count as in protobuf; of a
    longer one, the names are acted on as soon as its tensors begin. Up to `retry_body_bytes` are kept to be sent again.
    """

    def __init__(self, encoding: bytes, limits: Limits) -> None:
        """`encoding` is the call's `grpc-encoding`."""
        self._encoding = encoding
        self._limits = limits
        self._hold_bytes = limits.high_water_bytes
        self._replay_bytes = limits.retry_body_bytes
        self._pieces: list[bytes] = []
        self._has_prefix = False
        self._message_bytes = 0
        self._is_compressed = False
        self._plain: bytes | None = None  # the whole message, decompressed
        self._reader: NamesReader | None = None
        self._was_taken = self._is_kept = False
        self.size = 0
        self.is_complete = False
        self.can_be_sent_again = True
        self.names: Names | None = None  # once they are known

    @property
    def declared_size(self) -> int:
        """That of the message and its prefix, of which not all may be there."""
        return PREFIX_BYTES + self._message_bytes

    def add(self, data: bytes, ended: bool) -> None:
        """Hold what has come.

        Raises: GatewayError where the message is malformed or too long.
        """
        self.is_complete = ended
        self.size += len(data)
        self._pieces.append(data)
        names = self.names
        if names is None:
            if not self._has_prefix:
                self._read_prefix()
            if self._has_prefix:
                self._read_names(data)
            if ended and self.names is None:
                what = "ends before its message is whole" if self.size else "has no message"
                raise GatewayError(ErrorKind.BAD_REQUEST, f"the call {what}")
        elif self._reader is not None:
            self._reader.feed(data)

    def facts(self) -> BodyFacts | None:
        """What rules may read of the message; None while it is incomplete."""
        if self._plain is None:
            if not self._has_prefix or self.size < PREFIX_BYTES + self._message_bytes:
                return None
            self._plain = self._joined()[PREFIX_BYTES : PREFIX_BYTES + self._message_bytes]
        return facts_or_error(self._plain) if self._plain else NO_BODY

    def take(self, model: bytes | None, *, keeps: bool) -> bytes:
        """All that has come so far, ready to be sent; `model` replaces the model's name. `keeps`: it may be sent twice;
        otherwise little is held, for an endpoint that refuses it untouched."""
        if not keeps and not self._is_kept:
            self._replay_bytes = min(self._replay_bytes, _CHEAP_BYTES)
        self._was_taken = True
        data = self._joined()
        if model is not None:
            data = self._renamed(data, model)
        self._forget_if_long()
        return data

    def pass_on(self, data: bytes, ended: bool) -> None:
        """A further piece is being sent on.

        Raises: GatewayError where it changes the names that were acted on.
        """
        self.add(data, ended)
        self._forget_if_long()

    def message(self, model: bytes | None) -> bytes:
        """The whole message as the engine gets it, without its prefix and not compressed."""
        assert self.names is not None
        data = self._joined()[PREFIX_BYTES : PREFIX_BYTES + self._message_bytes]
        if self._is_compressed:
            data = self._plain if self._plain is not None else self._inflated(data)
        return data if model is None else renamed(data, self.names, model)

    def keep_up_to(self, size: int) -> None:
        """It may be needed again though it is longer than others that are kept."""
        self._replay_bytes = max(self._replay_bytes, size)

    def keep(self) -> None:
        """Another engine may need it: it is held up to `retry_body_bytes`."""
        self._is_kept = True

    @property
    def prompt(self) -> bytes | None:
        """What a language model would read of it; None where not all of it is there, or it is compressed."""
        if self._is_compressed or not self.is_complete:
            return None
        return prompt_of_message(self._joined()[PREFIX_BYTES:])

    @property
    def may_name_a_sequence(self) -> bool:
        """Whether sending it twice could advance a sequence twice. Read only once an attempt has failed."""
        return self._is_compressed or b"sequence_id" in self._joined()

    def _read_prefix(self) -> None:
        if self.size < PREFIX_BYTES:
            return
        flag, size = PREFIX.unpack_from(self._joined())
        if flag > 1:
            raise GatewayError(ErrorKind.BAD_REQUEST, "the message's first byte is neither 0 nor 1")
        if size > self._limits.max_body_bytes:
            raise too_long(size, self._limits.max_body_bytes)
        self._is_compressed = flag == 1
        self._has_prefix = True
        self._message_bytes = size

    def _read_names(self, data: bytes) -> None:
        stop = PREFIX_BYTES + self._message_bytes
        if self.size >= stop:
            whole = self._joined()
            if self._is_compressed:
                self._plain = self._inflated(whole[PREFIX_BYTES:stop])
                self.names = read_names(self._plain, 0, len(self._plain))
            else:
                self.names = read_names(whole, PREFIX_BYTES, stop)
            self._reader = None
        elif self._message_bytes > self._hold_bytes and not self._is_compressed:
            if self._reader is None:
                self._reader = NamesReader()
                data = self._joined()[PREFIX_BYTES:]
            self._reader.feed(data)
            if self._reader.may_settle:
                self.names = self._reader.settle()

    def _inflated(self, data: bytes) -> bytes:
        return decompress(data, self._encoding, self._limits.most_inflated(len(data)))

    def _renamed(self, data: bytes, model: bytes) -> bytes:
        names = self.names
        assert names is not None
        if self._plain is not None and self._is_compressed:  # one message may go without compression
            return framed(renamed(self._plain, names, model))
        stop = PREFIX_BYTES + self._message_bytes
        message = renamed(data[PREFIX_BYTES:stop], names, model)
        more = len(message) - len(data[PREFIX_BYTES:stop])
        return PREFIX.pack(0, self._message_bytes + more) + message + data[stop:]

    def _joined(self) -> bytes:
        pieces = self._pieces
        if len(pieces) != 1:
            pieces[:] = [b"".join(pieces)]
        return pieces[0]

    def _forget_if_long(self) -> None:
        if self._was_taken and self.size > self._replay_bytes:
            self._pieces.clear()
            self.can_be_sent_again = False


MessageBody = CompleteMessage | PiecewiseMessage


def facts_of_call(head: CallHead, message: MessageBody | None) -> DecisionFacts | None:
    """What the decision log can report of a call; None where the rules have not decided on it."""
    plan = head.plan
    if plan.rest_facts is not None:
        return DecisionFacts(plan.rest_facts, head.session)
    if message is None or message.names is None:
        return None
    is_whole = message.is_complete and message.can_be_sent_again
    facts = plan.facts(message.names, units=head.units)
    return DecisionFacts(facts, head.session, message.facts if is_whole else None)
