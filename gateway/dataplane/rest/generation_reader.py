"""Reads a generation that passes through the gateway: its tokens, and whether it ends well.

Until the first token has come the client has read nothing, so another attempt does no harm, whatever goes wrong. After
it, a reply that breaks off, or ends before the generation has, is reported as broken.
"""

from __future__ import annotations

import re
from time import monotonic

from gateway.dataplane.attempts.upstream_attempts import UpstreamAttempts
from gateway.dataplane.context.ended_request import Generated
from gateway.dataplane.context.request_body import RequestBody
from gateway.limits.limit import prompt_tokens, reply_tokens
from gateway.net.http1_client import Http1ClientConnection, ReplyReceiver
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import TokenUsage
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

_NOTHING = TokenUsage()
# Why a generation has ended, as the APIs have it
_FINISH = re.compile(rb'"(?:finish_reason|stop_reason)" ?: ?"(\w{1,32})"')

_CUT_OFF = "the engine ended its reply before the generation had ended"


class GenerationReader:
    """Receives an engine's reply in place of the exchange, its `receiver`, and passes it on.

    A stream is held back until its first token. `takes_payload`: its pieces come without the framing of HTTP/1.1.
    """

    __slots__ = (
        "_api",
        "_attempts",
        "_before",
        "_head",
        "_held",
        "_is_event_stream",
        "_is_framed",
        "_last",
        "_older",
        "_receiver",
        "_saw_end",
        "_takes_payload",
        "_usage",
        "_used",
        "_was_whole",
        "_whole",
        "first_token_at",
    )

    def __init__(
        self,
        receiver: ReplyReceiver,
        attempts: UpstreamAttempts[Http1ClientConnection],
        api: LlmApi | None,
        *,
        takes_payload: bool,
    ) -> None:
        self._receiver = receiver
        self._attempts = attempts
        self._api = api
        self._takes_payload = takes_payload
        self._used = _NOTHING  # by a reply that came in one piece
        self._usage: StreamUsage | ReplyUsage | None = None  # of a reply that comes in pieces
        # A reply that came in one piece; the last pieces of another
        self._whole = self._older = self._before = self._last = b""
        self.first_token_at = 0.0  # of a stream

    @property
    def used(self) -> TokenUsage:
        """The tokens so far; of a stream whose engine does not count them, its events."""
        usage = self._usage
        if usage is None:
            return self._used
        return usage.used or TokenUsage(completion=usage.num_events if isinstance(usage, StreamUsage) else 0)

    def used_tokens(self, prompt_bytes: int, expected: int) -> int:
        """The tokens that limits count: what the engine has counted; where it has not, what was expected."""
        used = self.used
        if used.prompt:
            return used.prompt + used.completion
        return prompt_tokens(prompt_bytes) + used.completion if used.completion else expected

    def usage(self, body: RequestBody) -> TokenUsage:
        """The tokens that budgets count: the engine's counts; without them an estimate by the request's body and the
        events of the reply, or by the bound of a whole reply."""
        used = self.used
        if used.prompt:
            return used
        completion = used.completion
        if not completion and not isinstance(self._usage, StreamUsage):
            completion = reply_tokens(body.held())
        return TokenUsage(prompt_tokens(body.size), completion, used.cached, is_estimated=True)

    @property
    def outcome(self) -> Generated:
        """What the generation has brought so far, for logs."""
        first_token_at = self.first_token_at if isinstance(self._usage, StreamUsage) else 0.0
        last = self._whole or self._older + self._before + self._last
        return Generated(self.used, first_token_at, finish_reason(last))

    # The engine's reply

    def reply_started(self, head: ResponseHead, data: bytes, ended: bool) -> None:
        self._usage = None
        if head.status in _ELSEWHERE and self._goes_elsewhere(head, ended):
            return
        if head.length is not None and ended:  # mostly a whole reply, whose first token is its last
            self._used = whole_usage(data) or _NOTHING
            self._whole = data
            self._receiver.reply_started(head, data, ended)
            return
        self._whole = self._older = self._before = self._last = b""
        self._was_whole = False  # whether the last of them ended with an event
        self._saw_end = self._is_event_stream = self._is_framed = False
        self.first_token_at = 0.0
        self._head: ResponseHead | None = None  # that of a stream that is held back
        if head.length is not None:
            self._usage = ReplyUsage()
            self._scan(data)
            self._receiver.reply_started(head, data, ended)
            return
        self._is_framed = head.is_chunked and not self._takes_payload
        self._is_event_stream = (head.value(b"content-type") or b"").startswith(b"text/event-stream")
        # A compressed stream passes unread.
        is_readable = self._is_event_stream and (head.value(b"content-encoding") or b"identity") == b"identity"
        self._usage = StreamUsage() if is_readable else ReplyUsage()
        self._held = b""
        if is_readable and self._holds(data, ended):
            self._head = head
        else:
            self._begin(head, data, ended)

    def reply_continued(self, data: bytes, ended: bool) -> None:
        head = self._head
        if head is not None:
            if not self._holds(data, ended):
                self._head = None
                self._begin(head, self._held + data, ended)
            return
        self._scan(data)
        if ended and not self._ended_well(self._attempts.status):
            self._cut_off(data)
        else:
            self._receiver.reply_continued(data, ended)

    def reply_failed(self, error: GatewayError) -> None:
        self._receiver.reply_failed(error)

    def sending_paused(self) -> None:
        self._receiver.sending_paused()

    def sending_resumed(self) -> None:
        self._receiver.sending_resumed()

    def _goes_elsewhere(self, head: ResponseHead, ended: bool) -> bool:
        """Whether another endpoint takes over from the one that says it cannot serve."""
        attempt = self._attempts.attempt
        assert attempt is not None
        if ended:
            attempt.sent_on = None
        error = GatewayError(ErrorKind.UPSTREAM_RESET, f"the engine answered with status {head.status}")
        return self._attempts.try_elsewhere(error, is_good=not attempt.endpoint.counts_as_failure(head.status))

    def _holds(self, data: bytes, ended: bool) -> bool:
        """Whether the stream is held back with this piece, too."""
        data = self._held + data
        if ended or len(data) >= _MAX_HELD_BYTES or _TOKEN.search(data):
            return False
        self._held = data
        return True

    def _begin(self, head: ResponseHead, data: bytes, ended: bool) -> None:
        if self._is_event_stream:
            self.first_token_at = monotonic()
        self._scan(data)
        if not ended or self._ended_well(head.status):
            ends_by_close = ended and head.ends_at_close
            self._receiver.reply_started(head, data, ended and not ends_by_close)
            if ends_by_close and self._attempts.is_open:
                self._receiver.reply_continued(b"", True)
            return
        if _TOKEN.search(data):
            self._receiver.reply_started(head, data.removesuffix(LAST_CHUNK), False)
        self._cut_off(b"")

    def _cut_off(self, data: bytes) -> None:
        """The engine has ended the reply as if it were whole, which its client must not believe."""
        attempts = self._attempts
        if attempts.attempt is not None:
            attempts.attempt.sent_on = None
        data = data.removesuffix(LAST_CHUNK)
        if data:
            self._receiver.reply_continued(data, False)
        if attempts.is_open:
            attempts.failed(GatewayError(ErrorKind.UPSTREAM_RESET, _CUT_OFF), was_sent=True)

    def _scan(self, data: bytes) -> None:
        """Count the tokens of the next piece, and look for the end."""
        usage = self._usage
        assert usage is not None
        is_whole = data.endswith(_FRAMED_END if self._is_framed else _EVENT_END)
        if is_whole and self._was_whole:  # the usual case: framing stands before events and behind them
            self._older = self._before
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

    def _ended_well(self, status: int) -> bool:
        """Whether the reply may end here."""
        usage = self._usage
        if status != 200 or not isinstance(usage, StreamUsage) or self._saw_end or self._has_end():
            return True
        return usage.used is not None and self._api in _USAGE_COMES_LAST

    # Ends

    def leave(self) -> None:
        """The request is over. The exchange refers to this reader: no cycle is left to the garbage collector."""
        del self._receiver

    def finish(self, now: float) -> None:
        """Count the generation of a reply that is whole."""
        attempts = self._attempts
        if attempts.status == 200:
            series, started_at = attempts.series, attempts.started_at
            tokens, used = series.tokens or series.count_tokens(), self.used
            tokens.prompt += used.prompt
            tokens.cached += used.cached
            tokens.completion += used.completion
            first, per_token = self.first_token_at, None
            if first:
                tokens.first_token.observe(first - started_at)
                if used.completion > 1:
                    per_token = (now - first) / (used.completion - 1)
                    tokens.per_token.observe(per_token)
            meter = attempts.meter
            if meter is not None:
                meter.generated(used.prompt, used.completion, first - started_at if first else None, per_token)
        self.leave()

    def stopped(self, noticed_at: float, *, was_open: bool) -> None:
        """The client is gone, which was noticed at this time; `was_open`: an attempt was under way."""
        if was_open:
            tokens = self._attempts.series.count_tokens()
            tokens.stop.observe(monotonic() - noticed_at)
            tokens.cancelled += self.used.completion
        self.leave()


def finish_reason(text: bytes) -> str:
    """Why the generation has ended, by the last pieces of its reply; empty where they do not say."""
    found = _FINISH.findall(text)
    return found[-1].decode("ascii") if found else ""
