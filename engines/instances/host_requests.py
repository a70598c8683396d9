"""Requests of an instance to the host: inferences of other models, control of models, metrics, log lines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from time import monotonic_ns
from typing import Any, Protocol

from engines.core.calls import InferenceCall, Submit
from engines.core.errors import EngineError, internal, unavailable
from engines.core.messages import InferRequest, InferResponse, WantedOutput
from engines.core.metric_kinds import Change
from engines.ipc import protocol
from engines.ipc.arena import ArenaFullError
from engines.ipc.channel import Channel
from engines.ipc.protocol import Message, pack, pack_error, unpack


class ModelControl(Protocol):
    """The host's models, as `pb_utils.load_model` and its kin reach them."""

    def is_ready(self, name: str, version: str) -> bool:
        """Whether a model accepts requests; with `version` "" its policy chooses."""

    def is_decoupled(self, name: str, version: str) -> bool:
        """Whether a ready model may send any number of responses."""

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Raises: EngineError."""

    async def unload(self, name: str, unload_dependents: bool) -> None:
        """Raises: EngineError."""


class CustomMetricsInterface(Protocol):
    """Metrics that models create. A family or a metric lives until it has been dropped as often as created."""

    def family(self, name: str, description: str, kind: str) -> int:
        """A family of `counter`, `gauge` or `histogram`: its number. Raises: EngineError."""

    def metric(self, family: int, labels: Mapping[str, str], buckets: tuple[float, ...] | None) -> int:
        """A metric of a family: its number; the same labels are the same metric. Raises: EngineError."""

    def change(self, operation: str, metric: int, value: Change) -> None:
        """`increment`, `set`, `observe`, or `merge`. Raises: EngineError."""

    def value(self, metric: int) -> float:
        """Raises: EngineError if it has no single one."""

    def drop_metric(self, metric: int) -> None: ...

    def drop_family(self, family: int) -> None: ...


log = logging.getLogger("engines.models")

_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR, "verbose": logging.DEBUG}


class HostRequests:
    """The requests of one instance; they are dropped with its process."""

    def __init__(self, instance: str, infer: Submit, control: ModelControl, metrics: CustomMetricsInterface) -> None:
        self._instance = instance
        self._infer = infer
        self._control = control
        self._metrics = metrics
        self._inferences: dict[int, InferenceCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._drops: list[Callable[[], None]] = []  # drop each custom metric, the last one first

    def take(self, message: Message, channel: Channel) -> None:
        kind, _, *rest = message
        if kind == protocol.INFER:
            self._start(channel, *rest)
        elif kind == protocol.INFER_CANCEL:
            if call := self._inferences.get(rest[0]):
                call.cancel()
        elif kind == protocol.CONTROL:
            self._answer_control(channel, *rest)
        elif kind == protocol.METRIC:
            self._measure(*rest)
        elif kind == protocol.LOG:
            level, text, file, line = rest
            where = f" ({file}:{line})" if file else ""
            log.log(_LEVELS.get(level, logging.INFO), "%s: %s%s", self._instance, text, where)

    def drop(self) -> None:
        """The instance's process has ended: cancel its requests."""
        inferences, self._inferences = self._inferences, {}
        for call in inferences.values():
            call.cancel()
        for task in self._tasks:
            task.cancel()
        while self._drops:
            self._drops.pop()()

    def _start(self, channel: Channel, *fields: Any) -> None:
        """Start an inference (`protocol.INFER`)."""
        number, model, version, inputs, outputs, options, is_decoupled = fields
        tensors = tuple(unpack(each, channel.mapping) for each in inputs)
        is_starting = True

        def answer(response: InferResponse | None, is_final: bool) -> None:
            if is_final:
                self._inferences.pop(number, None)
            packed, parameters, error = None, None, None
            if response is not None:
                parameters = dict(response.parameters)
                if response.error is not None:
                    error = pack_error(_refused(model, response.error) if is_starting else response.error)
                try:
                    packed = [pack(tensor, channel.arena) for tensor in response.outputs] if channel.is_open else None
                except ArenaFullError as full:
                    error = pack_error(unavailable(str(full)))
            channel.send(protocol.ANSWER, number, packed, parameters, error, is_final)

        if refusal := self._refusal(model, version, is_decoupled):
            answer(InferResponse(error=internal(refusal)), True)
            return
        request = InferRequest(
            model=model, version=version, inputs=tensors, outputs=tuple(map(WantedOutput, outputs)), **options
        )
        call = self._inferences[number] = InferenceCall(request, answer, monotonic_ns())
        self._infer(call)
        is_starting = False

    def _refusal(self, model: str, version: str, is_decoupled: bool) -> str:
        """The reason for rejecting the inference; "" if there is none."""
        if not self._control.is_ready(model, version):
            return f"Failed for execute the inference request. Model '{model}' is not ready."
        if not is_decoupled and self._control.is_decoupled(model, version):
            return (
                f"Model {model} is using the decoupled. The current BLS request call doesn't support models using the "
                "decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' "
                "calls for decoupled models.'"
            )
        return ""

    def _answer_control(self, channel: Channel, number: int, operation: str, arguments: tuple[Any, ...]) -> None:
        if operation in ("load", "unload"):
            task = asyncio.ensure_future(self._change_models(channel, number, operation, arguments))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        value, error = None, None
        try:
            value = self._look_up(operation, *arguments)
        except EngineError as failure:
            error = pack_error(failure)
        channel.send(protocol.RESULT, number, value, error)

    async def _change_models(self, channel: Channel, number: int, operation: str, arguments: tuple[Any, ...]) -> None:
        error = None
        try:
            await (self._control.load if operation == "load" else self._control.unload)(*arguments)
        except EngineError as failure:
            error = pack_error(failure)
        except Exception as failure:
            error = pack_error(internal(str(failure)))
        channel.send(protocol.RESULT, number, None, error)

    def _look_up(self, operation: str, *arguments: Any) -> Any:
        if operation == "is_ready":
            return self._control.is_ready(*arguments)
        metrics = self._metrics
        if operation == "family":
            family = metrics.family(*arguments)
            self._drops.append(lambda: metrics.drop_family(family))
            return family
        if operation == "metric":
            metric = metrics.metric(*arguments)
            self._drops.append(lambda: metrics.drop_metric(metric))
            return metric
        return metrics.value(*arguments)

    def _measure(self, operation: str, metric: int, value: Change) -> None:
        try:
            self._metrics.change(operation, metric, value)
        except EngineError as error:
            log.warning("%s: %s", self._instance, error.message)


def _refused(model: str, error: EngineError) -> EngineError:
    """The error of a request that the scheduler rejected. Source: python_backend `src/request_executor.cc`,
    RequestExecutor::Infer."""
    return internal(f"Model {model} - Error when running inference: {error.message}")
