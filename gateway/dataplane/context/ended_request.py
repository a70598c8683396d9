"""A request that has ended, as its handler reports it, and what the logs and traces make of that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from time import monotonic
from typing import Any, NamedTuple, Protocol

from gateway.observability.access_log import AccessLogEntry
from gateway.observability.request_trace import NO_LINK, RequestTrace
from gateway.observability.spans import SpanRecorder
from gateway.protocol.llm.canonical import TokenUsage
from gateway.protocol.principal import Principal
from gateway.protocol.v2_facts import BodyFacts
from gateway.routing.decision import Facts, Target

# The request line of a request that could not be read.
UNREAD = ("-", "-")

_NO_TOKENS = TokenUsage()


class DecisionFacts(NamedTuple):
    """The facts of a request; `read_body` returns those of its body, None where the body is not kept."""

    facts: Facts
    session: str | None = None
    read_body: Callable[[], BodyFacts | None] | None = None


class AttemptHistory(Protocol):
    """The attempts of a request, as far as logs tell of them; see `UpstreamAttempts`."""

    waited: float
    queued: float
    first_byte_at: float
    status: int

    @property
    def attempt(self) -> Any:
        """The latest one."""

    @property
    def past(self) -> Sequence[tuple[Any, float, str]]:
        """Those before it: each with its end and what became of it."""

    @property
    def provider(self) -> str:
        """The engine's protocol."""


class Generated(NamedTuple):
    """What a generation has brought; `first_token_at` is of `time.monotonic`, 0 where it was not streamed."""

    used: TokenUsage = _NO_TOKENS
    first_token_at: float = 0.0
    finish_reason: str = ""


NOTHING = Generated()


class EndedRequest(NamedTuple):
    """A request that has ended, for the logs. `request_line` are its method and path, `status` is HTTP's, `reason` the
    kind of a failure or empty; `target` is where the rules have sent it, if anywhere, and `endpoint` a URL or empty;
    `principal` is the verified caller. `code` is the status of gRPC, -1 without one; `is_rpc`: the client uses gRPC,
    `sent_by_rpc`: the engine got it that way."""

    peer: str
    request_line: tuple[str, str]
    status: int
    reason: str
    seconds: float
    request_id: bytes = b""
    target: Target | None = None
    endpoint: str = ""
    facts: DecisionFacts | None = None
    principal: Principal | None = None
    trace: RequestTrace | None = None
    attempts: AttemptHistory | None = None
    generated: Generated = NOTHING
    request_bytes: int = 0
    response_bytes: int = 0
    code: int = -1
    is_rpc: bool = False
    sent_by_rpc: bool = False


def session_hash(session: str | None) -> str:
    """What stands for a session in logs: its name may be a person's."""
    return blake2b(session.encode(), digest_size=8).hexdigest() if session else ""


def log_entry(ended: EndedRequest) -> AccessLogEntry:
    method, path = ended.request_line
    target, principal, known, attempts, trace = ended.target, ended.principal, ended.facts, ended.attempts, ended.trace
    facts = known.facts if known is not None else None
    used, first_token_at, finish_reason = ended.generated
    entry = AccessLogEntry(
        ended.peer,
        method,
        path,
        target.route if target is not None else "",
        (target.arm or "") if target is not None else "",
        target.engine if target is not None else "",
        ended.endpoint,
        ended.status,
        ended.reason,
        ended.seconds,
        ended.request_id.decode("latin-1"),
        principal.tenant if principal is not None else "",
        principal.key if principal is not None else "",
        target.stands_in_for.value if target is not None and target.stands_in_for is not None else "",
        target.hedge.value if target is not None and target.hedge is not None else "",
    )
    if facts is not None:
        entry.model, entry.version = facts.model, facts.version or ""
        entry.protocol, entry.operation = facts.protocol, facts.operation.value
    if ended.is_rpc:
        entry.protocol = "grpc"
    if known is not None and known.session is not None:
        entry.session = session_hash(known.session)
    if target is not None and target.model is not None:
        entry.engine_model = target.model
    entry.request_bytes, entry.response_bytes = ended.request_bytes, ended.response_bytes
    entry.prompt_tokens, entry.completion_tokens, entry.cached_tokens = used.prompt, used.completion, used.cached
    entry.finish_reason = finish_reason
    entry.code = ended.code
    if attempts is not None:
        latest = attempts.attempt
        entry.attempts = len(attempts.past) + (latest is not None)
        entry.waited = attempts.waited
        first_at = first_token_at or attempts.first_byte_at
        if first_at:
            entry.first_seconds = ended.seconds - (monotonic() - first_at)
    if trace is not None and trace.is_sampled:
        entry.trace_id, entry.span_id = trace.trace_id.decode("ascii"), trace.span_id.decode("ascii")
    return entry


