"""The child processes of a run: started, pinned to cores, measured, and ended when the run ends, however it ends."""

import contextlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from gateway.supervision.ports import WORKERS_BIND, ReservedPort

SCRIPTS = Path(__file__).resolve().parent.parent

# A proxy may drain its connections for a while; after that it is killed.
STOP_SECONDS = 5.0


# The name of an upstream -> its port; for a proxy: the port that leads to that upstream.
Ports = Mapping[str, int]


class BenchError(Exception):
    """A condition that would make figures wrong or missing: it stops the run with this message."""


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one (children inherit it) and return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = hard if hard != resource.RLIM_INFINITY else 65_536
    with contextlib.suppress(ValueError, OSError):  # macOS refuses more than kern.maxfilesperproc
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


_held: list[ReservedPort] = []


def free_port() -> int:
    """A free port that no other process gets before its server binds it with SO_REUSEADDR or SO_REUSEPORT, as servers
    do. It is reserved on Linux only."""
    reserved = ReservedPort("127.0.0.1", 0, "")
    if WORKERS_BIND:
        _held.append(reserved)
    else:
        reserved.close()
    return reserved.port


def cpu_seconds(pid: int) -> float:
    """CPU time of one process, all its threads, user and system; 0 once it has gone.

    Linux keeps a CPU clock for each process whose id is ~pid << 3 | 2 (clock_getcpuclockid). It counts nanoseconds,
    where /proc/PID/stat counts ticks of 10 ms, which is too coarse for a short round at a low load.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return time.clock_gettime(~pid << 3 | 2)
        return 0.0
    with contextlib.suppress(psutil.Error):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return 0.0


def group_cpu_seconds(groups: dict[str, list[int]]) -> dict[str, float]:
    """CPU time of each named group of processes."""
    return {name: sum(map(cpu_seconds, pids)) for name, pids in groups.items()}


def tree(process: psutil.Process) -> list[psutil.Process]:
    """The process and all its descendants."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def listener(process: psutil.Process, port: int) -> psutil.Process:
    """The process that serves a port: the one furthest down the tree that listens on it."""
    depths = [(len(each.parents()), each) for each in tree(process) if _listens(each, port)]
    if not depths:
        raise BenchError(f"no process of {process.name()} listens on port {port}")
    return max(depths, key=lambda pair: pair[0])[1]


def _listens(process: psutil.Process, port: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(
            each.status == psutil.CONN_LISTEN and each.laddr.port == port
            for each in process.net_connections(kind="tcp")
        )
    return False


@contextlib.contextmanager
def pinned(cores: Sequence[int] | None) -> Iterator[None]:
    """Children started inside run on these cores only; None leaves the choice to the scheduler."""
    if not cores or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Children:
    """All processes that the run started. Used as a context: leaving it ends them all."""

    def __init__(self, log_folder: Path) -> None:
        self._log_folder = log_folder
        self._running: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}

    def __repr__(self) -> str:
        return f"<Children: {', '.join(name for name, _ in self._running.values()) or 'none'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for name, child in reversed(list(self._running.values())):
            self._end(name, child)

    def spawn(
        self,
        name: str,
        argv: Sequence[str | Path],
        cores: Sequence[int] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> psutil.Process:
        """Start a long-lived child, in a session of its own so that Ctrl-C reaches this process first; it prints into a
        log.

        `variables` are added to its environment.
        """
        with self._log(name).open("ab") as log, pinned(cores):
            child = subprocess.Popen(
                [*map(str, argv)],
                cwd=SCRIPTS,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | (variables or {}),
            )
        self._running[child.pid] = (name, child)
        return psutil.Process(child.pid)

    def stop(self, process: psutil.Process) -> None:
        if process.pid in self._running:
            self._end(*self._running[process.pid])

    def require_alive(self, process: psutil.Process) -> None:
        """Raise with the end of its log if a child has ended on its own."""
        name, child = self._running[process.pid]
        if child.poll() is not None:
            raise BenchError(f"{name} ended with status {child.returncode}: {self.log_tail(name)}")

    def log_tail(self, name: str) -> str:
        with contextlib.suppress(OSError):
            return self._log(name).read_text(errors="replace")[-1500:].strip() or "(no output)"
        return "(no log)"

    def _log(self, name: str) -> Path:
        return self._log_folder / f"{name}.log"

    def _end(self, name: str, child: subprocess.Popen[bytes]) -> None:
        family = tree(psutil.Process(child.pid)) if child.poll() is None else []
        with contextlib.suppress(ProcessLookupError):
            child.terminate()
        _, alive = psutil.wait_procs(family, timeout=STOP_SECONDS)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        child.wait()
        del self._running[child.pid]
