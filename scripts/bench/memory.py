"""Memory: an idle worker's, that of idle connections, and whether a huge answer passes through or accumulates."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from bench.cases import answer_of
from bench.messages import EXCHANGES, content_length
from bench.processes import BenchError, tree
from bench.programs import Running

SETTLE_SECONDS = 0.5
SAMPLE_SECONDS = 0.01
WARMUP_REQUESTS = 50
READ_BYTES = 1 << 20

# The slow reader stalls, then takes 100 MB/s, then closes in the middle of the answer.
STALL_SECONDS = 0.7
SLOW_BYTES_PER_SECOND = 100_000_000
SLOW_BYTES = 200_000_000


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Resident memory of one proxy, in bytes; all but `idle_tree` of its worker alone."""

    proxy: str
    idle: int
    idle_tree: int
    connections: int
    connections_added: int
    streamed_bytes: int
    fast_stream_added: int  # at the peak, like the next
    slow_stream_added: int
    fast_stream_seconds: float


class Peak:
    """The highest resident memory of a process while the context lasts, sampled in a thread."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.highest = rss(process)

    def _watch(self) -> None:
        while not self._is_over.wait(SAMPLE_SECONDS):
            self.highest = max(self.highest, rss(self._process))

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


def rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess as error:
        raise BenchError(f"process {process.pid} ended while its memory was measured") from error


def measure(start: Callable[[], Running], stop: Callable[[Running], None], connections: int, huge: int) -> MemorySample:
    """Measure one proxy, restarted for each measurement: memory that was allocated before would hide growth."""
    running = start()
    worker, family = _processes(running)
    time.sleep(SETTLE_SECONDS)
    idle, idle_tree = rss(worker), sum(map(rss, family))
    _warm_up(running)
    connections_added = _idle_connections(running, connections, worker)
    stop(running)

    running = start()
    worker, _ = _processes(running)
    _warm_up(running)
    before = rss(worker)
    with Peak(worker) as fast:
        started_at = time.monotonic()
        _read_all(running, huge)
        seconds = time.monotonic() - started_at
    with Peak(worker) as slow:
        _read_slowly(running)
    if answer_of(running, "small")[0] != 200:
        raise BenchError(f"memory: {running.name} does not answer after a reader has left")
    stop(running)
    return MemorySample(
        proxy=running.name,
        idle=idle,
        idle_tree=idle_tree,
        connections=connections,
        connections_added=connections_added,
        streamed_bytes=huge,
        fast_stream_added=fast.highest - before,
        slow_stream_added=slow.highest - before,
        fast_stream_seconds=seconds,
    )


def _processes(running: Running) -> tuple[psutil.Process, list[psutil.Process]]:
    assert running.worker is not None
    assert running.process is not None
    return running.worker, tree(running.process)


def _warm_up(running: Running) -> None:
    """A few requests, so that one-time allocations do not count as growth."""
    for _ in range(WARMUP_REQUESTS):
        answer_of(running, "small")


def _idle_connections(running: Running, count: int, worker: psutil.Process) -> int:
    """Open connections that each had one request answered and are then idle; the memory that they added."""
    before = rss(worker)
    request = EXCHANGES["small"].request()
    with contextlib.ExitStack() as stack:
        opened: list[socket.socket] = []
        for _ in range(count):
            connection = stack.enter_context(
                socket.create_connection(("127.0.0.1", running.ports["small"]), timeout=10)
            )
            connection.sendall(request)
            if not connection.recv(65_536).startswith(b"HTTP/1.1 200"):
                raise BenchError(f"memory: connection {len(opened)} of {count} through {running.name} had no 200")
            opened.append(connection)
        time.sleep(SETTLE_SECONDS)
        added = rss(worker) - before
        closed = sum(map(_is_closed, opened))
        if closed:
            raise BenchError(f"memory: {running.name} closed {closed} of {count} idle connections")
        return added


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return not connection.recv(65_536)  # what is left of the answer, if it came in two pieces
    except BlockingIOError:
        return False
    except OSError:
        return True


def _open_huge(running: Running) -> tuple[socket.socket, int, int]:
    """Request the huge answer: the connection, the body's announced length, and how much of it came with the head."""
    connection = socket.create_connection(("127.0.0.1", running.ports["bulk"]), timeout=20)
    connection.sendall(EXCHANGES["huge"].request())
    answer = b""
    while (end := answer.find(b"\r\n\r\n")) < 0:
        piece = connection.recv(READ_BYTES)
        if not piece:
            raise BenchError(f"memory: {running.name} closed the connection instead of streaming")
        answer += piece
    length = content_length(answer[:end])
    if not answer.startswith(b"HTTP/1.1 200") or length is None:
        raise BenchError(f"memory: {running.name} answered {answer[:200]!r}")
    return connection, length, len(answer) - end - 4


def _read_all(running: Running, huge_bytes: int) -> None:
    connection, length, seen = _open_huge(running)
    buffer = bytearray(READ_BYTES)
    with connection:
        while seen < length and (size := connection.recv_into(buffer)):
            seen += size
    if seen != huge_bytes:
        raise BenchError(f"memory: {running.name} streamed {seen} bytes of {huge_bytes}")


def _read_slowly(running: Running) -> None:
    connection, _, seen = _open_huge(running)
    buffer = bytearray(READ_BYTES)
    with connection:
        time.sleep(STALL_SECONDS)
        started_at = time.monotonic()
        while seen < SLOW_BYTES and (size := connection.recv_into(buffer)):
            seen += size
            time.sleep(max(0.0, started_at + seen / SLOW_BYTES_PER_SECOND - time.monotonic()))
    if seen < SLOW_BYTES:
        raise BenchError(f"memory: {running.name} closed a slow reader's connection after {seen} bytes")
