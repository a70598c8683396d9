"""What the client of a translated request reads: the engine's reply once it is translated, whole or as a stream."""

from __future__ import annotations

from gateway.dataplane.context.interfaces import Client
from gateway.dataplane.context.local_replies import ANTHROPIC_REQUEST_ID
from gateway.dataplane.context.prepared_head import PreparedHead
from gateway.dataplane.context.server_timing import FIELD
from gateway.protocol.errors import GatewayError
from gateway.protocol.operations import LlmApi
from gateway.protocol.translator import Reply
from gateway.sessions.client_pin import is_pin_cookie
from gateway.wire.http1.head import Field

HEAD_BYTES = b"inference-header-content-length"
# Of an engine's reply, what goes on beside what the gateway says of its decision.
_KEPT = frozenset({b"x-request-id", b"retry-after", b"endpoint-load-metrics"})
_KEPT_FAMILIES = (b"x-pointsman-", b"x-ratelimit-", b"anthropic-ratelimit-")
_MAX_NAMES_LENGTH = 1024
_EVENTS = "text/event-stream; charset=utf-8"
_NO_CACHE = (b"cache-control", b"no-cache")


class TranslatedReply:
    """Writes one reply to a client. `fields` are those of the engine's reply, `added` are the gateway's own; `dropped`
    names what the engine was not told."""

    __slots__ = ("_client", "_plan", "added", "begun", "dropped", "fields", "is_over")

    def __init__(self, client: Client, plan: PreparedHead) -> None:
        self._client = client
        self._plan = plan
        self.fields: list[Field] = []
        self.added: list[Field] = []
        self.dropped: tuple[str, ...] = ()
        self.begun = False
        self.is_over = False

    def respond(self, reply: Reply) -> None:
        """The reply, whole."""
        fields = self._reply_fields()
        if reply.head_bytes is not None:
            fields.append((HEAD_BYTES, b"%d" % reply.head_bytes))
        self.is_over = True
        self._client.respond(reply.status, reply.body, fields, reply.content_type)

    def write(self, events: bytes) -> None:
        """More of a stream."""
        if self.begun:
            self._client.write_piece(events)
            return
        self.begun = True
        self._client.write_at_once()
        self._client.start_stream(_EVENTS, [_NO_CACHE, *self._reply_fields()], events)

    def end(self, events: bytes) -> None:
        """The last of a stream."""
        self.is_over = True
        if not self.begun:
            self.write(events)
            events = b""
        self._client.write_piece(events, True)
        self._client.reply_ended()

    def fail(self, error: GatewayError, event: bytes) -> None:
        """There is no reply, or no more of it; `event` tells it amid a stream."""
        if self.is_over:
            return
        self.is_over = True
        if self.begun:
            self._client.break_off(event)
        else:
            self._client.refuse(error, self._fields())

    def _reply_fields(self) -> list[Field]:
        """The fields of a reply that is no refusal."""
        fields = self._fields()
        if self._plan.api is LlmApi.MESSAGES:
            fields += [(ANTHROPIC_REQUEST_ID, value) for name, value in fields if name == b"x-request-id"]
        return fields

    def _fields(self) -> list[Field]:
        """The fields that go on."""
        remaining = [
            field
            for field in self.fields
            if field[0] in _KEPT or field[0].startswith(_KEPT_FAMILIES) or is_pin_cookie(field)
        ]
        if self._plan.wants_timing:
            remaining += [field for field in self.fields if field[0] == FIELD]
        if self.added:  # another gateway behind this one may tell the same of itself
            ours = {name for name, _ in self.added}
            remaining = [field for field in remaining if field[0] not in ours] + self.added
        if self.dropped:
            remaining.append((b"x-pointsman-dropped", _named(self.dropped)))
        return [field for field in remaining if field[0] != b"x-pointsman-reason"]


def _named(names: tuple[str, ...]) -> bytes:
    """The names as a field's value; a client may call its options anything."""
    text = ", ".join(names)[:_MAX_NAMES_LENGTH]
    return "".join([letter if letter.isprintable() else "?" for letter in text]).encode("ascii", "replace")
