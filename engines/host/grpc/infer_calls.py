"""ModelInfer: one message, one inference, one answer. No task and no wait: the answer is written where it comes."""

from __future__ import annotations

from collections import deque
from time import monotonic_ns

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, ErrorCode
from engines.core.messages import InferResponse, Raw
from engines.host.grpc.call import BaseCall, UnaryCall
from engines.host.grpc.call_head import Head
from engines.host.grpc.replies import UNAVAILABLE, StatusError
from engines.host.grpc.requests import Asked
from engines.host.grpc.responses import empty_final, failed, failed_later, streamed
from engines.host.grpc.server_context import CallOwner
from engines.host.model import HostedModel
from engines.host.request_fields import check_single_response, read_version, single_response
from gateway.wire.grpc import MessageReader, decompress
from gateway.wire.http2.stream import Stream


class InferCall(UnaryCall):
    """Answers with the call's only response, once it has ended."""

    __slots__ = ("_asked", "_call", "_model", "_num_responses", "_response")

    def __init__(self, owner: CallOwner, stream: Stream, head: Head) -> None:
        self._call: InferenceCall | None = None
        self._asked: Asked
        self._model: HostedModel
        self._response: InferResponse | None = None
        self._num_responses = 0
        super().__init__(owner, stream, head)

    def answer(self, data: bytes, at: int, end: int) -> None:
        front, head = self.front, self.head
        service = front.service
        asked = self._asked = front.read_request(data, at, end)
        version = read_version(asked.version)
        model = self._model = service.model(asked.model, version)
        if model.is_decoupled and not model.stream_input:
            raise EngineError(
                ErrorCode.UNSUPPORTED, "ModelInfer RPC doesn't support models with decoupled transaction policy"
            )
        request = asked.infer_request(service.regions, head.plan.forwarded, head.trace, version)
        if model.is_decoupled:
            check_single_response(model, request)
        call = self._call = InferenceCall(request, self._respond, monotonic_ns())
        service.infer(call)

    def abandon(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    def _respond(self, response: InferResponse | None, is_final: bool) -> None:
        if response is not None:
            self._num_responses += 1
            self._response = response
        if not is_final or self.is_over:
            return
        try:
            self._tell()
        except Exception as error:  # whoever answers has others to answer
            self.fail(error)

    def _tell(self) -> None:
        response = single_response(self._response, self._num_responses)
        asked = self._asked
        self.write(self.front.writer(self._model).write(asked.id, response, asked.classes))
        self.succeed()


class StreamInferCall(BaseCall):
    """Reads no more for the time being while its client does not read, or while too many inferences are under way."""

    __slots__ = ("_has_ended", "_is_leaving", "_num_bytes", "_owed", "_reader", "_turns", "_under_way")

    def __init__(self, owner: CallOwner, stream: Stream, head: Head) -> None:
        self._reader = MessageReader(owner.front.limits.max_message_bytes)
        self._turns: deque[OrderedResponse] = deque()  # those that answer in their order
        self._under_way: set[OrderedResponse] = set()
        self._owed = 0  # bytes whose window is not given back
        self._num_bytes = 0
        self._is_leaving = owner.front.is_draining
        self._has_ended = False  # the client sends no more
        super().__init__(owner, stream, head)

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        if self.is_over:
            return
        try:
            for is_compressed, message in self._reader.feed(data):
                self._take(self._decompressed(message) if is_compressed else message)
                if self.is_over:
                    return
        except Exception as error:
            self._break_off(error)
            return
        if ended:
            self._has_ended = True
            self._end_if_done()
        else:
            self._owed += len(data)
            self._num_bytes += len(data)
            self.credit()

    def drained(self, stream: Stream) -> None:
        self.credit()

    def abandon(self) -> None:
        turns, self._under_way = self._under_way, set()
        self._turns.clear()
        for turn in turns:
            turn.cancel()

    @property
    def num_come(self) -> int | None:
        return None if self._reader.is_between_messages else self._num_bytes

    def credit(self) -> None:
        """Let the client send as much as it has sent, unless too much waits."""
        if self._owed and not self.stream.is_waiting and len(self._under_way) < self.front.limits.max_calls_of_stream:
            owed, self._owed = self._owed, 0
            self.stream.credit(owed)

    def turn_ended(self, turn: OrderedResponse) -> None:
        """An inference is over: what it had to wait with is written in its turn."""
        self._under_way.discard(turn)
        turns = self._turns
        while turns and turns[0].is_over:
            for message in turns.popleft().waiting:
                self.tell(message)
        if not self.is_over:
            self.credit()
            self._end_if_done()

    def tell(self, message: list[Raw]) -> None:
        """Write a message, unless nothing more is to be written."""
        if not self.is_over:
            try:
                self.write(message)
            except EngineError as error:
                self._break_off(error)

    def fail_all(self, error: Exception) -> None:
        """End the stream with the error of one of its inferences."""
        self._break_off(error)

    def leave(self) -> None:
        """End once everything that is under way is answered."""
        self._is_leaving = True
        self._end_if_done()

    def _take(self, message: bytes) -> None:
        asked = self.front.read_request(message, 0, len(message))
        turn = OrderedResponse(self, asked)
        self._under_way.add(turn)
        try:
            version = read_version(asked.version)
            turn.find(version)
            if turn.is_ordered:
                self._turns.append(turn)
            turn.start(version)
        except EngineError as error:
            if turn.is_ordered and turn not in self._turns:
                self._turns.append(turn)
            turn.refuse(error)

    def _decompressed(self, message: bytes) -> bytes:
        return decompress(message, self.head.plan.encoding, self.front.limits.max_message_bytes)

    def _end_if_done(self) -> None:
        if self._under_way or self._turns:
            return
        if self._has_ended:
            self.succeed()
        elif self._is_leaving and self._reader.is_between_messages:
            self.fail(StatusError(UNAVAILABLE, "the host is stopping"))

    def _break_off(self, error: Exception) -> None:
        self.fail(error)
        self.abandon()


class OrderedResponse:
    """One inference of a stream. `waiting` are its answers that wait for their turn."""

    __slots__ = ("_asked", "_call", "_is_starting", "_model", "_stream", "is_ordered", "is_over", "waiting")

    def __init__(self, stream: StreamInferCall, asked: Asked) -> None:
        self._stream = stream
        self._asked = asked
        self._model: HostedModel | None = None
        self._call: InferenceCall | None = None
        self._is_starting = False
        self.is_ordered = True  # as long as nobody knows the model
        self.is_over = False
        self.waiting: list[list[Raw]] = []

    def __repr__(self) -> str:
        return f"<OrderedResponse {self._asked!r}{' over' if self.is_over else ''}>"

    def find(self, version: str) -> None:
        """Raises: EngineError where there is no such model."""
        model = self._model = self._stream.front.service.model(self._asked.model, version)
        self.is_ordered = not model.is_decoupled

    def start(self, version: str) -> None:
        """Raises: EngineError where the request is malformed."""
        stream = self._stream
        service, head = stream.front.service, stream.head
        request = self._asked.infer_request(service.regions, head.plan.forwarded, head.trace, version)
        call = self._call = InferenceCall(request, self._respond, monotonic_ns())
        self._is_starting = True
        service.infer(call)
        self._is_starting = False

    def refuse(self, error: EngineError) -> None:
        """It was never taken: such a request is named by its id alone, and the stream goes on whatever it wants."""
        self._tell([failed(error.message, self._asked.id)])
        self._end()

    def cancel(self) -> None:
        self.is_over = True
        if self._call is not None:
            self._call.cancel()

    def _respond(self, response: InferResponse | None, is_final: bool) -> None:
        if self.is_over:
            return
        try:
            if response is not None:
                self._tell_response(response, is_final)
            elif not self.is_ordered and self._asked.wants_empty_final:
                asked = self._asked
                self._tell(empty_final(asked.id, asked.model, asked.version))
        except Exception as error:  # whoever answers has others to answer
            self._stream.fail_all(error)
        if is_final and not self.is_over:
            self._end()

    def _tell_response(self, response: InferResponse, is_final: bool) -> None:
        asked, stream = self._asked, self._stream
        error = response.error
        if error is None:
            assert self._model is not None
            try:
                pieces = stream.front.writer(self._model).write(asked.id, response, asked.classes)
            except EngineError as wrong:
                error = wrong
            else:
                self._tell(streamed(pieces, is_final=is_final))
                return
        if self._is_starting:
            self._tell([failed(error.message, asked.id)])
        elif stream.head.plan.wants_grpc_errors:
            stream.fail_all(error)
        else:
            self._tell([failed_later(error.message, asked.id, asked.model, asked.version, is_final=is_final)])

    def _tell(self, message: list[Raw]) -> None:
        if self.is_ordered:
            self.waiting.append(message)
        else:
            self._stream.tell(message)

    def _end(self) -> None:
        self.is_over = True
        self._stream.turn_ended(self)
