"""A request to a language model that its engine takes as it is: passed on, with its tokens counted.

Until the first token has come the client has read nothing, so another attempt does no harm, whatever goes wrong. After
it, a reply that breaks off, or ends before the generation has, is reported as broken.
"""

from __future__ import annotations

import re
from time import monotonic

from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client
from gateway.dataplane.context.outcome import GenerationUsage
from gateway.dataplane.context.snapshot import Lane
from gateway.dataplane.rest.exchange import Exchange
from gateway.limits.limit import expected_tokens, prompt_tokens
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import Used
from gateway.protocol.llm.usage import ReplyUsage, StreamUsage, whole_usage
from gateway.protocol.operations import LlmApi
from gateway.wire.http1.body import LAST_CHUNK, ChunkedDecoder
from gateway.wire.http1.head import ResponseHead

# Statuses that say: this server cannot, another one may.
_ELSEWHERE = frozenset({502, 503, 504})

# A stream's first events may say only that it begins. What is longer is no such event.
_MAX_HELD_BYTES = 8192
_TOKEN = re.compile(
    rb'"(?:content|text|text_output|reasoning(?:_content)?|thinking|arguments|partial_json|delta|refusal)" ?: ?"[^"]'
    rb'|"finish_reason" ?: ?"|"tool_calls" ?: ?\[\{|"error" ?: ?[{"]|\[DONE\]|"text" ?: ?\[|response\.completed'
    rb"|message_stop"
)

# One of these stands in the last events of a stream that has ended well, or has reported its failure.
_OF_OPENAI = re.compile(rb'\[DONE\]|"finish_reason" ?: ?"|"error" ?: ?[{"]')
_ENDINGS = {
    LlmApi.CHAT: _OF_OPENAI,
    LlmApi.COMPLETIONS: _OF_OPENAI,
    LlmApi.MESSAGES: re.compile(rb'"message_stop"|"error" ?: ?[{"]'),
    LlmApi.RESPONSES: re.compile(rb'"response\.(?:completed|incomplete|failed)"|"error" ?: ?[{"]'),
}
# Some engines (transformers) write no `[DONE]`; usage comes last where they write it.
_USAGE_COMES_LAST = (LlmApi.CHAT, LlmApi.COMPLETIONS)

# What an event ends with, by itself and as a chunk.
_EVENT_END = b"\n\n"
_FRAMED_END = b"\n\n\r\n"
_MAX_ENDING_BYTES = 64

_NOTHING = Used()

_CUT_OFF = "the engine ended its reply before the generation had ended"


class GenerationReply:
    """The generation in a reply: the tokens and, of a stream, whether it ended well.

    `head` is that of a stream without a token so far: it is held back with what has come of the stream. `is_framed`:
    its pieces are chunks of HTTP/1.1.
    """

    __slots__ = (
        "_api",
        "_before",
        "_is_framed",
        "_last",
        "_saw_end",
        "_usage",
        "_was_whole",
        "first_token_at",
        "head",
        "held",
    )

    def __init__(self, api: LlmApi | None, usage: StreamUsage | ReplyUsage, *, is_framed: bool) -> None:
        self._api = api
        self._usage = usage
        self._is_framed = is_framed
        self._before = self._last = b""  # the pieces of a stream that came last
        self._was_whole = False  # whether the last of them ended with an event
        self._saw_end = False
        self.first_token_at = 0.0
        self.head: ResponseHead | None = None
        self.held = b""

    def used(self) -> Used:
        """The tokens so far; of a stream whose engine does not count them, its events."""
        usage = self._usage
        return usage.used or Used(completion=usage.num_events if isinstance(usage, StreamUsage) else 0)

    def holds(self, data: bytes, ended: bool) -> bool:
        """Whether the stream is held back with this piece, too."""
        data = self.held + data
        if ended or len(data) >= _MAX_HELD_BYTES or _TOKEN.search(data):
            return False
        self.held = data
        return True

    def scan(self, data: bytes) -> None:
        """Count the tokens of the next piece, and look for the end."""
        usage = self._usage
        is_whole = data.endswith(_FRAMED_END if self._is_framed else _EVENT_END)
        if is_whole and self._was_whole:  # the usual case: framing stands before events and behind them
            self._before = self._last
            self._last = data
        else:
            self._was_whole = is_whole
            if self._is_framed:
                data = ChunkedDecoder().feed(data)
            if isinstance(usage, StreamUsage):
                saw_end = self._saw_end or self._has_end()
                self._last = self._last[-_MAX_ENDING_BYTES:] + data
                self._saw_end = saw_end or self._has_end()
        usage.scan(data)

    def _has_end(self) -> bool:
        ending = _ENDINGS.get(self._api) if self._api is not None else None
        return ending is None or ending.search(self._last) is not None or ending.search(self._before) is not None

    def ended_well(self, status: int) -> bool:
        """Whether the reply may end here."""
        usage = self._usage
        if status != 200 or not isinstance(usage, StreamUsage) or self._saw_end or self._has_end():
            return True
        return usage.used is not None and self._api in _USAGE_COMES_LAST


