"""Decisions, as they are told to whoever watches: a sample of the requests that have ended, with the facts that the
rules had of them. Bodies are never told, only what rules may ask of them; and values no longer than they need be.

While nobody watches there is no sampler, and a request pays for none.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from dataclasses import replace
from time import monotonic, time
from typing import Any, NamedTuple

from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.request_body import RequestBody, decoded
from gateway.protocol.errors import GatewayError
from gateway.protocol.llm.request_facts import read_generation_facts
from gateway.protocol.operations import FLEET_OPERATIONS, INFERENCE_OPERATIONS, OF_V2
from gateway.protocol.v2_facts import NO_BODY, BodyFacts, Scalar
from gateway.routing.decision import Facts, Target

Json = dict[str, Any]

# What waits to be told, until it is.
_FLUSH_SECONDS = 0.25
_MAX_WAITING = 1000
# Of a name or a value, and of a request's headers, parameters and inputs: a record of traffic is no copy of it.
_MAX_TEXT = 256
_MAX_ITEMS = 32

CUT = "***"


class Known(NamedTuple):
    """What is at hand of a request that has ended; `read_body` gives what rules may ask of its body, None where that is
    no longer here."""

    facts: Facts
    session: str | None = None
    read_body: Callable[[], BodyFacts | None] | None = None


def known_of(request: Request, body: RequestBody | None = None) -> Known | None:
    """What the rules knew of a request; None where they were never asked."""
    facts: Facts | None = getattr(request.plan, "facts", None)
    if facts is None:
        return None
    if request.units:
        facts = replace(facts, headers={**facts.headers, **request.units})
    return Known(facts, request.session, None if body is None else lambda: _facts_in(request, body))


def _facts_in(request: Request, body: RequestBody) -> BodyFacts | None:
    if not body.size:
        return NO_BODY
    if not (body.is_complete and body.can_be_sent_again):
        return None
    if request.plan.api is None or request.plan.api in OF_V2:
        return body.facts(request.plan.call.operation, _MAX_BODY_BYTES)
    try:
        return read_generation_facts(decoded(request, body.held(), _MAX_BODY_BYTES))
    except GatewayError:
        return NO_BODY


# Of one that was compressed, once it is not.
_MAX_BODY_BYTES = 16 * 1024 * 1024


class DecisionSampler:
    """Takes a share of the requests, so many a second at most, and tells them in batches."""

    def __init__(
        self,
        rate: float,
        share: float,
        with_body_facts: bool,
        redacted: Collection[str],
        tell: Callable[[list[Json], int], None],
    ) -> None:
        """`redacted` are names of headers and parameters, in lower case, whose values are told to nobody."""
        self._rate = rate
        self._share = share
        self.with_body_facts = with_body_facts
        self._redacted = frozenset(redacted)
        self._tell = tell
        self.asked: Collection[str] = ()  # the parameters whose texts are told
        self._allowance = rate
        self._seen_at = monotonic()
        self._waiting: list[Json] = []
        self._num_skipped = 0
        self._flushing: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<DecisionSampler {self._share:.1%}, {self._rate:g}/s, {len(self._waiting)} wait>"

    def note(
        self,
        known: Known,
        status: int,
        reason: str,
        seconds: float,
        request_id: bytes,
        target: Target | None,
        endpoint: str,
    ) -> None:
        """Tell of a request, if it is one of those that are taken."""
        facts = known.facts
        if not facts.model or facts.operation in FLEET_OPERATIONS:
            return  # no route decides on it alone
        if self._share < 1 and random.random() >= self._share:
            return
        if not self._is_allowed():
            self._num_skipped += 1
            self._flush_soon()
            return
        self._waiting.append(
            {
                "time": time(),
                "id": request_id.decode("latin-1"),
                "route": target.route if target is not None else None,
                "experiment": target.experiment if target is not None else None,
                "arm": target.arm if target is not None else None,
                "engine": target.engine if target is not None else None,
                "endpoint": endpoint or None,
                "model": _text(facts.model),
                "version": facts.version,
                "protocol": facts.protocol,
                "operation": facts.operation.value,
                "session": _text(known.session) if known.session is not None else None,
                "status": status,
                "reason": reason,
                "seconds": seconds,
                "facts": self._told(known),
            }
        )
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
            self._tell(waiting, skipped)

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

    def _told(self, known: Known) -> Json:
        facts = known.facts
        body = facts.body
        if body is None and facts.operation not in INFERENCE_OPERATIONS:
            body = NO_BODY
        if body is None and self.with_body_facts and known.read_body is not None:
            body = known.read_body()
        told: Json = {"header": self._values(facts.headers), "body": body is not None}
        if facts.forced is not None:
            told["force"] = f"{facts.forced.experiment}={facts.forced.arm}"
        if body is not None:
            told["parameter"], told["left_out"] = self._parameters(body)
            told["input"] = [
                {
                    "name": _text(tensor.name),
                    "datatype": tensor.datatype,
                    "shape": list(tensor.shape),
                    "bytes": tensor.num_bytes,
                }
                for tensor in body.inputs[:_MAX_ITEMS]
            ]
            told["has_image"] = body.has_image
        return told

    def _parameters(self, body: BodyFacts) -> tuple[dict[str, Scalar], list[str]]:
        """Numbers, flags, and texts that rules ask for; and the names of the others."""
        told, left_out = {}, []
        for name, value in body.parameters.items():
            if isinstance(value, str) and name not in self.asked:
                left_out.append(_text(name))
            else:
                told[name] = value
        return self._values(told), left_out[:_MAX_ITEMS]

    def _values(self, values: Any) -> dict[str, Scalar]:
        return {
            _text(name): CUT if name.lower() in self._redacted else _text(value) if isinstance(value, str) else value
            for name, value in list(values.items())[:_MAX_ITEMS]
        }


def _text(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT]
