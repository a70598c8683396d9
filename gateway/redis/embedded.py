"""The embedded Redis: a redis-server as a child process on a Unix socket, restarted when it dies.

Two gateways on one data directory share one server: the holder of the folder's lock runs it, the other uses it and
takes over when the holder ends. The server ends with the process that runs it, however that ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import suppress
from pathlib import Path

from gateway.net.backoff import Backoff
from gateway.redis.address import RedisAddress
from gateway.redis.data_dir import ServerFolder

_log = logging.getLogger("gateway.redis")

# How often to check whether another gateway still runs the server.
_LOOK_SECONDS = 0.2
_PAUSE_SECONDS = 0.1, 5.0  # the first, the longest
# One that has run for this long was well: the next restart is at once again.
_WELL_AFTER_SECONDS = 30.0
_STOP_SECONDS = 5.0
# A killed process cannot stop its children. The watchdog's standard input is a pipe from this process: at its end the
# watchdog terminates the server, and kills it if needed. (Linux has PR_SET_PDEATHSIG for this, macOS has not.)
_WATCH = """
read _
kill -TERM "$1"
n=0
while kill -0 "$1" && [ $n -lt 30 ]; do sleep 0.1; n=$((n+1)); done
kill -0 "$1" && kill -KILL "$1"
"""


class EmbeddedRedis:
    """One server, from `start` to `close`."""

    def __init__(self, folder: ServerFolder, program: Path, *, max_memory_bytes: int) -> None:
        self.address = RedisAddress(socket=str(folder.socket))
        self._folder = folder
        self._program = program
        self._options = folder.options(max_memory_bytes)
        self._lock: int | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._has_answered = False  # the current server
        self._closing = asyncio.Event()
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """The server's process id, while this process runs it."""
        return self._process.pid if self._process is not None else None

    async def start(self, timeout: float = 3.0) -> bool:
        """Keep it running from now on; returns whether it answers within `timeout` seconds."""
        self._keeping = asyncio.get_running_loop().create_task(self._keep())
        until = asyncio.get_running_loop().time() + timeout
        while not (answers := await self._answers()) and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.01)
        return answers

    async def close(self) -> None:
        """Stop the server, if this process runs it; its data is on disk then. It is killed after a few seconds."""
        self._closing.set()
        if self._keeping is not None:
            self._signal(signal.SIGTERM)
            if not (await asyncio.wait((self._keeping,), timeout=_STOP_SECONDS))[0]:
                _log.warning("redis-server does not stop within %g s, and is killed", _STOP_SECONDS)
                self._signal(signal.SIGKILL)
                await self._keeping
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # Keeping

    async def _keep(self) -> None:
        backoff = Backoff(*_PAUSE_SECONDS, healthy_after=_WELL_AFTER_SECONDS)
        logged = ""
        loop = asyncio.get_running_loop()
        while not self._closing.is_set():
            since = loop.time()
            try:
                if not await self._becomes_ours():
                    return
                why = await self._run()
            except OSError as error:
                why = f"cannot be started in {self._folder.path}: {error.strerror or error}"
            if self._closing.is_set():
                return
            if why != logged:
                _log.error("the embedded Redis %s; trying again and again", why)
                logged = why
            self.restarts += 1
            await self._rest(backoff.failed(loop.time() - since))

    async def _becomes_ours(self) -> bool:
        """Wait until this process holds the lock; False if `close` comes first.

        Raises: OSError.
        """
        if self._lock is None:
            self._lock = self._folder.lock()
            if self._lock is None:
                _log.info("the Redis in %s is run by another process; this one shares it", self._folder.path)
                while self._lock is None and not self._closing.is_set():
                    await self._rest(_LOOK_SECONDS)
                    self._lock = self._folder.lock()
                if self._lock is not None and not self._closing.is_set():
                    _log.info("the Redis in %s is run by this process from now on", self._folder.path)
        return self._lock is not None and not self._closing.is_set()

    async def _rest(self, seconds: float) -> None:
        """Wait, or return early on `close`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)

    async def _run(self) -> str:
        """Run the server until it ends; returns the reason.

        Raises: OSError.
        """
        assert self._lock is not None
        log = self._folder.open_log()
        before = os.fstat(log).st_size
        try:
            process = await asyncio.create_subprocess_exec(
                str(self._program),
                *self._options,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(self._lock,),
                start_new_session=True,  # Ctrl-C reaches this process only, which stops the server last
            )
        finally:
            os.close(log)
        self._process, self._has_answered = process, False
        watch = await self._watch(process.pid)
        try:
            if self._closing.is_set():
                self._signal(signal.SIGTERM)
            answering = asyncio.get_running_loop().create_task(self._until_answered())
            status = await process.wait()
            answering.cancel()
        finally:
            self._process = None
            _signal(watch, signal.SIGKILL)
            await watch.wait()
        if self._has_answered:
            return f"ended with status {status}"
        words = self._folder.last_words(before)
        hint = f"; its log is {self._folder.log}"
        if "append only file" in words:
            hint += f"; to begin without what it held, move {self._folder.path}/appendonly* away"
        return f"does not start: {words or f'status {status}'}{hint}"

    async def _watch(self, pid: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            _WATCH,
            "watch",
            str(pid),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )

    async def _until_answered(self) -> None:
        while not await self._answers():
            await asyncio.sleep(0.02)

    async def _answers(self) -> bool:
        """Whether it accepts commands; not yet while it loads its file."""
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(0.5):
                reader, writer = await asyncio.open_unix_connection(str(self._folder.socket))
                writer.write(b"PING\r\n")
                answers = await reader.readline() == b"+PONG\r\n"
                self._has_answered |= answers
                return answers
        except (OSError, TimeoutError, ValueError):
            return False
        finally:
            if writer is not None:
                writer.close()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            _signal(self._process, number)


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.send_signal(number)
