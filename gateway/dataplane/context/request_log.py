"""The logs of ended requests in one worker: the access log, traces, and samples for the decision log.

A sample has the facts that the rules decided on: of a body, only those that rules may read, and cut values. A sampler
exists only while there is a subscriber.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from dataclasses import replace
from math import inf
from time import monotonic, time
from typing import Any

from gateway.config.settings import Limits
from gateway.dataplane.context.ended_request import (
    AttemptHistory,
    DecisionFacts,
    EndedRequest,
    attempt_spans,
    log_entry,
    record_span,
)
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.log_lines import LogLines
from gateway.dataplane.context.request_body import RequestBody, document
from gateway.observability.access_log import AccessLog
from gateway.observability.request_trace import RequestTrace
from gateway.observability.spans import SpanRecorder
from gateway.protocol.credentials import is_credential
from gateway.protocol.errors import GatewayError
from gateway.protocol.llm.request_facts import read_generation_facts
from gateway.protocol.operations import FLEET_OPERATIONS, INFERENCE_OPERATIONS, OF_V2
from gateway.protocol.v2_facts import NO_BODY, BodyFacts, Scalar
from gateway.routing.decision import Facts

Json = dict[str, Any]

_FLUSH_SECONDS = 0.25
_MAX_WAITING = 1000
# Bounds of a name or a value, and of a request's headers, parameters and inputs.
_MAX_TEXT = 256
_MAX_ITEMS = 32

CUT = "***"


# What is read of a body, whatever the rules may read.
_LIMITS = Limits()


def decision_facts(request: Request, body: RequestBody | None = None) -> DecisionFacts | None:
    """The facts of a request; None where the rules did not decide on it."""
    facts: Facts | None = getattr(request.plan, "facts", None)
    if facts is None:
        return None
    if request.units:
        facts = replace(facts, headers={**facts.headers, **request.units})
    return DecisionFacts(facts, request.session, None if body is None else lambda: _facts_in(request, body))


def _facts_in(request: Request, body: RequestBody) -> BodyFacts | None:
    if not body.size:
        return NO_BODY
    if not (body.is_complete and body.can_be_sent_again):
        return None
    try:
        if request.plan.api is None or request.plan.api in OF_V2:
            return body.facts(request.plan.call.operation, _LIMITS)
        return read_generation_facts(document(request, body.held(), _LIMITS))
    except GatewayError:
        return NO_BODY


class DecisionSampler:
    """Samples a share of the requests, up to `rate` a second, and reports them in batches."""

    def __init__(
        self,
        rate: float,
        share: float,
        with_body_facts: bool,
        redacted: Collection[str],
        report: Callable[[list[Json], int], None],
    ) -> None:
        """`redacted` are names of headers and parameters beside those of credentials, in lower case."""
        self._rate = rate
        self._share = share
        self.with_body_facts = with_body_facts
        self._redacted = frozenset(redacted)
        self._report = report
        self.parameters: Collection[str] = ()  # that rules read: their texts are reported
        self._allowance = rate
        self._seen_at = monotonic()
        self._waiting: list[Json] = []
        self._num_skipped = 0
        self._flushing: asyncio.TimerHandle | None = None

    def add(self, ended: EndedRequest) -> None:
        known, target = ended.facts, ended.target
        if known is None:
            return
        facts = known.facts
        if not facts.model or facts.operation in FLEET_OPERATIONS:
            return  # no single route decides on it
        if self._share < 1 and random.random() >= self._share:
            return
        if not self._is_allowed():
            self._num_skipped += 1
            self._flush_soon()
            return
        self._waiting.append(
            {
                "time": time(),
                "id": ended.request_id.decode("latin-1"),
                "route": target.route if target is not None else None,
                "experiment": target.experiment if target is not None else None,
                "arm": target.arm if target is not None else None,
                "engine": target.engine if target is not None else None,
                "endpoint": ended.endpoint or None,
                "model": _text(facts.model),
                "version": facts.version,
                "protocol": facts.protocol,
                "operation": facts.operation.value,
                "session": _text(known.session) if known.session is not None else None,
                "status": ended.status,
                "reason": ended.reason,
                "seconds": ended.seconds,
                "facts": self._facts(known),
            }
        )
        if ended.principal is not None:
            self._waiting[-1] |= {"tenant": _text(ended.principal.tenant), "key": _text(ended.principal.key)}
        if len(self._waiting) >= _MAX_WAITING:
            self.flush()
        else:
            self._flush_soon()

    def flush(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        waiting, self._waiting = self._waiting, []
        skipped, self._num_skipped = self._num_skipped, 0
        if waiting or skipped:
            self._report(waiting, skipped)

    def close(self) -> None:
        self.flush()

    def _flush_soon(self) -> None:
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self.flush)

    def _is_allowed(self) -> bool:
        now = monotonic()
        self._allowance = min(self._rate, self._allowance + (now - self._seen_at) * self._rate)
        self._seen_at = now
        if self._allowance < 1 and self._allowance < self._rate:
            return False
        self._allowance -= 1
        return True

    def _facts(self, known: DecisionFacts) -> Json:
        facts = known.facts
        body = facts.body
        if body is None and facts.operation not in INFERENCE_OPERATIONS:
            body = NO_BODY
        if body is None and self.with_body_facts and known.read_body is not None:
            body = known.read_body()
        fields: Json = {"header": self._values(facts.headers), "body": body is not None}
        if facts.forced is not None:
            fields["force"] = f"{facts.forced.experiment}={facts.forced.arm}"
        if body is not None:
            fields["parameter"], fields["left_out"] = self._parameters(body)
            fields["input"] = [
                {
                    "name": _text(tensor.name),
                    "datatype": tensor.datatype,
                    "shape": list(tensor.shape),
                    "bytes": tensor.num_bytes,
                }
                for tensor in body.inputs[:_MAX_ITEMS]
            ]
            fields["has_image"] = body.has_image
        return fields

    def _parameters(self, body: BodyFacts) -> tuple[dict[str, Scalar], list[str]]:
        """Numbers, flags, and the texts that rules read; and the names of the others."""
        values, left_out = {}, []
        for name, value in body.parameters.items():
            if isinstance(value, str) and name not in self.parameters:
                left_out.append(_text(name))
            else:
                values[name] = value
        return self._values(values), left_out[:_MAX_ITEMS]

    def _values(self, values: Any) -> dict[str, Scalar]:
        return {
            _text(name): CUT if self._is_redacted(name) else _text(value) if isinstance(value, str) else value
            for name, value in list(values.items())[:_MAX_ITEMS]
        }

    def _is_redacted(self, name: str) -> bool:
        return is_credential(name) or name.lower() in self._redacted


def _text(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT]


class RequestLog:
    """`is_on`: some log takes ended requests, and `takes_all`: it takes all of them. `keeps_bodies`: bodies are held
    until then, for the facts that rules may read in them. `share` of the requests that have not failed stand in the
    access log."""

    def __init__(self, access_log: AccessLog | None, spans: SpanRecorder | None = None, *, share: float = 1.0) -> None:
        self._access_log = access_log
        self._spans = spans
        self._share = share
        self._slow = spans.slow if spans is not None else inf
        self._is_drawn: bool | None = None  # for the access log, where `takes` has been asked of this request
        self._sampler: DecisionSampler | None = None
        self._parameters: Collection[str] = ()  # those that the rules read
        self.keeps_bodies = False
        self._changed()

    def _changed(self) -> None:
        self._lines = LogLines() if self._access_log is not None and self._access_log.format == "otel" else None
        self.is_on = self._access_log is not None or self._sampler is not None or self._spans is not None
        self.takes_all = self._sampler is not None or (self._access_log is not None and self._share >= 1)

    @property
    def access_log(self) -> AccessLog | None:
        return self._access_log

    @access_log.setter
    def access_log(self, access_log: AccessLog | None) -> None:
        self._access_log = access_log
        self._changed()

    def sample(self, sampler: DecisionSampler | None) -> None:
        """Report ended requests to this sampler instead of the one before; None: to none."""
        if self._sampler is not None:
            self._sampler.close()
        self._sampler = sampler
        if sampler is not None:
            sampler.parameters = self._parameters
        self.keeps_bodies = sampler is not None and sampler.with_body_facts
        self._changed()

    def use_parameters(self, parameters: Collection[str]) -> None:
        """The rules have changed, and read these."""
        self._parameters = parameters
        if self._sampler is not None:
            self._sampler.parameters = parameters

    def takes(self, status: int, seconds: float, attempts: AttemptHistory, trace: RequestTrace | None) -> bool:
        """Whether some log takes a request that an engine has answered; asked where not all are taken."""
        is_drawn = self._is_drawn = self._access_log is not None and (status >= 400 or random.random() < self._share)
        if is_drawn or trace is not None or seconds >= self._slow:
            return True
        return self._spans is not None and (status >= 500 or bool(attempts.past))

    def add(self, ended: EndedRequest) -> None:
        """Report a request; called only where `is_on`."""
        if self._sampler is not None:
            self._sampler.add(ended)
        if self._spans is not None:
            self._trace(self._spans, ended)
        if self._access_log is not None:
            is_drawn, self._is_drawn = self._is_drawn, None
            if is_drawn or ended.status >= 400 or ended.reason or (is_drawn is None and random.random() < self._share):
                if self._lines is not None:
                    self._access_log.write_line(self._lines.line(ended))
                else:
                    self._access_log.write(log_entry(ended))

    # Traces

    def _trace(self, spans: SpanRecorder, ended: EndedRequest) -> None:
        trace, now = ended.trace, monotonic()
        if trace is None:
            num_attempts = 1 + len(ended.attempts.past) if ended.attempts is not None else 0
            why = spans.why(None, ended.status, ended.reason, ended.seconds, num_attempts)
            if why:
                record_span(spans, ended, None, why, attempt_spans(ended, None, now), now)
        elif trace.is_held or trace.attempts or not trace.is_sampled:
            trace.add(attempt_spans(ended, trace, now))
            trace.ended = ended
            if not trace.is_held:
                self.release(trace)
        else:
            record_span(spans, ended, trace, "head", attempt_spans(ended, trace, now), now)

    def release(self, trace: RequestTrace | None) -> None:
        """From here on the end of a handler is that of the request; a handler that has ended was the last."""
        if trace is None or self._spans is None:
            return
        trace.is_held = False
        ended, trace.ended = trace.ended, None
        if isinstance(ended, EndedRequest):
            now = monotonic()
            seconds, num_attempts = now - trace.started_at, len(trace.attempts)
            why = self._spans.why(trace, ended.status, ended.reason, seconds, num_attempts)
            if why:
                record_span(self._spans, ended, trace, why, trace.attempts, now)

    def close(self) -> None:
        if self._access_log is not None:
            self._access_log.close()
        if self._spans is not None:
            self._spans.flush()
        self.sample(None)
