"""One request of a conversation: its prompt is completed before the engine is called, and the exchange is stored after.

An exchange (question and answer) is written in one step, so that two concurrent requests of one session are stored one
after the other, in the order in which they ended; neither engine has seen the other's. A failed request writes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from time import time

from gateway.config.specs import HistorySpec
from gateway.conversations.assistant_message import AssistantMessage
from gateway.conversations.prompt_assembly import (
    NOTHING,
    CompletedPrompt,
    StoredHistory,
    complete,
    complete_text,
    only_new,
)
from gateway.conversations.store import Conversation, ConversationLostError, TurnRecord
from gateway.conversations.turns import (
    SYSTEM_ROLES,
    Turn,
    is_within,
    num_dropped,
    without_reasoning,
    written,
    written_system,
)
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import Generation, Message, Text, TokenUsage
from gateway.protocol.llm.chat_request import written_message
from gateway.protocol.llm.token_estimate import estimated_tokens
from gateway.redis.command import Command, StoreError

_log = logging.getLogger("gateway.conversations")


class ConversationTurn:
    """`conversation` is None without Redis. `history_status` is the value of `x-pointsman-history`."""

    def __init__(self, conversation: Conversation | None, spec: HistorySpec) -> None:
        self._conversation = conversation
        self._spec = spec
        self._history = NOTHING
        self._completed = CompletedPrompt((), ())
        self.is_missing = False  # whether the request proceeds without stored history
        self._without = ""  # what the engine repeats before its answer
        self._num_choices = 1
        self.answer = AssistantMessage()

    @property
    def history_status(self) -> str:
        """How much stored history the engine received."""
        if self.is_missing:
            return "missing"
        if self._completed.replaces:
            return "replaced"
        number = self._completed.num_stored
        return f"{number} turn" if number == 1 else f"{number} turns"

    # Before the engine is called

    async def begin(self, request: Generation) -> Generation:
        """The request, completed with the stored history.

        Raises: GatewayError: HISTORY_MISSING if required history cannot be read, CONVERSATION_FULL if there is no room,
        UNSUPPORTED for content that cannot be stored (token ids, media by URL).
        """
        self._num_choices = request.options.get("n", 1)
        history = await self._read()
        self._history = history = self._trimmed(history)
        if isinstance(request.prompt, str) and self._spec.prompts == "text":
            self._completed = done = complete_text(history, request.prompt)
            self._check_room()
            self._without = done.prompt or "" if request.options.get("echo") else ""
            return replace(request, prompt=done.prompt)
        messages = request.messages or _as_messages(request.prompt)
        done = only_new(messages) if self.is_missing else complete(history, messages)
        if self._spec.system == "request":
            done = replace(done, system=())
        self._completed = done
        for message in (*done.system, *done.new):  # refuse what cannot be stored before an engine spends time on it
            written_message(without_reasoning(message))
        self._check_room()
        return replace(request, prompt=None, messages=done.messages)

    async def _read(self) -> StoredHistory:
        try:
            if self._conversation is None:
                raise StoreError("the gateway has no Redis")
            return await (self._conversation.read_required() if self._spec.required else self._conversation.read())
        except ConversationLostError as error:
            raise GatewayError(ErrorKind.HISTORY_MISSING, str(error)) from error
        except StoreError as error:
            if self._spec.required:
                _log.debug("a conversation that is required cannot be read: %s", error)
                what = "the conversation cannot be read at the moment, and this route does not answer without it"
                raise GatewayError(ErrorKind.HISTORY_MISSING, what) from error
            self.is_missing = True
            return NOTHING

    def _trimmed(self, history: StoredHistory) -> StoredHistory:
        """The history within the current limits, which may have changed since it was written."""
        if self._spec.system == "request" and history.system:
            history = replace(history, system=(), system_bytes=0)
        if self._spec.on_overflow == "refuse":
            return history
        first = num_dropped(history.turns, history.sizes, history.system_bytes, self._spec)
        return replace(history, turns=history.turns[first:], sizes=history.sizes[first:]) if first else history

    def _check_room(self) -> None:
        """Refuse a request that does not fit if nothing may be dropped; the answer's length is unknown."""
        if self._spec.on_overflow != "refuse":
            return
        history, new, system = self._history, self._completed.new, written_system(self._completed.system)
        turns, sizes = ((), ()) if self._completed.replaces else (history.turns, history.sizes)
        num_turns = len(turns) + len(new) + 1
        tokens = sum(turn.tokens for turn in turns) + sum(map(estimated_tokens, new))
        num_bytes = sum(sizes) + sum(len(written(Turn(message, 0))) for message in new)
        limits = self._spec
        if not is_within(limits, num_turns, tokens, num_bytes, len(system) or history.system_bytes):
            what = (
                f"the conversation is full: it has {len(turns)} turns of about {tokens} tokens with this message, and "
                f"its limits are {limits.max_turns} turns, {limits.max_tokens} tokens and {limits.max_bytes} bytes; "
                "begin another session, or delete this one"
            )
            raise GatewayError(ErrorKind.CONVERSATION_FULL, what)

    # After the reply

    async def store(self, engine: str, arm: str) -> bool:
        """Write the question and the complete answer. Returns whether that succeeded."""
        conversation = self._writable
        if conversation is None:
            return False
        command = self._command(conversation, engine, arm, is_cut=False)
        if command is None:
            return True
        try:
            outcome = await conversation.write(command)
        except StoreError as error:
            _log.debug("an exchange of %s is not kept: %s", conversation.key, error)
            return False
        if outcome == "kept" and self._spec.required:
            conversation.require(self._spec)
        if outcome != "kept":
            _log.info("an exchange of %s is not kept: the conversation is %s", conversation.key, outcome)
        return outcome == "kept"

    def store_partial(self, engine: str, arm: str) -> None:
        """Queue a write of the question and the partial answer; the client has disconnected."""
        conversation = self._writable
        command = self._command(conversation, engine, arm, is_cut=True) if conversation is not None else None
        if conversation is not None and command is not None:
            conversation.enqueue(command)
            if self._spec.required and not self._history.epoch:  # a later exchange renews the mark of the first
                conversation.require(self._spec)

    @property
    def _writable(self) -> Conversation | None:
        """None without Redis, and for a text whose history is missing: its new part cannot be determined."""
        return None if self.is_missing and self._completed.prompt is not None else self._conversation

    def _command(self, conversation: Conversation, engine: str, arm: str, *, is_cut: bool) -> Command | None:
        """The command that writes the exchange; None if there is nothing to store."""
        answer = None if self.answer.has_failed else self.answer.message(self._without, is_cut=is_cut)
        if answer is None:
            return None
        now, completed, history = int(time()), self._completed, self._history
        new = completed.new
        if new and new[-1].role == "assistant":  # the client has begun the answer
            answer = Message("assistant", (Text(new[-1].text + answer.text),), answer.tool_calls)
            new = new[:-1]
        used = None if is_cut or self._num_choices != 1 else self.answer.used
        counts, is_estimated = self._counted(new, used)
        turns = [Turn(message, count, now, is_estimated) for message, count in zip(new, counts, strict=True)]
        is_counted = used is not None and used.completion > 0
        tokens = used.completion if used is not None and is_counted else estimated_tokens(answer)
        turns.append(Turn(answer, tokens, now, not is_counted, engine, arm, is_cut))
        exchange = TurnRecord(
            tuple(turns),
            completed.system,
            history.epoch,
            history.revision if completed.replaces and history.epoch else None,
        )
        return conversation.writing(exchange, self._spec, now)

    def _counted(self, new: Sequence[Message], used: TokenUsage | None) -> tuple[list[int], bool]:
        """Returns: the tokens of each new message, and whether they are estimates. Engines count a prompt as a whole,
        so the count beyond the stored turns is divided by message length."""
        estimates = [estimated_tokens(message) for message in new]
        completed, history = self._completed, self._history
        conversation = [message for message in completed.messages if message.role not in SYSTEM_ROLES]
        is_all = completed.prompt is not None or len(conversation) == len(history.turns) + len(new)
        if used is None or not is_all or self.is_missing or completed.replaces or not new:
            return estimates, True
        system = completed.system or history.system
        total = used.prompt - history.tokens - sum(map(estimated_tokens, system))
        if total < len(new):
            return estimates, True
        total_estimate = sum(estimates) or 1
        counts = [max(1, total * estimate // total_estimate) for estimate in estimates[:-1]]
        return [*counts, max(1, total - sum(counts))], False


def _as_messages(prompt: str | Sequence[int] | None) -> tuple[Message, ...]:
    if not isinstance(prompt, str):
        what = "a prompt of token ids cannot be kept in a conversation; give its text, or no session id"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)
    return (Message("user", (Text(prompt),)),)
