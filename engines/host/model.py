"""A version of a model that serves: what its requests pass through between a front and an instance."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, unavailable
from engines.core.messages import InferResponse
from engines.host.request_validation import RequestCheck
from engines.host.reshaping import Reshapes
from engines.host.response_interceptors import Watcher, watch
from engines.host.statistics import Statistics
from engines.host.tracing import PARENT, Trace, Tracer, TraceSampler
from engines.repository.interfaces import ModelSpec
from engines.scheduling.interfaces import RequestScheduler

Finish = Callable[[], Awaitable[None]]

# Names the BOOL input that a decoupled model streams by: without it, it answers once, so that infer may ask it too.
STREAM_INPUT_PARAMETER = "STREAM_INPUT"


class HostedModel:
    """A loaded version. Requests come by `submit`; `unload` lets those under way end.

    `finish` lets go of what runs the model, after the scheduler has stopped; `pids` are the processes that run it.
    """

    def __init__(
        self,
        spec: ModelSpec,
        config: Any,
        scheduler: RequestScheduler,
        *,
        statistics: Statistics,
        tracer: Tracer,
        now_ns: Callable[[], int],
        finish: Finish,
        pids: Callable[[], Sequence[int]] = tuple,
        is_cached: bool = False,
        is_ensemble: bool = False,
    ) -> None:
        self.spec = spec
        self.config = config
        self.name = spec.name
        self.version = str(spec.version)
        self.statistics = statistics
        self.is_decoupled: bool = config.model_transaction_policy.decoupled
        parameters = config.parameters
        self.stream_input: str = (
            parameters[STREAM_INPUT_PARAMETER].string_value if STREAM_INPUT_PARAMETER in parameters else ""
        )
        self.has_batches: bool = config.max_batch_size > 0
        self.is_cached = is_cached
        self.metric_tags: Mapping[str, str] = dict(config.metric_tags)
        self.num_in_flight = 0
        self.pids = pids
        self._scheduler = scheduler
        self._submit = scheduler.submit
        self._check = RequestCheck(config)
        self._reshapes = Reshapes(config)
        self._is_ensemble = is_ensemble
        self._now_ns = now_ns
        self._finish = finish
        self._tracer = tracer
        self._sampler: TraceSampler | None = None
        self._is_closing = False
        self._has_drained: asyncio.Event | None = None
        # Whether requests are watched on their way, whatever is traced.
        self._is_watched = bool(self._reshapes) or self.is_decoupled
        tracer.when_changed(self._follow_settings)
        self._follow_settings()

    def __repr__(self) -> str:
        return f"<HostedModel {self.name} {self.version}: {self.num_in_flight} in flight, {self.num_pending} pending>"

    @property
    def num_pending(self) -> int:
        """Requests that wait for an instance."""
        return self._scheduler.num_pending

    def labels(self, output: str) -> Sequence[str]:
        """The labels of an output's classes; none where it has none."""
        return self.spec.labels.get(output, ())

    def submit(self, call: InferenceCall) -> None:
        """Take a call that is for this version. It may end at once, with an error. Never raises."""
        try:
            call.batch_size = self._check(call.request)
        except EngineError as error:
            call.fail(error)
            return
        if self._is_closing:
            call.fail(unavailable(f"model '{self.name}' version {self.version} is being unloaded"))
            return
        if not call.arrived_ns:
            call.arrived_ns = self._now_ns()
        self.num_in_flight += 1
        call.when_over(self._ended)
        if self._is_watched or self._sampler is not None or PARENT in call.request.trace:
            self._watch(call)
        self._submit(call)

    async def unload(self) -> None:
        """Take nothing new, let what is under way end, and let go of everything."""
        self._is_closing = True
        if self.num_in_flight:
            self._has_drained = asyncio.Event()
            await self._has_drained.wait()
        self._tracer.forget(self._follow_settings)
        self._scheduler.stop()
        await self._finish()

    def give_up(self) -> None:
        """Wait no more for what is under way."""
        self._scheduler.stop()
        if self._has_drained is not None:
            self._has_drained.set()

    def _follow_settings(self) -> None:
        self._sampler = self._tracer.sampler(self.name)

    def _ended(self, call: InferenceCall) -> None:
        self.num_in_flight -= 1
        self.statistics.call_ended(call)
        if self._is_ensemble and call.error is None:
            self.statistics.batch_ended(call.batch_size, call)
        if self._is_closing and not self.num_in_flight and self._has_drained is not None:
            self._has_drained.set()

    def _watch(self, call: InferenceCall) -> None:
        watchers: list[Watcher] = []
        request = call.request
        if self._reshapes:
            call.request = replace(request, inputs=self._reshapes.inputs(request.inputs))
            watchers.append(self._reshape)
        if self.is_decoupled:
            watchers.append(self._counted())
        trace = self._trace(call)
        if trace is not None:
            trace.keep_inputs(request)
            watchers.append(_traced(trace))
            call.when_over(self._ended_traced(trace))
            if self._is_ensemble:
                self._tracer.open_for_steps(trace)
                call.request = replace(call.request, trace=trace.for_steps())
        if watchers:
            watch(call, watchers)

    def _trace(self, call: InferenceCall) -> Trace | None:
        request = call.request
        if PARENT in request.trace:
            parent = self._tracer.parent_of(request)
            call.request = replace(
                request, trace={name: said for name, said in request.trace.items() if name != PARENT}
            )
            return None if parent is None else parent.step(self.name, self.spec.version, request.id)
        sampler = self._sampler
        return None if sampler is None else sampler.sample(self.name, self.spec.version, request)

    def _reshape(self, response: InferResponse) -> InferResponse:
        return replace(response, outputs=self._reshapes.outputs(response.outputs)) if response.outputs else response

    def _counted(self) -> Watcher:
        """Counts the answers of a stream by their number."""
        number, last_ns = 0, self._now_ns()

        def count(response: InferResponse) -> InferResponse:
            nonlocal number, last_ns
            now = self._now_ns()
            is_error = response.error is not None
            self.statistics.response_sent(
                number, now - last_ns, is_error=is_error, is_empty=not is_error and not response.outputs
            )
            number, last_ns = number + 1, now
            return response

        return count

    def _ended_traced(self, trace: Trace) -> Callable[[InferenceCall], None]:
        def ended(call: InferenceCall) -> None:
            self._ended(call)
            self._tracer.close_for_steps(trace)
            trace.end(call, self._now_ns())

        return ended


def _traced(trace: Trace) -> Watcher:
    def keep(response: InferResponse) -> InferResponse:
        trace.keep_outputs(response)
        return response

    return keep
