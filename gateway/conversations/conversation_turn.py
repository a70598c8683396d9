"""One request of a conversation: completed before an engine is asked, kept once it is answered.

An exchange (what was asked, and the answer) is written in one step, so that two requests of one session at the same
time stand there one after the other, in the order in which they ended; neither engine has seen the other's. Nothing is
written of a request that failed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from time import time

from gateway.config.specs import HistorySpec
from gateway.conversations.assistant_message import AssistantMessage
from gateway.conversations.prompt_assembly import NOTHING, Completed, Kept, complete, complete_text, only_new
from gateway.conversations.store import Conversation, TurnRecord
from gateway.conversations.turns import (
    SYSTEM_ROLES,
    RetentionLimits,
    Turn,
    estimated_tokens,
    num_dropped,
    without_thoughts,
    written,
    written_system,
)
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import Generation, Message, Text, Used
from gateway.protocol.llm.chat_request_writer import written_message
from gateway.redis.errors import StoreError
from gateway.redis.script import Command

_log = logging.getLogger("gateway.conversations")


class Talk:
    """`conversation` None: the gateway has no Redis. `told` is what the client reads of it in `x-pointsman-history`."""

    def __init__(self, conversation: Conversation | None, spec: HistorySpec) -> None:
        self._conversation = conversation
        self._spec = spec
        self._limits = RetentionLimits.of(spec)
        self._kept = NOTHING
        self._completed = Completed((), ())
        self._is_missing = False
        self._without = ""  # what the engine repeats before its answer
        self._num_choices = 1
        self.answer = AssistantMessage()

    def __repr__(self) -> str:
        return f"<Talk {self._conversation!r}: {self.told}>"

    @property
    def told(self) -> str:
        """How much of the conversation the engine was told by what is kept."""
        if self._is_missing:
            return "missing"
        if self._completed.replaces:
            return "replaced"
        number = self._completed.num_kept
        return f"{number} turn" if number == 1 else f"{number} turns"

    @property
    def is_missing(self) -> bool:
        """Whether the request goes on without what may be kept."""
        return self._is_missing

    # Before an engine is asked

    async def begin(self, asked: Generation) -> Generation:
        """The request, completed with what is kept.

        Raises: GatewayError: HISTORY_MISSING where it cannot be read and must be, CONVERSATION_FULL where there is no
        room, UNSUPPORTED for what no conversation can keep (token ids, media by an address).
        """
        self._num_choices = asked.options.get("n", 1)
        kept = await self._read()
        self._kept = kept = self._trimmed(kept)
        if isinstance(asked.prompt, str) and self._spec.prompts == "text":
            self._completed = done = complete_text(kept, asked.prompt)
            self._check_room()
            self._without = done.prompt or "" if asked.options.get("echo") else ""
            return replace(asked, prompt=done.prompt)
        messages = asked.messages or _as_messages(asked.prompt)
        done = only_new(messages) if self._is_missing else complete(kept, messages)
        if self._spec.system == "request":
            done = replace(done, system=())
        self._completed = done
        self._check_form()
        self._check_room()
        return replace(asked, prompt=None, messages=done.messages)

    async def _read(self) -> Kept:
        try:
            if self._conversation is None:
                raise StoreError("the gateway has no Redis")
            return await self._conversation.read()
        except StoreError as error:
            if self._spec.required:
                _log.debug("a conversation that is required cannot be read: %s", error)
                what = "the conversation cannot be read at the moment, and this route does not answer without it"
                raise GatewayError(ErrorKind.HISTORY_MISSING, what) from error
            self._is_missing = True
            return NOTHING

    def _trimmed(self, kept: Kept) -> Kept:
        """Within the limits of the rules in force, which may have changed since it was written."""
        if self._spec.system == "request" and kept.system:
            kept = replace(kept, system=(), system_bytes=0)
        if self._spec.on_overflow == "refuse":
            return kept
        first = num_dropped(kept.turns, kept.sizes, kept.system_bytes, self._limits)
        return replace(kept, turns=kept.turns[first:], sizes=kept.sizes[first:]) if first else kept

    def _check_form(self) -> None:
        """See that all of the question can be kept, before an engine has spent its time on it."""
        for message in (*self._completed.system, *self._completed.new):
            written_message(without_thoughts(message))

    def _check_room(self) -> None:
        """Refuse what does not fit where nothing is to be dropped; how long the answer will be nobody knows."""
        if self._spec.on_overflow != "refuse":
            return
        kept, new, system = self._kept, self._completed.new, written_system(self._completed.system)
        turns, sizes = ((), ()) if self._completed.replaces else (kept.turns, kept.sizes)
        num_turns = len(turns) + len(new) + 1
        tokens = sum(turn.tokens for turn in turns) + sum(map(estimated_tokens, new))
        num_bytes = sum(sizes) + sum(len(written(Turn(message, 0))) for message in new)
        if not self._limits.hold(num_turns, tokens, num_bytes, len(system) or kept.system_bytes):
            limits = self._limits
            what = (
                f"the conversation is full: it has {len(turns)} turns of about {tokens} tokens with this message, and "
                f"its limits are {limits.max_turns} turns, {limits.max_tokens} tokens and {limits.max_bytes} bytes; "
                "begin another session, or delete this one"
            )
            raise GatewayError(ErrorKind.CONVERSATION_FULL, what)

    # After it has answered

    async def keep(self, engine: str, arm: str) -> bool:
        """Write what was asked and the answer, which is whole; whether that is done."""
        if not self._may_be_kept:
            return False
        command = self._command(engine, arm, is_cut=False)
        if command is None:
            return True
        assert self._conversation is not None
        try:
            outcome = await self._conversation.write(command)
        except StoreError as error:
            _log.debug("an exchange of %r is not kept: %s", self._conversation, error)
            return False
        if outcome != "kept":
            _log.info("an exchange of %r is not kept: the conversation is %s", self._conversation, outcome)
        return outcome == "kept"

    def keep_cut(self, engine: str, arm: str) -> None:
        """Have what was asked and the beginning of the answer written, soon; its client has left."""
        command = self._command(engine, arm, is_cut=True) if self._may_be_kept else None
        if command is not None:
            assert self._conversation is not None
            self._conversation.tell(command)

    @property
    def _may_be_kept(self) -> bool:
        """Not without Redis; nor a text whose beginning is not known: nobody can tell what of it is new."""
        return self._conversation is not None and not (self._is_missing and self._completed.prompt is not None)

    def _command(self, engine: str, arm: str, *, is_cut: bool) -> Command | None:
        """What writes the exchange; None where there is nothing to keep."""
        said = None if self.answer.has_failed else self.answer.message(self._without, is_cut=is_cut)
        if said is None:
            return None
        assert self._conversation is not None
        now, completed, kept = int(time()), self._completed, self._kept
        new = completed.new
        if new and new[-1].role == "assistant":  # the client has begun the answer
            said = Message("assistant", (Text(new[-1].text + said.text),), said.tool_calls)
            new = new[:-1]
        used = None if is_cut or self._num_choices != 1 else self.answer.used
        counts, is_estimated = self._counted(new, used)
        turns = [Turn(message, count, now, is_estimated) for message, count in zip(new, counts, strict=True)]
        is_told = used is not None and used.completion > 0
        tokens = used.completion if used is not None and is_told else estimated_tokens(said)
        turns.append(Turn(said, tokens, now, not is_told, engine, arm, is_cut))
        exchange = TurnRecord(
            tuple(turns),
            completed.system,
            kept.epoch,
            kept.revision if completed.replaces and kept.epoch else None,
        )
        limits = self._limits if self._spec.on_overflow == "drop_oldest" else None
        return self._conversation.writing(exchange, now=now, ttl=self._spec.ttl, limits=limits)

    def _counted(self, new: Sequence[Message], used: Used | None) -> tuple[list[int], bool]:
        """The tokens of what was asked, and whether they are estimated: engines count a prompt as a whole, so these are
        what it has beyond the turns that were kept, shared out by the messages' lengths."""
        estimates = [estimated_tokens(message) for message in new]
        completed, kept = self._completed, self._kept
        told = [message for message in completed.messages if message.role not in SYSTEM_ROLES]
        is_all = completed.prompt is not None or len(told) == len(kept.turns) + len(new)
        if used is None or not is_all or self._is_missing or completed.replaces or not new:
            return estimates, True
        system = completed.system or kept.system
        total = used.prompt - kept.tokens - sum(map(estimated_tokens, system))
        if total < len(new):
            return estimates, True
        whole = sum(estimates) or 1
        counts = [max(1, total * estimate // whole) for estimate in estimates[:-1]]
        return [*counts, max(1, total - sum(counts))], False


def _as_messages(prompt: str | Sequence[int] | None) -> tuple[Message, ...]:
    if not isinstance(prompt, str):
        what = "a prompt of token ids cannot be kept in a conversation; give its text, or no session id"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)
    return (Message("user", (Text(prompt),)),)
