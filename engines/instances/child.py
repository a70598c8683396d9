"""An instance process as the operating system has it: started, listened to, ended, never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from typing import NamedTuple

from engines.instances.interpreter import Interpreter
from engines.ipc.arena import open_shared_file

log = logging.getLogger("engines.models")

MAX_LINE_BYTES = 64 * 1024


class ChannelEnds(NamedTuple):
    """The host's ends of one instance's channel: the stream, and the files of the tensors that go and come."""

    stream: socket.socket
    sent: int
    received: int

    def close(self) -> None:
        self.stream.close()
        os.close(self.sent)
        os.close(self.received)


class Child:
    """One running process. `on_exit` is called once, with its exit code, after everything it wrote has been logged."""

    def __init__(
        self, process: subprocess.Popen[bytes], lifeline: int, output: int, name: str, on_exit: Callable[[int], None]
    ) -> None:
        self.process = process
        self.exit_code: int | None = None
        self.exited = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._lifeline = lifeline
        self._output = output
        self._name = name
        self._line = b""
        self._on_exit = on_exit
        os.set_blocking(output, False)
        self._loop.add_reader(output, self._read_output)
        threading.Thread(target=self._wait, name=f"wait for {name}", daemon=True).start()

    def __repr__(self) -> str:
        state = "running" if self.exit_code is None else f"ended with {self.exit_code}"
        return f"<Child {self._name} {self.process.pid}: {state}>"

    def signal(self, number: int) -> None:
        """Signal the process and what it has started."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def _wait(self) -> None:
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        # What the model has started outlives it in its process group, and holds on to what is shared.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        exit_code = self.process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know
            self._loop.call_soon_threadsafe(self._exit, exit_code)

    def _exit(self, exit_code: int) -> None:
        self.exit_code = exit_code
        os.close(self._lifeline)
        self._read_output()
        if self._line:
            self._write(self._line)
        self._loop.remove_reader(self._output)
        os.close(self._output)
        self.exited.set()
        self._on_exit(exit_code)

    def _read_output(self) -> None:
        while True:
            try:
                data = os.read(self._output, MAX_LINE_BYTES)
            except BlockingIOError:
                return
            if not data:
                if self.exit_code is None:
                    self._loop.remove_reader(self._output)
                return
            *lines, self._line = (self._line + data).split(b"\n")
            for line in lines:
                self._write(line)
            if len(self._line) > MAX_LINE_BYTES:
                self._write(self._line)
                self._line = b""

    def _write(self, line: bytes) -> None:
        log.info("%s: %s", self._name, line.decode(errors="replace").rstrip("\r"))


def spawn(
    name: str, interpreter: Interpreter, num_channels: int, limit_bytes: int, on_exit: Callable[[int], None]
) -> tuple[Child, list[ChannelEnds]]:
    """Start a process for so many instances; `name` is what its lines in the log begin with.

    Raises: OSError where the interpreter cannot be started.
    """
    ours: list[ChannelEnds] = []
    theirs: list[socket.socket] = []
    channels = []
    for _ in range(num_channels):
        stream, other = socket.socketpair()
        ends = ChannelEnds(stream, open_shared_file(), open_shared_file())
        ours.append(ends)
        theirs.append(other)
        channels.append((other.fileno(), ends.sent, ends.received))
    life, lifeline = os.pipe()
    output, written = os.pipe()
    arguments = [str(life), str(limit_bytes), *(",".join(map(str, channel)) for channel in channels)]
    try:
        process = subprocess.Popen(
            interpreter.command("engines.runner", *arguments),
            env={**os.environ, **interpreter.environment},
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            pass_fds=[life, *(descriptor for channel in channels for descriptor in channel)],
            process_group=0,
        )
    except OSError:
        for ends in ours:
            ends.close()
        os.close(lifeline)
        os.close(output)
        raise
    finally:
        os.close(life)
        os.close(written)
        for other in theirs:
            other.close()
    return Child(process, lifeline, output, name, on_exit), ours
