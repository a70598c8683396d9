"""A child of the control process, from the child's end: it carries out messages until one, or a signal, stops it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from gateway.config.specs import RulesSpec
from gateway.control import messages
from gateway.control.channel import encode, read_messages
from gateway.dataplane.context.data_plane import DataPlane
from gateway.net.server import loop_factory
from gateway.net.slices import run_in_slices
from gateway.observability.logs import set_log_level
from gateway.sessions.client_pin import PinSeal
from gateway.upstream.tls import engines_tls

_log = logging.getLogger(__name__)

# What may wait for a control process that does not read.
MAX_UNSENT_BYTES = 4 * 1024 * 1024


class ControlledProcess:
    """A data plane that a control process directs; `plane` is None until it serves."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.plane: DataPlane | None = None
        self.writer = writer
        self.stopping = asyncio.Event()
        self._reader = reader
        self._newest: messages.UseRules | None = None  # still to be used
        self._use_task: asyncio.Task[None] | None = None  # uses the newest rules, until there are none
        self._unsent_spans = 0

    async def run(self) -> int:
        """Serve until stopped; returns the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        reading = loop.create_task(self._read())
        await self.stopping.wait()
        reading.cancel()
        if self._use_task is not None:
            self._use_task.cancel()
            await asyncio.wait([self._use_task])
        await self.close()
        return 0

    async def start(self, start: messages.Start) -> None:
        """Set `plane`, and serve.

        Raises: OSError, ValueError.
        """
        raise NotImplementedError

    async def use_rules(self, plane: DataPlane, rules: RulesSpec, number: int) -> None:
        """Swap the rules, in slices, between which the process serves.

        Raises: OSError, ValueError where their files cannot be used.
        """
        contexts = await asyncio.to_thread(engines_tls, rules.engines.values())
        await run_in_slices(plane.change_rules(rules, number))
        del contexts  # the endpoints have those that are new

    async def reply(self, plane: DataPlane, token: int, request: Any) -> None:
        self.send(messages.QueryReply(token, self.answer(plane, request)))

    def answer(self, plane: DataPlane, request: Any) -> Any:
        raise NotImplementedError

    def apply(self, plane: DataPlane, message: messages.Message) -> None:
        """Carry out a message that has no reply."""
        match message:
            case messages.SetHealth(health, models):
                plane.set_health(health, models)
            case messages.UpdateHealth(conditions, lists, loads):
                plane.update_health(conditions, lists, loads)
            case messages.SetEndpoints(endpoints):
                plane.set_endpoints(endpoints)
            case messages.UpdateCachedBlocks(engine, changes):
                plane.update_cached_blocks(engine, changes)
            case messages.SetDrained(endpoints):
                plane.set_drained(endpoints)
            case messages.SetKeys(keys, is_current):
                plane.set_keys(keys, is_current=is_current)
            case messages.SetWeights(weights, runs):
                plane.set_weights(weights, runs)
            case messages.RenameRegions(secret):
                plane.rename_regions(secret)
            case messages.SealPins(key):
                plane.affinity.seal = PinSeal(key, is_secure=plane.settings.tls is not None)
            case messages.SetLogLevel(level):
                set_log_level(level)

    def control_lost(self) -> None:
        """The control process has closed its end."""
        self.stopping.set()

    async def close(self) -> None:
        """End what runs."""
        raise NotImplementedError

    def send_spans(self, encoded: bytes, dropped: int) -> None:
        """Those that the control process does not read in time are left out, too."""
        transport = self.writer.transport
        if not transport.is_closing() and transport.get_write_buffer_size() < MAX_UNSENT_BYTES:
            self.send(messages.Spans(encoded, self._unsent_spans + dropped, time.time() - time.monotonic()))
            self._unsent_spans = 0
        else:
            self._unsent_spans += dropped + 1

    def send(self, message: messages.Message) -> None:
        if not self.writer.is_closing():
            self.writer.write(encode(message))

    async def _read(self) -> None:
        async for message in read_messages(self._reader):
            await self._handle(message)
        self.control_lost()

    async def _handle(self, message: messages.Message) -> None:
        match message:
            case messages.Start():
                try:
                    await self.start(message)
                    self.send(messages.Serving())
                except (OSError, ValueError) as error:
                    self.send(messages.WorkerFailed(f"cannot serve: {error}"))
            case messages.Drain():
                self.stopping.set()
            case messages.Query(token, messages.Ping()):
                self.send(messages.QueryReply(token, None))
            case _ if self.plane is None:
                self.send(messages.WorkerFailed(f"{type(message).__name__} came before messages.Start"))
            case messages.UseRules():
                self._newest = message
                if self._use_task is None:
                    self._use_task = asyncio.get_running_loop().create_task(self._use_newest(self.plane))
            case messages.Query(token, messages.AwaitRules()):
                if self._use_task is None:
                    self.send(messages.QueryReply(token, None))
                else:
                    self._use_task.add_done_callback(lambda _: self.send(messages.QueryReply(token, None)))
            case messages.Query(token, request):
                await self.reply(self.plane, token, request)
            case _:
                self.apply(self.plane, message)

    async def _use_newest(self, plane: DataPlane) -> None:
        """Use the newest rules, and those that come meanwhile; other messages are carried out between the slices."""
        while (newest := self._newest) is not None:
            self._newest = None
            try:
                await self.use_rules(plane, newest.rules, newest.number)
            except Exception as error:  # a certificate file that can no longer be read
                is_expected = isinstance(error, OSError | ValueError)
                _log.error("rules %d are not used: %s", newest.number, error, exc_info=None if is_expected else error)
                self.send(messages.WorkerFailed(f"rules {newest.number} are not used: {error}"))
            del newest
        self._use_task = None


def control_socket(description: str) -> socket.socket:
    """A started child's end of the socket pair, which `--control-fd` hands it."""
    parser = argparse.ArgumentParser(description=f"{description}; `pointsman serve` starts it.")
    parser.add_argument("--control-fd", type=int, required=True)
    return socket.socket(fileno=parser.parse_args().control_fd)


def run_child(
    make: Callable[[asyncio.StreamReader, asyncio.StreamWriter], ControlledProcess], control: socket.socket
) -> int:
    """The main function of a child."""
    control.setblocking(False)

    async def serve() -> int:
        return await make(*await asyncio.open_connection(sock=control)).run()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(serve())