class GenerationExchange(Exchange):
    """An `Exchange` whose reply is a generation, which may be requested twice until the client has read a token."""

    __slots__ = ("_reply", "_used")

    def __init__(self, client: Client, request: Request, lane: Lane, session: str | None) -> None:
        super().__init__(client, request, lane, session)
        self._reply: GenerationReply | None = None  # of one that comes in pieces
        self._used = _NOTHING  # of one that comes whole

    # The reply

    def reply_started(self, head: ResponseHead, data: bytes, ended: bool) -> None:
        self._reply, api = None, self._plan.call.api
        if head.status in _ELSEWHERE and self._goes_elsewhere(head, ended):
            return
        if head.length is not None:  # mostly a whole reply, whose first token is its last
            if ended:
                self._used = whole_usage(data) or _NOTHING
            else:
                self._reply = GenerationReply(api, ReplyUsage(), is_framed=False)
                self._reply.scan(data)
            super().reply_started(head, data, ended)
            return
        is_stream = _is_readable_stream(head)
        is_payload = self._client.takes_payload or self._plan.head.is_http_10
        usage = StreamUsage() if is_stream else ReplyUsage()
        reply = GenerationReply(api, usage, is_framed=head.is_chunked and not is_payload)
        self._reply = reply
        if is_stream and reply.holds(data, ended):
            reply.head = head
        else:
            self._begin(reply, head, data, ended)

    def reply_continued(self, data: bytes, ended: bool) -> None:
        reply = self._reply
        if reply is not None:
            head = reply.head
            if head is not None:
                if not reply.holds(data, ended):
                    reply.head = None
                    self._begin(reply, head, reply.held + data, ended)
                return
            reply.scan(data)
            if ended and not reply.ended_well(self.attempts.status):
                self._cut_off(data)
                return
        super().reply_continued(data, ended)

    def _begin(self, reply: GenerationReply, head: ResponseHead, data: bytes, ended: bool) -> None:
        reply.first_token_at = monotonic()
        reply.scan(data)
        if not ended or reply.ended_well(head.status):
            ends_by_close = ended and head.ends_at_close
            super().reply_started(head, data, ended and not ends_by_close)
            if ends_by_close and self._attempt.is_open:
                super().reply_continued(b"", True)
            return
        if _TOKEN.search(data):
            super().reply_started(head, data.removesuffix(LAST_CHUNK), False)
        self._cut_off(b"")

    def _cut_off(self, data: bytes) -> None:
        """The engine has ended the reply as if it were whole, which its client must not believe."""
        self._attempt.sent_on = None
        data = data.removesuffix(LAST_CHUNK)
        if data:
            super().reply_continued(data, False)
        if self._attempt.is_open:
            self.attempts.failed(GatewayError(ErrorKind.UPSTREAM_RESET, _CUT_OFF), was_sent=True)

    # Attempts

    def _keeps_body(self) -> bool:
        return True

    def is_idempotent(self, declared: str) -> bool:
        return True  # a generation leaves nothing behind, and no client has read any of it

    def _goes_elsewhere(self, head: ResponseHead, ended: bool) -> bool:
        """Whether another endpoint takes over from the one that says it cannot serve."""
        attempt = self._attempt
        if ended:
            attempt.sent_on = None
        error = GatewayError(ErrorKind.UPSTREAM_RESET, f"the engine answered with status {head.status}")
        return self.attempts.try_elsewhere(error, is_good=not attempt.endpoint.counts_as_failure(head.status))

    # Limits

    def expected_tokens(self) -> int:
        return expected_tokens(self._body.held(), max(self._request.length or 0, self._body.size))

    def used_tokens(self, expected: int) -> int:
        """What the engine has counted; where it has not, what was expected."""
        if self.attempts.status != 200:
            return 0
        used = self._used_so_far()
        if used.prompt:
            return used.prompt + used.completion
        if used.completion:
            return prompt_tokens(self._body.size) + used.completion
        return expected

    # Ends

    def _finish(self, now: float) -> None:
        if self.attempts.status == 200:
            series, started_at = self._attempt.series, self.attempts.started_at
            tokens, used = series.tokens or series.count_tokens(), self._used_so_far()
            tokens.prompt += used.prompt
            tokens.cached += used.cached
            tokens.completion += used.completion
            first, per_token = self._first_token_at, None
            if first:
                tokens.first_token.observe(first - started_at)
                if used.completion > 1:
                    per_token = (now - first) / (used.completion - 1)
                    tokens.per_token.observe(per_token)
            meter = self.attempts.meter
            if meter is not None:
                meter.generated(used.prompt, used.completion, first - started_at if first else None, per_token)
        super()._finish(now)

    def generated(self) -> GenerationUsage | None:
        if self.attempts.status != 200:
            return None
        return GenerationUsage(self._used_so_far(), self._first_token_at, monotonic())

    @property
    def _first_token_at(self) -> float:
        """Of a stream; 0 where it is none."""
        return self._reply.first_token_at if self._reply is not None and self._is_event_stream else 0.0

    def _used_so_far(self) -> Used:
        return self._reply.used() if self._reply is not None else self._used

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        noticed_at = monotonic()
        was_open = self.attempts.is_open
        super().client_gone(reason, status)
        if was_open:
            tokens = self._attempt.series.count_tokens()
            tokens.stop.observe(monotonic() - noticed_at)
            tokens.cancelled += self._used_so_far().completion


def _is_readable_stream(head: ResponseHead) -> bool:
    """Whether events come one by one, and as they are: a compressed stream passes unread."""
    content_type = head.value(b"content-type") or b""
    coding = head.value(b"content-encoding") or b"identity"
    return content_type.startswith(b"text/event-stream") and coding == b"identity"
