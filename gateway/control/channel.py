"""The socket pair between the control process and one of its children, from the control process' end.

Messages travel as length-prefixed pickles; only a parent and its own child hold the sockets. Rules travel in parts: a
child that serves must not stop to read thousands of routes, nor to write their counters.
"""

from __future__ import annotations

import asyncio
import pickle
import signal
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from gateway.config.engine_specs import EngineSpec
from gateway.config.specs import RouteSpec, RulesSpec
from gateway.control.forked_child import ForkedChild
from gateway.control.messages import CountersPart, Message, QueryReply, RulesPart, Start, UseRules
from gateway.net.collector import collector_paused
from gateway.net.slices import Slices
from gateway.observability.metrics import CountersSnapshot, joined

_LENGTH = struct.Struct(">I")
# Engines and routes of one part, which take less than a millisecond to read.
_NUM_ENGINES, _NUM_ROUTES = 8, 32


def encode(message: Message) -> bytes:
    if isinstance(message, Start | UseRules):
        parts, rest = _divided(message.rules)
        return b"".join(map(_frame, [*parts, replace(message, rules=rest)]))
    return _frame(message)


def _frame(message: Message) -> bytes:
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


async def read_messages(reader: asyncio.StreamReader) -> AsyncIterator[Message]:
    """The messages of the other end, until it closes."""
    counters: list[CountersSnapshot] = []
    with suppress(OSError, asyncio.IncompleteReadError):  # the socket of a killed process may be reset
        while True:
            message = await _read(reader)
            match message:
                case RulesPart():
                    with collector_paused():
                        yield await _read_rules(message, reader)
                case CountersPart(part):
                    counters.append(part)
                    await asyncio.sleep(0)
                case QueryReply(token, CountersSnapshot() as last):
                    yield QueryReply(token, joined([*counters, last]))
                    counters = []
                case _:
                    yield message


async def _read(reader: asyncio.StreamReader) -> Message:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    message: Message = pickle.loads(await reader.readexactly(length))
    return message


async def _read_rules(first: RulesPart, reader: asyncio.StreamReader) -> Start | UseRules:
    """Read what follows a part of rules: the other parts, and the message about the whole."""
    message: Message = first
    engines: dict[str, EngineSpec] = {}
    routes: list[RouteSpec] = []
    slices = Slices()
    while isinstance(message, RulesPart):
        engines.update((engine.name, engine) for engine in message.engines)
        routes += message.routes
        if slices.is_over:
            await slices.next()  # `readexactly` does not wait for what has arrived
        message = await _read(reader)
    assert isinstance(message, Start | UseRules)
    return replace(message, rules=replace(message.rules, engines=engines, routes=tuple(routes)))


def _divided(rules: RulesSpec) -> tuple[list[RulesPart], RulesSpec]:
    """The parts, and the rules without them and without what children do not use."""
    engines, routes = tuple(rules.engines.values()), rules.routes
    parts = [RulesPart(engines=engines[at : at + _NUM_ENGINES]) for at in range(0, len(engines), _NUM_ENGINES)]
    parts += [RulesPart(routes=routes[at : at + _NUM_ROUTES]) for at in range(0, len(routes), _NUM_ROUTES)]
    return parts, replace(rules, engines={}, routes=(), tests=())


class ChildProcess:
    """The control process' end: a child and the socket to it.

    `start` starts it; `ended` is done, with the exit status, when the process has ended and its last message is read.
    """

    def __init__(
        self,
        received: Callable[[ChildProcess, Message], None],
        command: Sequence[str],
        forked: ForkedChild | None = None,
    ) -> None:
        """`forked` is a process to take instead of starting one by `command`."""
        self._received = received
        self._command = command
        self._forked = forked
        self._process: asyncio.subprocess.Process | ForkedChild | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.ended: asyncio.Task[int] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def has_exited(self) -> bool:
        return self._process is None or self._process.returncode is not None

    async def wait(self) -> None:
        """Return when the process has exited."""
        if self._process is not None:
            await self._process.wait()
        if self.ended is not None:
            await asyncio.wait([self.ended])

    async def start(self, pass_fds: Sequence[int] = ()) -> None:
        """Start the process; it waits for its first message. Raises: OSError."""
        ours = await self._started(pass_fds) if self._forked is None else self._taken(self._forked)
        ours.setblocking(False)
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self.ended = asyncio.get_running_loop().create_task(self._read(reader))

    def _taken(self, forked: ForkedChild) -> socket.socket:
        forked.watch()
        self._process = forked
        return forked.control

    async def _started(self, pass_fds: Sequence[int]) -> socket.socket:
        ours, theirs = socket.socketpair()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                "--control-fd",
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(), *pass_fds),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the supervisor, which drains its workers
            )
        finally:
            theirs.close()
        return ours

    def send(self, message: Message) -> None:
        """Send a message; one to a process that has exited is lost."""
        self.send_encoded(encode(message))

    def send_encoded(self, message: bytes) -> None:
        """The same for one that is encoded already, as for several processes."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(message)

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)

    async def _read(self, reader: asyncio.StreamReader) -> int:
        assert self._process is not None and self._writer is not None
        async for message in read_messages(reader):
            self._received(self, message)
        status = await self._process.wait()
        self._writer.close()
        return status
