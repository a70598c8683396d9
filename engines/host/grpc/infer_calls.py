"""ModelInfer and ModelStreamInfer: one inference, and many on one stream, without tasks.

On a stream, responses of models that are not decoupled come in the order of their requests, those of decoupled models
as they come.
Source: Triton server `grpc/stream_infer_handler.cc`.
"""

from __future__ import annotations

from collections import deque
from time import monotonic_ns

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, ErrorCode
from engines.core.messages import InferResponse, Raw
from engines.host.grpc.call import BaseCall, UnaryCall
from engines.host.grpc.call_head import Head
from engines.host.grpc.replies import UNAVAILABLE, StatusError
from engines.host.grpc.requests import InferMessage
from engines.host.grpc.responses import empty_final, streamed
from engines.host.grpc.server_context import CallOwner
from engines.host.model import HostedModel
from engines.host.request_fields import check_single_response, read_version, single_response
from gateway.protocol.conversion.stream import stream_error
from gateway.wire.grpc import MessageReader, decompress
from gateway.wire.http2.stream import Stream


class InferCall(UnaryCall):
    """Answers with the single response, once the inference is over."""

    __slots__ = ("_call", "_message", "_model", "_num_responses", "_response")

    def __init__(self, owner: CallOwner, stream: Stream, head: Head) -> None:
        self._call: InferenceCall | None = None
        self._message: InferMessage
        self._model: HostedModel
        self._response: InferResponse | None = None
        self._num_responses = 0
        super().__init__(owner, stream, head)

    def answer(self, data: bytes, at: int, end: int) -> None:
        front, head = self.front, self.head
        service = front.service
        message = self._message = front.read_request(data, at, end)
        version = read_version(message.version)
        model = self._model = service.model(message.model, version)
        if model.is_decoupled and not model.stream_input:
            raise EngineError(
                ErrorCode.UNSUPPORTED, "ModelInfer RPC doesn't support models with decoupled transaction policy"
            )
        request = message.infer_request(service.regions, head.plan.forwarded, head.trace, version)
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
            self._send()
        except Exception as error:  # the instance has other calls to answer
            self.fail(error)

    def _send(self) -> None:
        response = single_response(self._response, self._num_responses)
        message = self._message
        self.write(self.front.writer(self._model).write(message.id, response, message.classes))
        self.succeed()


class StreamInferCall(BaseCall):
    """Stops reading while its client does not read, or while too many inferences are in flight."""

    __slots__ = ("_has_ended", "_in_flight", "_is_leaving", "_num_bytes", "_owed", "_reader", "_turns")

    def __init__(self, owner: CallOwner, stream: Stream, head: Head) -> None:
        self._reader = MessageReader(owner.front.limits.max_message_bytes)
        self._turns: deque[OrderedResponse] = deque()  # of inferences that answer in order
        self._in_flight: set[OrderedResponse] = set()
        self._owed = 0  # bytes whose window is not given back
        self._num_bytes = 0
        self._is_leaving = owner.front.is_draining
        self._has_ended = False  # the client's side
        super().__init__(owner, stream, head)

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        if self.is_over:
            return
        try:
            for is_compressed, message in self._reader.feed(data):
                self._start(self._decompressed(message) if is_compressed else message)
                if self.is_over:
                    return
        except Exception as error:
            self._abort(error)
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
        turns, self._in_flight = self._in_flight, set()
        self._turns.clear()
        for turn in turns:
            turn.cancel()

    @property
    def num_received(self) -> int | None:
        return None if self._reader.is_between_messages else self._num_bytes

    def credit(self) -> None:
        """Give the client its window back, unless too much waits."""
        if self._owed and not self.stream.is_waiting and len(self._in_flight) < self.front.limits.max_calls_of_stream:
            owed, self._owed = self._owed, 0
            self.stream.credit(owed)

    def turn_ended(self, turn: OrderedResponse) -> None:
        """An inference is over: write the responses whose turn has come."""
        self._in_flight.discard(turn)
        turns = self._turns
        while turns and turns[0].is_over:
            for message in turns.popleft().waiting:
                self.send(message)
        if not self.is_over:
            self.credit()
            self._end_if_done()

    def send(self, message: list[Raw]) -> None:
        """Write a message, unless the call is over."""
        if not self.is_over:
            try:
                self.write(message)
            except EngineError as error:
                self._abort(error)

    def fail_all(self, error: Exception) -> None:
        """End the stream with the error of one of its inferences."""
        self._abort(error)

    def leave(self) -> None:
        """End once all inferences in flight are answered."""
        self._is_leaving = True
        self._end_if_done()

    def _start(self, data: bytes) -> None:
        message = self.front.read_request(data, 0, len(data))
        turn = OrderedResponse(self, message)
        self._in_flight.add(turn)
        try:
            version = read_version(message.version)
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
        if self._in_flight or self._turns:
            return
        if self._has_ended:
            self.succeed()
        elif self._is_leaving and self._reader.is_between_messages:
            self.fail(StatusError(UNAVAILABLE, "the host is stopping"))

    def _abort(self, error: Exception) -> None:
        self.fail(error)
        self.abandon()


