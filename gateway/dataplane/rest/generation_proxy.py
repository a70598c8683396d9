"""A request to a language model that its engine understands as it is: passed on, with its tokens counted.

Until the first token has come the client has read nothing, so whatever goes wrong another endpoint may be tried:
generating twice harms nobody. After it, a reply that breaks off, or ends before the generation has, is told as broken.
"""

from __future__ import annotations

import re
from time import monotonic

from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client
from gateway.dataplane.context.outcome import Generated
from gateway.dataplane.context.snapshot import Lane
from gateway.dataplane.rest.exchange import Exchange
from gateway.limits.limit import expected_tokens, prompt_tokens
from gateway.protocol.engine_load import Readiness
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import Used
from gateway.protocol.llm.usage import ReplyUsage, StreamUsage, whole_usage
from gateway.protocol.operations import LlmApi
from gateway.upstream.engine import Engine
from gateway.wire.http1.body import LAST_CHUNK, ChunkedDecoder
from gateway.wire.http1.head import ResponseHead

# Answers that say: this server cannot, another one may.
_ELSEWHERE = frozenset({502, 503, 504})

# A stream's first events may say only that it begins. What is longer is no such event.
_MAX_HELD_BYTES = 8192
_TOKEN = re.compile(
    rb'"(?:content|text|text_output|reasoning(?:_content)?|thinking|arguments|partial_json|delta|refusal)" ?: ?"[^"]'
    rb'|"finish_reason" ?: ?"|"tool_calls" ?: ?\[\{|"error" ?: ?[{"]|\[DONE\]|"text" ?: ?\[|response\.completed'
    rb"|message_stop"
)

# What the last events of a stream that has ended well, or told of its failure, hold one of.
_OF_OPENAI = re.compile(rb'\[DONE\]|"finish_reason" ?: ?"|"error" ?: ?[{"]')
_ENDINGS = {
    LlmApi.CHAT: _OF_OPENAI,
    LlmApi.COMPLETIONS: _OF_OPENAI,
    LlmApi.MESSAGES: re.compile(rb'"message_stop"|"error" ?: ?[{"]'),
    LlmApi.RESPONSES: re.compile(rb'"response\.(?:completed|incomplete|failed)"|"error" ?: ?[{"]'),
}
# Some engines (transformers) write no `[DONE]`; usage comes last where they write it.
_TELL_USAGE_LAST = (LlmApi.CHAT, LlmApi.COMPLETIONS)

# What an event ends with, by itself and as a chunk.
_EVENT_END = b"\n\n"
_FRAMED_END = b"\n\n\r\n"
_MAX_ENDING_BYTES = 64

_NOTHING = Used()

_CUT_OFF = "the engine ended its reply before the generation had ended"