def attempt_spans(ended: EndedRequest, trace: RequestTrace | None, now: float) -> list[tuple[Any, ...]]:
    """The fields of an `AttemptSpan` for each attempt; those of a `trace` have ids already."""
    attempts, target = ended.attempts, ended.target
    if attempts is None:
        return []
    engine, by_rpc = target.engine if target is not None else "", ended.sent_by_rpc
    latest = attempts.attempt
    spans: list[tuple[Any, ...]] = []
    for attempt, ended_at, failure in attempts.past:
        if attempt is latest:
            latest = None
        spans.append(_attempt_span(attempt, trace, engine, 0.0, ended_at, 0, failure, by_rpc))
    if latest is not None:
        first_at, status = attempts.first_byte_at, attempts.status
        spans.append(_attempt_span(latest, trace, engine, first_at, now, status, ended.reason, by_rpc))
    return spans


def _attempt_span(
    attempt: Any,
    trace: RequestTrace | None,
    engine: str,
    first_at: float,
    ended_at: float,
    status: int,
    failure: str,
    by_rpc: bool,
) -> tuple[Any, ...]:
    span_id = trace.span_id_of(attempt) if trace is not None else b""
    url, begun_at, sent_at = attempt.endpoint.url, attempt.begun_at, attempt.sent_at
    return span_id, engine, url, begun_at, sent_at, first_at, ended_at, status, failure, by_rpc


def record_span(
    spans: SpanRecorder,
    ended: EndedRequest,
    trace: RequestTrace | None,
    why: str,
    attempts: Sequence[tuple[Any, ...]],
    now: float,
) -> None:
    """Record a request as a `RequestSpan`; ids that are empty are made where it is exported."""
    if spans.is_full:
        return
    history = ended.attempts
    if trace is not None:
        ids, started_at = (trace.trace_id, trace.span_id, trace.parent_id), trace.started_at
    else:
        ids, started_at = (b"", b"", b""), now - ended.seconds
    record = (
        spans.common(common_of(ended), ended, _common_values),
        attempts,
        _rare_values(ended, trace),
        *ids,
        why,
        started_at,
        now,
        history.first_byte_at if history is not None else 0.0,
        ended.peer,
        ended.request_id.decode("latin-1"),
        ended.status,
        ended.code,
        ended.reason,
        ended.request_bytes,
        ended.response_bytes,
    )
    spans.add(record)


def common_of(ended: EndedRequest) -> tuple[object, ...]:
    """What many requests have in common; some of it by identity, which is right while such a request is kept."""
    known = ended.facts
    if known is None:
        return id(ended.target), id(ended.principal), id(ended.request_line), ended.is_rpc
    facts = known.facts  # whose protocol and operation follow from the line
    return id(ended.target), id(ended.principal), id(ended.request_line), ended.is_rpc, facts.model, facts.version


def _common_values(ended: EndedRequest) -> tuple[Any, ...]:
    """The first fields of `RequestSpan`."""
    target, principal, attempts = ended.target, ended.principal, ended.attempts
    facts = ended.facts.facts if ended.facts is not None else None
    provider = attempts.provider if attempts is not None else ""
    return (
        "grpc" if ended.is_rpc else facts.protocol if facts is not None else "",
        *ended.request_line,
        facts.operation.value if facts is not None else "",
        provider,
        facts.model if facts is not None else "",
        (facts.version or "") if facts is not None else "",
        target.route if target is not None else "",
        (target.arm or "") if target is not None else "",
        target.engine if target is not None else "",
        (target.model or "") if target is not None else "",
        principal.tenant if principal is not None else "",
        principal.key if principal is not None else "",
        target.stands_in_for.value if target is not None and target.stands_in_for is not None else "",
        target.hedge.value if target is not None and target.hedge is not None else "",
    )


def _rare_values(ended: EndedRequest, trace: RequestTrace | None) -> tuple[Any, ...]:
    history, known, generated = ended.attempts, ended.facts, ended.generated
    session = known.session if known is not None else None
    waited = history is not None and history.waited
    if generated is NOTHING and session is None and not waited and (trace is None or trace.link is NO_LINK):
        return ()
    used = generated.used
    return (
        generated.first_token_at,
        history.waited if history is not None else 0.0,
        history.queued if history is not None else 0.0,
        session_hash(session),
        used.prompt,
        used.cached,
        used.completion,
        generated.finish_reason,
        *(trace.link if trace is not None else NO_LINK),
    )
