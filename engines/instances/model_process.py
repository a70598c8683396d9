"""A process and its instances: loaded, served, restarted when it ends, stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engines.core.errors import EngineError, internal, unavailable
from engines.core.processes import describe_exit
from engines.instances.instance import ProcessInstance
from engines.instances.process import ChannelEnds, Interpreter, ModelChild, spawn
from engines.ipc import arena, protocol
from engines.ipc.channel import Channel
from engines.scheduling.interfaces import Instance
from gateway.net.backoff import Backoff

log = logging.getLogger(__name__)

FIRST_DELAY_SECONDS, LAST_DELAY_SECONDS = 0.1, 30.0
TERMINATION_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """How long and how large: seconds to load and to finalise, bytes of shared memory in each direction."""

    load_seconds: float = 600.0
    stop_seconds: float = 30.0
    arena_bytes: int = arena.DEFAULT_LIMIT_BYTES


class ModelProcess:
    """One process. `fields` is the content of LOAD."""

    def __init__(
        self,
        name: str,
        interpreter: Interpreter,
        fields: Mapping[str, Any],
        limits: ProcessLimits,
        on_change: Callable[[Instance], None],
    ) -> None:
        self.name = name
        self.instances: list[ProcessInstance] = []
        self._interpreter = interpreter
        self._fields = dict(fields)
        self._limits = limits
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._child: ModelChild | None = None
        self._restart: asyncio.Task[None] | None = None
        self._replacement: asyncio.Task[None] | None = None
        self._backoff = Backoff(FIRST_DELAY_SECONDS, LAST_DELAY_SECONDS)
        self._serves = False
        self._stops = False

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return self._child.process.pid if self._child is not None and self._child.exit_code is None else None

    async def load(self, instances: Sequence[ProcessInstance], *, completes: bool) -> bytes:
        """Start the process and load the backend; the completed configuration, serialised. The process has all
        instances if they share one, else the first. Raises: EngineError."""
        try:
            self._child, ends = spawn(
                self.name, self._interpreter, len(instances), self._limits.arena_bytes, self._exit
            )
        except OSError as error:
            raise internal(f"failed to start '{self._interpreter.executable}' for '{self.name}': {error}") from error
        self._connect(instances[0], ends[0])
        self.instances = [instances[0]]
        try:
            fields = {**self._fields, "completes": completes}
            seconds = self._limits.load_seconds
            message = await instances[0].set_up(protocol.LOAD, fields, timeout_seconds=seconds)
        except BaseException:
            for unused in ends[1:]:
                unused.close()
            raise
        _, _, config, shares = message
        for instance, end in zip(instances[1:], ends[1:], strict=True):
            if shares:
                self._connect(instance, end)
                self.instances.append(instance)
            else:
                end.close()
        self._fields["config"] = config
        return bytes(config)

    async def begin(self) -> None:
        """Have every instance load the model. Raises: EngineError."""
        seconds = self._limits.load_seconds
        started = await asyncio.gather(
            *(
                each.set_up(protocol.START, each.name, each.plan.kind, each.plan.device_id, timeout_seconds=seconds)
                for each in self.instances
            )
        )
        for instance, (_, _, placement) in zip(self.instances, started, strict=True):
            instance.make_ready(placement)
        self._serves = True

    async def stop(self) -> None:
        """End it: the model finalises, and has a time for that."""
        self._stops = True
        for task in (self._restart, self._replacement):
            if task is not None:
                task.cancel()
        await self._end()

    async def _end(self) -> None:
        child = self._child
        if child is None or child.exit_code is not None:
            return
        if self._serves:
            for instance in self.instances:
                instance.send(protocol.STOP)
            if await has_exited(child, self._limits.stop_seconds):
                return
            log.warning("%s: does not stop within %g s", self.name, self._limits.stop_seconds)
        child.signal(signal.SIGTERM)
        if not await has_exited(child, TERMINATION_SECONDS):
            child.kill()
            await child.exited.wait()

    def _connect(self, instance: ProcessInstance, ends: ChannelEnds) -> None:
        sent = arena.Arena(ends.sent, self._limits.arena_bytes)
        received = arena.Mapping(ends.received)
        instance.connect(
            Channel(self._loop, ends.outgoing, ends.incoming, sent, received, instance.receive),
            on_heavy=self._replace,
            on_overdue=lambda reason: self._abort(instance, reason),
        )

    def _exit(self, exit_code: int) -> None:
        served, self._serves = self._serves, False
        if served and not self._stops:
            log.error("%s: its process has ended with %s", self.name, describe_exit(exit_code))
        if any(instance.num_executions for instance in self.instances):
            self._backoff.reset()
        for instance in self.instances:
            if self._stops:
                error = unavailable(f"model instance '{instance.name}' is stopping")
            else:
                error = internal(f"Stub process '{instance.name}' is not healthy.")
            instance.lose(error)
        if served and not self._stops:
            self._restart = asyncio.ensure_future(self._restart_process())
            for instance in self.instances:
                self._on_change(instance)

    async def _restart_process(self) -> None:
        """Try until it serves again, with more and more time in between."""
        while True:
            await asyncio.sleep(self._backoff.seconds)
            self._backoff.failed()
            try:
                await self.load(self.instances, completes=False)
                await self.begin()
                break
            except EngineError as error:
                log.error("%s: restart failed: %s", self.name, error.message)
                await self._end()
        log.info("%s: has been restarted", self.name)
        for instance in self.instances:
            self._on_change(instance)

    def _abort(self, instance: ProcessInstance, reason: str) -> None:
        """Kill the process because an instance does not respond."""
        log.error("%s: %s", instance.name, reason)
        instance.lose(
            internal(f"Failed to process the request(s) for model instance '{instance.name}', message: {reason}")
        )
        if self._child is not None:
            self._child.kill()

    def _replace(self, reason: str) -> None:
        """Restart the process, unless calls are in progress."""
        if self._stops or self._replacement is not None or any(each.num_calls for each in self.instances):
            return
        log.warning("%s: is restarted: %s", self.name, reason)
        for instance in self.instances:
            instance.make_unready()

        async def end() -> None:
            await self._end()
            self._replacement = None

        self._replacement = asyncio.ensure_future(end())


async def has_exited(child: ModelChild, timeout_seconds: float) -> bool:
    """Wait for the end of a process; whether it came in time."""
    try:
        async with asyncio.timeout(timeout_seconds):
            await child.exited.wait()
    except TimeoutError:
        return False
    return True
