"""The host's side of an instance: sends batches, receives responses, and fails its calls when the process ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic_ns
from typing import Any

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, ErrorCode, internal, unavailable
from engines.core.messages import InferResponse, TensorData, WantedOutput
from engines.instances.host_requests import HostRequests
from engines.ipc import protocol
from engines.ipc.arena import ArenaFullError
from engines.ipc.channel import Channel
from engines.ipc.protocol import Message, PackedTensor, pack, unpack, unpack_error

log = logging.getLogger(__name__)

# Interval of reporting released blocks while no other message goes to the instance.
FLUSH_SECONDS = 0.25
_SEQUENCE_START, _SEQUENCE_END = 1, 2
_EMPTY: dict[str, Any] = {}

# A call, its response and whether that is the last. Without a response the call ends if this is the last, else it is
# scheduled again. No call: it has ended already.
Answer = tuple[InferenceCall | None, InferResponse | None, bool]


@dataclass(frozen=True, slots=True)
class InstancePlan:
    """One instance. Those of one group on several GPUs share their names, as in Triton."""

    name: str
    kind: str  # KIND_CPU, KIND_GPU or KIND_MODEL
    device_id: int = 0


class ProcessInstance:
    """`engines.scheduling.interfaces.Instance` in its own process, or in a thread of a shared one."""

    def __init__(
        self,
        plan: InstancePlan,
        host_requests: HostRequests,
        *,
        execution_timeout_seconds: float | None,
        memory_limit_bytes: int | None,
    ) -> None:
        self.plan = plan
        self.name = plan.name
        self.key = f"{plan.name} on {plan.device_id}"  # unique among the model's instances; the name is not
        self._host_requests = host_requests
        self._execution_timeout_seconds = execution_timeout_seconds
        self._memory_limit_bytes = memory_limit_bytes
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, InferenceCall] = {}
        self._last_number = 0
        self._batch = 0
        self._done: Callable[[], None] | None = None  # of the batch that runs
        self._deadline: asyncio.TimerHandle | None = None
        self._flush: asyncio.TimerHandle | None = None
        self._setup: asyncio.Future[Message] | None = None
        self._is_ready = False
        self.placement = ""
        self.num_executions = 0  # of this process, that have come back

    @property
    def is_available(self) -> bool:
        return self._is_ready and self._done is None

    @property
    def num_calls(self) -> int:
        """Calls without their final response."""
        return len(self._calls)

    def connect(self, channel: Channel, on_heavy: Callable[[str], None], on_overdue: Callable[[str], None]) -> None:
        """Its process has started and is about to load the model. `on_heavy` gets the reason for replacing the process,
        `on_overdue` the reason for killing it."""
        self._channel = channel  # closed at the end of the process: it ignores messages then
        self._on_heavy, self._on_overdue = on_heavy, on_overdue
        self.num_executions = 0

    async def set_up(self, kind: int, *rest: Any, timeout_seconds: float) -> Message:
        """Send a message of the setup, and wait for its reply. Raises: EngineError."""
        self._setup = self._loop.create_future()
        self.send(kind, *rest)
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._setup
        except TimeoutError:
            raise unavailable(f"'{self.name}' has not loaded within {timeout_seconds:g} seconds") from None
        finally:
            self._setup = None

    def make_ready(self, placement: str = "") -> None:
        """The model is loaded; `placement` reports its devices as JSON, "" if unknown."""
        self._is_ready = True
        self.placement = placement

    def make_unready(self) -> None:
        self._is_ready = False

    def send(self, kind: int, *rest: Any) -> None:
        """Send a message; ignored if the process has ended."""
        self._channel.send(kind, *rest)

    def forget(self, state_key: str) -> None:
        """A sequence has ended: drop its implicit state."""
        self.send(protocol.FORGET, state_key)

    def execute(self, calls: Sequence[InferenceCall], done: Callable[[], None]) -> None:
        if not self.is_available:
            for call in calls:
                call.fail(internal(f"Stub process '{self.name}' is not healthy."))
            self._loop.call_soon(done)
            return
        now_ns = monotonic_ns()
        requests = [packed for call in calls if not call.is_over and (packed := self._pack(call, now_ns)) is not None]
        if not requests:
            self._loop.call_soon(done)
            return
        self._batch += 1
        self._done = done
        if self._execution_timeout_seconds is not None:
            self._deadline = self._loop.call_later(self._execution_timeout_seconds, self._run_over)
        self._channel.send(protocol.EXECUTE, self._batch, requests)

    def lose(self, error: EngineError) -> None:
        """Its process has ended: fail the open calls with this error and finish the batch."""
        self._is_ready = False
        self._channel.drain()
        self._channel.close()
        self._host_requests.drop()
        for timer in (self._deadline, self._flush):
            if timer is not None:
                timer.cancel()
        self._deadline = self._flush = None
        calls, self._calls = self._calls, {}
        done, self._done = self._done, None
        for call in calls.values():
            call.fail(error)
        if done is not None:
            done()
        if self._setup is not None and not self._setup.done():
            self._setup.set_exception(error)

    def _pack(self, call: InferenceCall, now_ns: int) -> tuple[Any, ...] | None:
        """A call as a request of a batch; None if it fails before."""
        request = call.request
        arena = self._channel.arena
        try:
            inputs = [pack(tensor, arena) for tensor in request.inputs]
            if call.controls:
                inputs += [pack(tensor, arena) for tensor in call.controls]
        except ArenaFullError as error:
            call.fail(unavailable(str(error)))
            return None
        self._last_number = number = self._last_number + 1
        self._calls[number] = call
        call.on_cancel = partial(self._cancel, number)
        call.instance = self.name
        if not call.started_ns:
            call.started_ns = now_ns
        outputs = request.outputs
        flags = request.sequence_start * _SEQUENCE_START | request.sequence_end * _SEQUENCE_END
        return (
            number,
            request.id,
            inputs,
            tuple([output.name for output in outputs]) if outputs else (),
            _places(outputs) if outputs else (),
            dict(request.parameters) if request.parameters else _EMPTY,
            request.sequence_id,
            flags,
            request.priority,
            request.timeout_us,
            dict(request.trace) if request.trace else _EMPTY,
            call.state_key,
            request.chat,
        )

    def receive(self, message: Message) -> None:
        kind = message[0]
        if kind == protocol.DONE:
            self._finish_batch(message)
        elif kind == protocol.RESPONSE:
            _, _, number, is_final, outputs, parameters, error, *times = message
            self._deliver(*self._read(number, is_final, outputs, parameters, error, times))
        elif kind in (protocol.LOADED, protocol.STARTED, protocol.FAILED):
            if self._setup is not None and not self._setup.done():
                if kind == protocol.FAILED:
                    self._setup.set_exception(EngineError(ErrorCode(message[2]), message[3]))
                else:
                    self._setup.set_result(message)
        elif kind not in (protocol.FREED, protocol.STOPPED):
            self._host_requests.take(message, self._channel)

    def _finish_batch(self, message: Message) -> None:
        """Read the responses, start the next batch, and then pass the responses on."""
        _, _, _, input_ns, inference_ns, output_ns, memory_bytes, responses = message
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self.num_executions += 1
        times = (input_ns, inference_ns, output_ns)
        answers = [
            self._read(number, is_final, outputs, parameters, error, times)
            for number, is_final, outputs, parameters, error in responses
        ]
        limit_bytes = self._memory_limit_bytes
        if limit_bytes is not None and memory_bytes > limit_bytes:
            self._on_heavy(
                f"it occupies {memory_bytes >> 20} MB, more than the {limit_bytes >> 20} MB of MAX_MEMORY_MB"
            )
        done, self._done = self._done, None
        if done is not None:
            done()
        for answer in answers:
            self._deliver(*answer)

    def _read(
        self,
        number: int,
        is_final: bool,
        outputs: list[PackedTensor] | None,
        parameters: dict[str, Any] | None,
        error: tuple[int, str] | None,
        times: Sequence[int],
    ) -> Answer:
        """A response and its call, with the times of the execution."""
        tensors: tuple[TensorData, ...] = ()
        if outputs:
            mapping = self._channel.mapping
            tensors = tuple([unpack(each, mapping) for each in outputs])
            if mapping.has_views and self._flush is None:
                self._flush = self._loop.call_later(FLUSH_SECONDS, self._report_freed)
        call = self._calls.pop(number, None) if is_final else self._calls.get(number)
        if call is None:
            return None, None, False
        if outputs is None and error is None:
            if not is_final:
                del self._calls[number]
                return call, None, False
            response = None
        else:
            response = InferResponse(tensors, parameters or _EMPTY, unpack_error(error))
            if not call.first_response_ns:
                call.first_response_ns = monotonic_ns()
        call.compute_input_ns, call.compute_infer_ns, call.compute_output_ns = times
        return call, response, is_final

    def _deliver(self, call: InferenceCall | None, response: InferResponse | None, is_final: bool) -> None:
        if call is None:
            return
        if response is not None:
            call.respond(response, is_final=is_final)
        elif is_final:
            call.finish()
        elif call.reschedule is not None:
            call.reschedule(call)
        else:
            call.fail(unavailable(f"model instance '{self.name}' cannot reschedule its requests here"))

    def _report_freed(self) -> None:
        self._flush = None
        mapping = self._channel.mapping
        if mapping.freed:
            self._channel.send(protocol.FREED)
        if mapping.has_views:
            self._flush = self._loop.call_later(FLUSH_SECONDS, self._report_freed)

    def _cancel(self, number: int) -> None:
        if number in self._calls:
            self.send(protocol.CANCEL, number)

    def _run_over(self) -> None:
        self._deadline = None
        self._on_overdue(f"the execution takes longer than {self._execution_timeout_seconds:g} seconds")


def _places(outputs: Sequence[WantedOutput]) -> tuple[tuple[str, str, int, int], ...]:
    """The shared memory of the outputs; classified outputs stay with the host."""
    return tuple(
        (output.name, output.shared_memory.key, output.shared_memory.offset, output.shared_memory.num_bytes)
        for output in outputs
        if output.shared_memory is not None and not output.num_classes
    )