class OrderedResponse:
    """One inference of a stream. `waiting` are its responses that wait for their turn."""

    __slots__ = ("_call", "_is_starting", "_message", "_model", "_stream", "is_ordered", "is_over", "waiting")

    def __init__(self, stream: StreamInferCall, message: InferMessage) -> None:
        self._stream = stream
        self._message = message
        self._model: HostedModel | None = None
        self._call: InferenceCall | None = None
        self._is_starting = False
        self.is_ordered = True  # until the model is known
        self.is_over = False
        self.waiting: list[list[Raw]] = []

    def __repr__(self) -> str:
        return f"<OrderedResponse {self._message!r}{' over' if self.is_over else ''}>"

    def find(self, version: str) -> None:
        """Raises: EngineError for an unknown model."""
        model = self._model = self._stream.front.service.model(self._message.model, version)
        self.is_ordered = not model.is_decoupled

    def start(self, version: str) -> None:
        """Raises: EngineError where the request is malformed."""
        stream = self._stream
        service, head = stream.front.service, stream.head
        request = self._message.infer_request(service.regions, head.plan.forwarded, head.trace, version)
        call = self._call = InferenceCall(request, self._respond, monotonic_ns())
        self._is_starting = True
        service.infer(call)
        self._is_starting = False

    def refuse(self, error: EngineError) -> None:
        """Report a request that was never submitted: by its id alone, without ending the stream."""
        self._send([stream_error(error.message, self._message.id)])
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
                self._send_response(response, is_final)
            elif not self.is_ordered and self._message.wants_empty_final:
                message = self._message
                self._send(empty_final(message.id, message.model, message.version))
        except Exception as error:  # the instance has other calls to answer
            self._stream.fail_all(error)
        if is_final and not self.is_over:
            self._end()

    def _send_response(self, response: InferResponse, is_final: bool) -> None:
        message, stream = self._message, self._stream
        error = response.error
        if error is None:
            assert self._model is not None
            try:
                pieces = stream.front.writer(self._model).write(message.id, response, message.classes)
            except EngineError as failure:
                error = failure
            else:
                self._send(streamed(pieces, is_final=is_final))
                return
        if self._is_starting:
            self._send([stream_error(error.message, message.id)])
        elif stream.head.plan.wants_grpc_errors:
            stream.fail_all(error)
        else:
            text = stream_error(error.message, message.id, message.model, message.version, is_final=is_final)
            self._send([text])

    def _send(self, message: list[Raw]) -> None:
        if self.is_ordered:
            self.waiting.append(message)
        else:
            self._stream.send(message)

    def _end(self) -> None:
        self.is_over = True
        self._stream.turn_ended(self)
