"""An inference inside the host: schedulers queue it, instances run it, and it ends exactly once."""

from __future__ import annotations

from collections.abc import Callable

from engines.core.errors import EngineError, ErrorCode
from engines.core.messages import InferRequest, InferResponse, TensorData

# Receives the responses: a response (None if only the end is reported), and whether it is the last.
Sink = Callable[[InferResponse | None, bool], None]


class InferenceCall:
    """A request and the sink of its responses.

    The component that holds the call sets `on_cancel`, which is called once if the client cancels. The holder still has
    to end a cancelled call, soon. Times are nanoseconds of one monotonic clock; 0 means not yet.
    """

    _on_end: Callable[[InferenceCall], None] | None = None
    on_cancel: Callable[[], None] | None = None
    reschedule: Callable[[InferenceCall], None] | None = None  # runs it again at the model's request, where it may
    controls: tuple[TensorData, ...] = ()  # inputs that a sequence batcher adds
    state_key: str | None = None  # of the implicit state that the instance keeps between steps
    batch_size = 1  # of the request: its first axis if the model batches
    error: EngineError | None = None
    is_cancelled = False
    is_over = False
    num_responses = 0
    queued_ns = 0  # received by its sequence scheduler
    started_ns = 0  # handed to an instance
    instance = ""  # its name
    first_response_ns = 0
    compute_input_ns = compute_infer_ns = compute_output_ns = 0  # as the instance measured them

    def __init__(self, request: InferRequest, sink: Sink, arrived_ns: int = 0) -> None:
        self.request = request
        self._sink = sink
        self.arrived_ns = arrived_ns

    def when_over(self, on_end: Callable[[InferenceCall], None]) -> None:
        """Have `on_end` called when the call has ended (statistics)."""
        self._on_end = on_end

    def through(self, wrap: Callable[[Sink], Sink]) -> None:
        self._sink = wrap(self._sink)

    def respond(self, response: InferResponse, *, is_final: bool) -> None:
        """Pass on a response; dropped if the call is over."""
        if self.is_over:
            return
        self.num_responses += 1
        if response.error is not None:
            self.error = response.error
        if is_final:
            self._end(response)
        else:
            self._sink(response, False)

    def finish(self) -> None:
        if not self.is_over:
            self._end(None)

    def fail(self, error: EngineError) -> None:
        """End it with an error."""
        self.respond(InferResponse(error=error), is_final=True)

    def cancel(self) -> None:
        if not self.is_over and not self.is_cancelled:
            self.is_cancelled = True
            if self.on_cancel is not None:
                self.on_cancel()

    def fail_cancelled(self) -> None:
        self.fail(EngineError(ErrorCode.CANCELLED, "inference request is cancelled"))

    def _end(self, response: InferResponse | None) -> None:
        """Drop all references, so that tensors are freed with their last user and not by the garbage collector."""
        sink, on_end = self._sink, self._on_end
        self.is_over = True
        self._sink, self._on_end, self.on_cancel, self.reschedule = _discard, None, None, None
        sink(response, True)
        if on_end is not None:
            on_end(self)


def _discard(response: InferResponse | None, is_final: bool) -> None:
    """The sink of calls that are over."""


Submit = Callable[[InferenceCall], None]
