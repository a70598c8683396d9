"""A request of a conversation that the gateway keeps: completed with the earlier turns, and stored with its reply.

It is translated even between equal APIs, since the engine gets more messages than the client sent. The end of the reply
waits until the turn is stored, at most the rule's `patience`: then any worker can serve the client's next message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import orjson

from gateway.config.specs import HistorySpec
from gateway.conversations.assistant_message import RecordingWriter
from gateway.conversations.conversation_turn import ConversationTurn
from gateway.conversations.store import Conversation
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client, Serve
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.translation.engine_codec_lookup import cached_codec, find_codec
from gateway.dataplane.translation.translation import TranslatingHandler
from gateway.dataplane.translation.translators import read_generation, translator_of
from gateway.protocol.errors import ErrorKind
from gateway.protocol.llm.api_codecs import MakeWriter
from gateway.protocol.llm.canonical import Generation
from gateway.protocol.llm.sampling_fields import OPTIONS
from gateway.protocol.llm.translation import ReplyWriter
from gateway.protocol.operations import LlmApi
from gateway.protocol.sequence import AnySession, id_of
from gateway.protocol.translator import Reply, Translator

_log = logging.getLogger(__name__)

_HISTORY = b"x-pointsman-history"
_NOT_KEPT = "not_kept"  # as errors are counted
# Parameters of Triton's sequences that may stand beside a session's id.
_OF_SEQUENCES = frozenset({"sequence_start", "sequence_end"})
_CONVERSATION = "conversation"


class ConversationHandler(TranslatingHandler):
    """One request of a session."""

    def __init__(
        self,
        client: Client,
        request: Request,
        route_target: RouteTarget,
        session: AnySession,
        spec: HistorySpec,
        backend: Serve,
    ) -> None:
        snapshot = request.plan.snapshot
        tenant = request.plan.facts.headers.get(snapshot.table.identity.tenant_header, "")
        store = client.plane.store
        conversation = None
        if store is not None:
            conversation = Conversation(store, id_of(session), tenant, patience=spec.patience)
        self._talk = ConversationTurn(conversation, spec)
        self._is_keeping = False  # the engine has answered
        super().__init__(client, request, route_target, session, self._make_completed, backend)

    async def _make_completed(self, request: Request, body: bytes, route_target: RouteTarget) -> Translator:
        """The translator of the completed request.

        Raises: GatewayError.
        """
        talk, version = self._talk, request.plan.call.version or ""
        generation, make_writer = _read(request, body)
        generation = await talk.begin(generation)
        self._reply.added = [(_HISTORY, talk.history_status.encode("ascii"))]
        if talk.is_missing:
            route_target.series(None).count_error(ErrorKind.HISTORY_MISSING.value)
        codec = cached_codec(route_target, generation, version) or await find_codec(route_target, generation, version)
        return translator_of(request, generation, _recorded(make_writer, talk), route_target, codec)

    # Ends

    def _end(self, events: bytes) -> None:
        self._keep_and(partial(self._reply.end, events))

    def _respond(self, reply: Reply) -> None:
        if reply.status == 200:
            self._keep_and(partial(self._reply.respond, reply))
        else:
            self._reply.respond(reply)

    def _keep_and(self, reply: Callable[[], None]) -> None:
        self._is_keeping = True
        self._task = asyncio.get_running_loop().create_task(self._keep(reply))

    async def _keep(self, reply: Callable[[], None]) -> None:
        spec = self._route_target.spec
        try:
            is_kept = await self._talk.store(spec.engine, spec.arm or "")
        except Exception:  # whatever the failure, the client waits for its reply
            _log.exception("cannot keep an exchange of %r", self._talk)
            is_kept = False
        if not is_kept:
            self._route_target.series(None).count_error(_NOT_KEPT)
            self._reply.added = [(_HISTORY, f"{self._talk.history_status}, not kept".encode("ascii"))]
        self._task = None
        if not self._reply.is_over:
            reply()

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        if self._is_keeping:  # the engine's handler has counted it, and the answer is kept all the same
            self._reply.is_over = True
            return
        if self.begun:
            self._talk.store_partial(self._route_target.spec.engine, self._route_target.spec.arm or "")
        super().client_gone(reason, status)


def _recorded(make_writer: MakeWriter, talk: ConversationTurn) -> MakeWriter:
    """The same writers, which record their events in the turn's answer."""

    def make(generation: Generation, *, id: str, created: int, model: str) -> ReplyWriter:
        return RecordingWriter(make_writer(generation, id=id, created=created, model=model), talk.answer)

    return make


def _read(request: Request, body: bytes) -> tuple[Generation, MakeWriter]:
    """The client's generation without the fields that name its session: engines do not know them.

    Raises: GatewayError.
    """
    names = {*request.plan.snapshot.table.identity.session_parameters, *_OF_SEQUENCES}
    if request.plan.call.api is LlmApi.RESPONSES and _CONVERSATION in names:
        body = _without_conversation(body)
    generation, make_writer = read_generation(request, body)
    options = {name: value for name, value in generation.options.items() if name not in names or name in OPTIONS}
    return replace(generation, options=options), make_writer


def _without_conversation(body: bytes) -> bytes:
    """A body of OpenAI's Responses without `conversation`, which would name one of the engine's; unchanged where it
    cannot be read."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body  # its reader reports the error
    if not isinstance(fields, dict) or fields.pop(_CONVERSATION, None) is None:
        return body
    return orjson.dumps(fields)
