"""An instance process as the operating system has it: started, listened to, ended, never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from engines.core.errors import invalid
from engines.core.processes import available_cores
from engines.ipc.arena import open_shared_file
from engines.ipc.channel import open_pipe

ENVIRONMENT_PARAMETER = "EXECUTION_ENV_PATH"
_MODEL_DIRECTORY = "$$TRITON_MODEL_DIRECTORY"
_ARCHIVES = (".tar.gz", ".tgz", ".tar", ".zip")
_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"

# Numerical libraries read the size of their thread pools from these.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python, and variables of its environment that differ from the host's."""

    executable: str
    environment: dict[str, str]


def interpreter_for(config: Any, directory: Path, num_processes: int) -> Interpreter:
    """The Python for a model with this many processes: the host's, or that of the model's virtual environment. Raises:
    EngineError if the environment is unusable, with a cure."""
    environment = {name: str(threads_each(num_processes)) for name in _THREAD_VARIABLES if name not in os.environ}
    # This package's directory first, then the host's PYTHONPATH.
    paths = [str(Path(__file__).parents[2]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    executable = sys.executable
    parameters = config.parameters
    if ENVIRONMENT_PARAMETER in parameters and parameters[ENVIRONMENT_PARAMETER].string_value:
        value = parameters[ENVIRONMENT_PARAMETER].string_value
        root = Path(value.replace(_MODEL_DIRECTORY, str(directory)))
        executable = virtual_python(root)
        environment["VIRTUAL_ENV"] = str(root)
        environment["PATH"] = f"{root / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
        environment["POINTSMAN_HOST_PACKAGES"] = os.pathsep.join(path for path in sys.path if "site-packages" in path)
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return Interpreter(executable, environment)


def threads_each(num_processes: int) -> int:
    """CPU threads for each of this many processes."""
    return max(1, available_cores() // max(1, num_processes))


def virtual_python(root: Path) -> str:
    """The Python of a virtual environment. Raises: EngineError."""
    if root.name.endswith(_ARCHIVES):
        raise invalid(
            f"{ENVIRONMENT_PARAMETER} '{root}' is an archive of conda-pack, which this host does not unpack: unpack it "
            f"on this machine, or make a virtual environment with `python{_VERSION} -m venv`, and name its directory"
        )
    executable = root / "bin" / "python"
    if not executable.exists():
        raise invalid(f"{ENVIRONMENT_PARAMETER} '{root}' is no virtual environment: there is no {executable}")
    version = _version(root)
    if version is not None and version != _VERSION:
        raise invalid(
            f"{ENVIRONMENT_PARAMETER} '{root}' has Python {version}, and this host runs Python {_VERSION}, which its "
            f"models must run too: create it again with `python{_VERSION} -m venv`"
        )
    return str(executable)


def _version(root: Path) -> str | None:
    """The Python version of an environment, `3.11`; None if unknown."""
    settings = root / "pyvenv.cfg"
    if settings.exists():
        for line in settings.read_text().splitlines():
            key, _, value = line.partition("=")
            if key.strip() in ("version", "version_info"):
                return ".".join(value.strip().split(".")[:2])
    libraries = sorted((root / "lib").glob("python3.*"))
    return libraries[0].name.removeprefix("python") if len(libraries) == 1 else None


log = logging.getLogger("engines.models")

MAX_LINE_BYTES = 64 * 1024
# Limit of a process's output a second: beyond it the process waits. The host writes the lines, and has other work.
MAX_BYTES_A_SECOND = 4 * 1024 * 1024
# From this many lines on, lines that arrive together are logged together: one by one takes fifty times as long.
_MANY_LINES = 32
# More than a pipe holds: output of the process's children after its end is not read.
_MAX_LAST_BYTES = 1024 * 1024
_RETURN = "\r"


class ChannelEnds(NamedTuple):
    """The host's ends of one instance's channel: the pipes to it and from it, and the files of the tensors that go and
    come."""

    outgoing: int
    incoming: int
    sent: int
    received: int

    def close(self) -> None:
        for descriptor in self:
            os.close(descriptor)


class ModelChild:
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
        self._second = self._num_bytes = 0  # bytes of output in that second
        self._pause: asyncio.TimerHandle | None = None
        self._on_exit = on_exit
        os.set_blocking(output, False)
        self._loop.add_reader(output, self._read_output)
        threading.Thread(target=self._wait, name=f"wait for {name}", daemon=True).start()

    def signal(self, number: int) -> None:
        """Signal the process and its children."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)

    def _wait(self) -> None:
        """Wait for the end of the process, then kill its children: they outlive it in its group and hold shared
        resources.

        CPython has waitid on macOS only since 3.13. Without it the process is reaped first. The group's id is not
        reused before the group is empty (XNU bsd/kern/kern_fork.c: a new process gets no id of a group), and ids are
        assigned in sequence: none comes round between these two calls.
        """
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        else:
            self.process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        exit_code = self.process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._exit, exit_code)

    def _exit(self, exit_code: int) -> None:
        self.exit_code = exit_code
        os.close(self._lifeline)
        self._read_last()
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._output)
        os.close(self._output)
        self.exited.set()
        self._on_exit(exit_code)

    def _read_output(self) -> None:
        """Read some output, within the limit of this second."""
        num_bytes = self._read_lines()
        if num_bytes is None:
            self._loop.remove_reader(self._output)
            return
        second = int(self._loop.time())
        if second != self._second:
            self._second, self._num_bytes = second, 0
        self._num_bytes += num_bytes
        if self._num_bytes > MAX_BYTES_A_SECOND:
            self._loop.remove_reader(self._output)
            self._pause = self._loop.call_at(second + 1, self._loop.add_reader, self._output, self._read_output)

    def _read_last(self) -> None:
        num_bytes = 0
        while num_bytes < _MAX_LAST_BYTES and (more := self._read_lines()):
            num_bytes += more
        if self._line:
            self._write([self._line])

    def _read_lines(self) -> int | None:
        """Log the available lines: their bytes, 0 if there are none yet, None at the end."""
        try:
            data = os.read(self._output, MAX_LINE_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            return None
        *lines, self._line = (self._line + data).split(b"\n")
        if len(self._line) > MAX_LINE_BYTES:
            lines.append(self._line)
            self._line = b""
        self._write(lines)
        return len(data)

    def _write(self, lines: list[bytes]) -> None:
        texts = [f"{self._name}: {line.decode(errors='replace').rstrip(_RETURN)}" for line in lines]
        for text in texts if len(texts) < _MANY_LINES else ["\n".join(texts)]:
            log.info("%s", text)


def spawn(
    name: str, interpreter: Interpreter, num_channels: int, limit_bytes: int, on_exit: Callable[[int], None]
) -> tuple[ModelChild, list[ChannelEnds]]:
    """Start a process for this many instances; `name` is the prefix of its lines in the log. Raises: OSError if the
    interpreter cannot be started."""
    with contextlib.ExitStack() as unused, contextlib.ExitStack() as theirs:

        def closing(descriptor: int, ends: contextlib.ExitStack) -> int:
            ends.callback(os.close, descriptor)
            return descriptor

        channels: list[tuple[ChannelEnds, tuple[int, int]]] = []
        for _ in range(num_channels):
            (inbound_read, outgoing), (incoming, inbound) = open_pipe(), open_pipe()
            for descriptor in (outgoing, incoming):
                closing(descriptor, unused)
            for descriptor in (inbound_read, inbound):
                closing(descriptor, theirs)
            sent, received = (closing(open_shared_file(limit_bytes), unused) for _ in range(2))
            channels.append((ChannelEnds(outgoing, incoming, sent, received), (inbound_read, inbound)))
        life, lifeline = os.pipe()
        closing(life, theirs), closing(lifeline, unused)
        output, written = os.pipe()
        closing(output, unused), closing(written, theirs)
        passed = [(*pipes, ends.sent, ends.received) for ends, pipes in channels]
        arguments = [str(life), str(limit_bytes), *(",".join(map(str, channel)) for channel in passed)]
        process = subprocess.Popen(
            # -P: the working directory is not on its path.
            [interpreter.executable, "-P", "-u", "-m", "engines.runner", *arguments],
            env={**os.environ, **interpreter.environment},
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=written,
            pass_fds=[life, *(descriptor for channel in passed for descriptor in channel)],
            process_group=0,
        )
        unused.pop_all()
    return ModelChild(process, lifeline, output, name, on_exit), [ends for ends, _ in channels]