class GenerationExchange(Exchange):
    """An `Exchange` that knows what a generation is."""

    __slots__ = (
        "_before",
        "_first_token_at",
        "_has_told_its_end",
        "_held",
        "_held_head",
        "_is_framed",
        "_last",
        "_told",
        "_usage",
        "_was_whole",
    )

    def __init__(self, client: Client, request: Request, decided: tuple[Lane, str | None] | None = None) -> None:
        super().__init__(client, request, decided)
        self._usage: StreamUsage | ReplyUsage | None = None
        self._told: Used | None = None  # by a reply that came in one piece
        self._held_head: ResponseHead | None = None  # of a reply without a token so far
        self._held = b""
        self._first_token_at = 0.0
        # Of a stream, what came last, and before
        self._before = self._last = b""
        self._is_framed = False
        self._was_whole = False  # whether an event's end was the last that came
        self._has_told_its_end = False

    # The reply

    def reply_started(self, head: ResponseHead, data: bytes, ended: bool) -> None:
        self._held_head = None
        if head.status in _ELSEWHERE and self._goes_elsewhere(head, ended):
            return
        if head.length is not None:  # mostly a whole reply, whose first token is its last
            if ended:
                self._usage, self._told = None, whole_usage(data)
            else:
                self._usage = usage = ReplyUsage()
                self._is_framed = False  # as the try before may have been
                usage.scan(data)
            super().reply_started(head, data, ended)
            return
        is_stream = _is_readable_stream(head)
        self._usage = StreamUsage() if is_stream else ReplyUsage()
        is_payload = self._client.takes_payload or self._plan.head.is_http_10
        self._is_framed = head.is_chunked and not is_payload
        self._before = self._last = b""
        self._was_whole = self._has_told_its_end = False
        if is_stream and not ended and not _TOKEN.search(data):
            self._held_head, self._held = head, data
            return
        self._begin(head, data, ended)

    def reply_continued(self, data: bytes, ended: bool) -> None:
        head = self._held_head
        if head is not None:
            data = self._held + data
            if not ended and len(data) < _MAX_HELD_BYTES and not _TOKEN.search(data):
                self._held = data
                return
            self._held_head, self._held = None, b""
            self._begin(head, data, ended)
            return
        self._scan(data)
        if ended and not self._has_ended_well(self._status):
            self._cut_off(data)
            return
        super().reply_continued(data, ended)

    def _begin(self, head: ResponseHead, data: bytes, ended: bool) -> None:
        self._first_token_at = monotonic()
        self._scan(data)
        if not ended or self._has_ended_well(head.status):
            is_told_by_close = ended and head.ends_at_close
            super().reply_started(head, data, ended and not is_told_by_close)
            if is_told_by_close and self._is_trying:
                super().reply_continued(b"", True)
            return
        if _TOKEN.search(data):
            super().reply_started(head, data.removesuffix(LAST_CHUNK), False)
        self._cut_off(b"")

    def _scan(self, data: bytes) -> None:
        """Count what has come, and look for the end."""
        usage = self._usage
        assert usage is not None
        is_whole = data.endswith(_FRAMED_END if self._is_framed else _EVENT_END)
        if is_whole and self._was_whole:  # the usual case: framing stands before events and behind them
            self._before = self._last
            self._last = data
        else:
            self._was_whole = is_whole
            if self._is_framed:
                data = ChunkedDecoder().feed(data)
            if isinstance(usage, StreamUsage):
                told = self._has_told_its_end or self._tells_its_end()
                self._last = self._last[-_MAX_ENDING_BYTES:] + data
                self._has_told_its_end = told or self._tells_its_end()
        usage.scan(data)

    def _tells_its_end(self) -> bool:
        api = self._plan.call.api
        ending = _ENDINGS.get(api) if api is not None else None
        return ending is None or ending.search(self._last) is not None or ending.search(self._before) is not None

    def _has_ended_well(self, status: int) -> bool:
        usage = self._usage
        if status != 200 or not isinstance(usage, StreamUsage) or self._has_told_its_end or self._tells_its_end():
            return True
        return usage.used is not None and self._plan.call.api in _TELL_USAGE_LAST

    def _cut_off(self, data: bytes) -> None:
        """The engine has ended the reply as if it were whole: nobody must take it for that."""
        self._connection = None
        data = data.removesuffix(LAST_CHUNK)
        if data:
            super().reply_continued(data, False)
        if self._is_trying:
            self._try_failed(GatewayError(ErrorKind.UPSTREAM_RESET, _CUT_OFF), was_sent=True)

    # Trying again

    def _keeps_its_body(self, engine: Engine) -> bool:
        return True

    def _is_idempotent(self, declared: str) -> bool:
        return True  # nothing of a generation is left behind, and nobody has read any of it

    def _goes_elsewhere(self, head: ResponseHead, ended: bool) -> bool:
        """Whether another endpoint is asked in place of the one that says it cannot serve."""
        lane, endpoint = self._lane, self._endpoint
        assert lane is not None and endpoint is not None
        seen = (*self._tried, endpoint)
        if all(other in seen or other.condition is Readiness.DOWN for other in lane.engine.endpoints):
            return False
        if not self._may_try_again(was_sent=True):
            return False
        if ended:
            self._connection = None
        self._leave(not endpoint.counts_as_failure(head.status), goes_on=True)
        self._try_again(GatewayError(ErrorKind.UPSTREAM_RESET, f"the engine answered with status {head.status}"))
        return True

    # Limits

    def expected_tokens(self) -> int:
        return expected_tokens(self._body.held(), max(self._request.length or 0, self._body.size))

    def _used_tokens(self, expected: int) -> int:
        """What the engine has counted; where it has not, what was expected."""
        if self._status != 200:
            return 0
        used = self._used()
        if used.prompt:
            return used.prompt + used.completion
        if used.completion:
            return prompt_tokens(self._body.size) + used.completion
        return expected

    # Ends

    def _finish(self, now: float) -> None:
        series = self._series
        assert series is not None
        if self._status == 200:
            tokens, used = series.tokens or series.count_tokens(), self._used()
            tokens.prompt += used.prompt
            tokens.cached += used.cached
            tokens.completion += used.completion
            if self._is_event_stream:
                tokens.first_token.observe(self._first_token_at - self._started_at)
                if used.completion > 1:
                    tokens.per_token.observe((now - self._first_token_at) / (used.completion - 1))
            meter = self._meter
            if meter is not None:
                first = self._first_token_at if self._is_event_stream else 0.0
                per_token = (now - first) / (used.completion - 1) if first and used.completion > 1 else None
                meter.generated(used.prompt, used.completion, first - self._started_at if first else None, per_token)
        super()._finish(now)

    def generated(self) -> Generated | None:
        first_token_at = self._first_token_at if self._is_event_stream else 0.0
        return Generated(self._used(), first_token_at, monotonic()) if self._status == 200 else None

    def _used(self) -> Used:
        """The tokens so far; of a stream whose engine does not count them, its events."""
        usage = self._usage
        if usage is None:
            return self._told or _NOTHING
        return usage.used or Used(completion=usage.num_events if isinstance(usage, StreamUsage) else 0)

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        noticed_at = monotonic()
        had_asked = self._is_trying
        super().client_gone(reason, status)
        if had_asked and self._series is not None:
            tokens = self._series.count_tokens()
            tokens.stop.observe(monotonic() - noticed_at)
            tokens.cancelled += self._used().completion


def _is_readable_stream(head: ResponseHead) -> bool:
    """Whether events come one by one, and as they are: a compressed stream passes unread."""
    content_type = head.value(b"content-type") or b""
    coding = head.value(b"content-encoding") or b"identity"
    return content_type.startswith(b"text/event-stream") and coding == b"identity"
