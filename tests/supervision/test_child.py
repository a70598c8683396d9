"""A child of the control process: what it does with messages that come while it compiles rules."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from gateway.config.settings import Settings
from gateway.config.specs import RulesSpec
from gateway.control import messages
from gateway.control.channel import encode
from gateway.control.child import ControlledProcess
from gateway.dataplane.context.data_plane import DataPlane
from tests.supervision.test_channel import rules_of

DRAINED = frozenset({("e0", "http://127.0.0.1:1")})
SECONDS = 60.0


class Child(ControlledProcess):
    """Compiles each version of the rules once a test has released it; `done` are events by what it has carried out."""

    def __init__(self, rules: RulesSpec) -> None:
        self.reader = asyncio.StreamReader(limit=2**24)
        self.sent: list[messages.Message] = []
        super().__init__(self.reader, cast(asyncio.StreamWriter, self))
        self.plane = self.running = DataPlane(Settings(), rules, 1, {})
        self.begun: list[int] = []  # versions of the rules
        self.released = asyncio.Event()
        self.was_closed_with: int | None = None
        self._progress = asyncio.Event()

    # Its end of the channel

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self._progress.set()

    def send(self, message: messages.Message) -> None:
        self.sent.append(message)
        super().send(message)

    def feed(self, *given: messages.Message) -> None:
        self.reader.feed_data(b"".join(map(encode, given)))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():
                self._progress.clear()
                await self._progress.wait()

    # What it does

    async def use_rules(self, plane: DataPlane, rules: RulesSpec, number: int) -> None:
        self.begun.append(number)
        self._progress.set()
        await self.released.wait()
        if number == 13:
            raise RuntimeError("a defect")
        await super().use_rules(plane, rules, number)
        self._progress.set()

    def apply(self, plane: DataPlane, message: messages.Message) -> None:
        super().apply(plane, message)
        self._progress.set()

    def answer(self, plane: DataPlane, request: Any) -> Any:
        return plane.snapshot.number

    async def close(self) -> None:
        self.was_closed_with = self.running.snapshot.number
        self.running.close()

    def is_drained(self) -> bool:
        return self.running.snapshot.engines["e0"].endpoints[0].is_draining


def play(scene: Callable[[Child, RulesSpec], Awaitable[None]]) -> Child:
    """A child that gets what a scene feeds, then is drained."""

    async def whole() -> Child:
        rules = rules_of(20, 2)
        child = Child(rules)
        running = asyncio.get_running_loop().create_task(child.run())
        await scene(child, rules)
        child.feed(messages.Drain())
        assert await asyncio.wait_for(running, SECONDS) == 0
        return child

    return asyncio.run(whole())


def test_messages_are_carried_out_while_rules_are_compiled() -> None:
    """Queries are answered, so that the child does not seem to hang, and drained endpoints get no new work; the new
    rules have them drained, too."""

    async def scene(child: Child, rules: RulesSpec) -> None:
        child.feed(messages.UseRules(rules, 2))
        await child.until(lambda: child.begun == [2])
        child.feed(messages.Query(5, messages.GetReports()), messages.SetDrained(DRAINED))
        await child.until(child.is_drained)
        assert child.sent == [messages.QueryReply(5, 1)]
        child.released.set()
        await child.until(lambda: child.running.snapshot.number == 2)
        assert child.is_drained()

    assert play(scene).was_closed_with == 2


def test_the_newest_rules_follow_those_under_way() -> None:
    """One version is compiled at a time; of those that come meanwhile only the newest is used."""

    async def scene(child: Child, rules: RulesSpec) -> None:
        child.feed(messages.UseRules(rules, 2))
        await child.until(lambda: child.begun == [2])
        child.feed(*(messages.UseRules(rules, number) for number in (3, 4, 5)), messages.SetDrained(DRAINED))
        await child.until(child.is_drained)
        child.released.set()
        await child.until(lambda: child.running.snapshot.number == 5)
        assert child.begun == [2, 5]
        child.feed(messages.UseRules(rules, 6))
        await child.until(lambda: child.running.snapshot.number == 6)

    play(scene)


def test_a_child_says_when_it_uses_the_rules() -> None:
    """Who asks for it hears when all rules that came before are in use; at once where they are already."""

    async def scene(child: Child, rules: RulesSpec) -> None:
        child.feed(messages.UseRules(rules, 2))
        await child.until(lambda: child.begun == [2])
        child.feed(messages.UseRules(rules, 3), messages.Query(1, messages.AwaitRules()))
        child.feed(messages.Query(2, messages.GetReports()))
        await child.until(lambda: bool(child.sent))
        assert child.sent == [messages.QueryReply(2, 1)]
        child.released.set()
        await child.until(lambda: messages.QueryReply(1, None) in child.sent)
        assert child.running.snapshot.number == 3
        child.feed(messages.Query(3, messages.AwaitRules()))
        await child.until(lambda: messages.QueryReply(3, None) in child.sent)

    play(scene)


def test_a_drain_ends_the_compiling_of_rules() -> None:
    """A child that is drained meanwhile ends in order, with the rules that it has."""

    async def scene(child: Child, rules: RulesSpec) -> None:
        child.feed(messages.UseRules(rules, 2), messages.UseRules(rules, 3))
        await child.until(lambda: child.begun != [])

    child = play(scene)
    assert child.was_closed_with == 1
    assert len(child.begun) == 1


def test_rules_that_cannot_be_compiled_leave_the_others_in_force() -> None:
    """The control process is told, and the next rules are used."""

    async def scene(child: Child, rules: RulesSpec) -> None:
        child.released.set()
        child.feed(messages.UseRules(rules, 13))
        await child.until(lambda: child.sent != [])
        assert child.sent == [messages.WorkerFailed("rules 13 are not used: a defect")]
        assert child.running.snapshot.number == 1
        child.feed(messages.UseRules(rules, 14))
        await child.until(lambda: child.running.snapshot.number == 14)

    play(scene)
