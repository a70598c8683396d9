"""What a hostile request of at most 1 MB costs a worker: the longest block of its event loop, and the memory it takes.

    python scripts/bench/hostile.py                      # all shapes, about two minutes
    python scripts/bench/hostile.py --only messages      # those whose names contain this

The data plane runs in this process, its clients in a thread. A block is the CPU time of one callback of the event loop.
Other processes lengthen it only through the caches and the core that they share, up to twice, so a shape that is over
the bounds is measured again, and the least counts. Memory is the peak of the process above what it had before it.
"""

import asyncio
import gc
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

_SCRIPTS = Path(__file__).resolve().parent.parent
sys.path[0] = str(_SCRIPTS)
sys.path.append(str(_SCRIPTS.parent))

import h2.config  # noqa: E402
import h2.connection  # noqa: E402
import h2.events  # noqa: E402
import typer  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import track  # noqa: E402
from rich.table import Table  # noqa: E402

from bench.hostile_shapes import MOST_WIRE_BYTES, RULES, SHAPES, Hostile  # noqa: E402
from gateway.config.rules import load_texts  # noqa: E402
from gateway.config.settings import Settings  # noqa: E402
from gateway.dataplane.context.data_plane import DataPlane  # noqa: E402
from gateway.dataplane.listener import ProtocolDetector  # noqa: E402
from gateway.net.collector import relax_collector  # noqa: E402

REPLY_SECONDS = 10.0
MOST_BLOCK_SECONDS = 0.050
MOST_MEMORY_BYTES = 64 << 20
# Measurements of a shape that is over the bounds, at most.
MOST_ROUNDS = 3


class Cost(NamedTuple):
    """What one shape cost. `wire` and `memory` are bytes, `block` and `cpu` seconds of CPU time."""

    name: str
    wire: int
    reply: str
    block: float
    cpu: float
    memory: int

    @property
    def is_bounded(self) -> bool:
        return self.block <= MOST_BLOCK_SECONDS and self.memory <= MOST_MEMORY_BYTES


class Blocks:
    """The longest callback of the event loop of this thread, and the sum of all."""

    def __init__(self) -> None:
        self.longest = self.total = 0.0
        self._thread = threading.get_ident()
        self._run: Callable[[asyncio.Handle], None] = asyncio.Handle._run  # type: ignore[attr-defined]

    def __enter__(self) -> "Blocks":
        blocks = self

        def run(handle: asyncio.Handle) -> None:
            if threading.get_ident() != blocks._thread:
                blocks._run(handle)
                return
            since = time.thread_time()
            blocks._run(handle)
            seconds = time.thread_time() - since
            blocks.total += seconds
            blocks.longest = max(blocks.longest, seconds)

        asyncio.Handle._run = run  # type: ignore[attr-defined]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.Handle._run = self._run  # type: ignore[attr-defined]


def _forget_peak() -> int:
    """Have the kernel measure the peak of memory from now on; returns what the process has now, in bytes."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def ask(port: int, data: bytes) -> str:
    """Send all of this; returns the status of the first reply."""
    with socket.create_connection(("127.0.0.1", port), timeout=REPLY_SECONDS) as client:
        with suppress(OSError):
            client.sendall(data)
        with suppress(OSError):
            reply = client.recv(1 << 16)
            return reply[9:12].decode("latin-1") or "closed"
    return "no reply"


def call(port: int, path: str, encoding: str, message: bytes) -> str:
    """Make a gRPC call with this; returns its grpc-status."""
    http2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    http2.initiate_connection()
    fields = [(":method", "POST"), (":scheme", "http"), (":authority", "h"), (":path", path)]
    fields += [("content-type", "application/grpc"), ("te", "trailers")]
    fields += [("grpc-encoding", encoding)] if encoding else []
    http2.send_headers(1, fields)
    at = 0
    with socket.create_connection(("127.0.0.1", port), timeout=REPLY_SECONDS) as client, suppress(OSError):
        while True:
            while at < len(message):
                size = min(http2.local_flow_control_window(1), http2.max_outbound_frame_size, len(message) - at)
                if size <= 0:
                    break
                http2.send_data(1, message[at : at + size], end_stream=at + size == len(message))
                at += size
            client.sendall(http2.data_to_send())
            data = client.recv(1 << 16)
            if not data:
                return "closed"
            for event in http2.receive_data(data):
                if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                    status = dict(event.headers).get("grpc-status")
                    if status is not None:
                        return f"grpc {status}"
                if isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated):
                    return "reset"
    return "no reply"


async def cost_of(shape: Hostile, port: int) -> Cost:
    """Send a shape, and measure."""
    send: Callable[[], str]
    if shape.wire is not None:
        data = shape.wire()
        send = lambda: ask(port, data)  # noqa: E731
    else:
        assert shape.call is not None
        path, encoding, data = shape.call()
        send = lambda: call(port, path, encoding, data)  # noqa: E731
    assert len(data) <= MOST_WIRE_BYTES, f"{shape.name}: {len(data)} bytes"
    before = _forget_peak()
    with Blocks() as blocks:
        reply = await asyncio.to_thread(send)
        await asyncio.sleep(0.01)  # what the end of the connection costs
    return Cost(shape.name, len(data), reply, blocks.longest, blocks.total, _peak() - before)


async def serve(settings: Settings) -> tuple[DataPlane, int]:
    """A data plane, and its port. Its engines' port is closed: a request that reaches them has cost all it can."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    loaded = load_texts({"rules.yaml": RULES.format(url=url, grpc=url.replace("http:", "grpc:"))})
    assert loaded.rules is not None, loaded.problems
    plane = DataPlane(settings, loaded.rules, 1, {})
    server = await asyncio.get_running_loop().create_server(lambda: ProtocolDetector(plane), "127.0.0.1", 0)
    return plane, server.sockets[0].getsockname()[1]


async def least_cost_of(shape: Hostile, port: int) -> Cost:
    """The same; once more, up to three times, while it is over the bounds."""
    cost = await cost_of(shape, port)
    for _ in range(MOST_ROUNDS - 1):
        if cost.is_bounded:
            break
        again = await cost_of(shape, port)
        block, memory = min(cost.block, again.block), min(cost.memory, again.memory)
        cost = cost._replace(block=block, cpu=min(cost.cpu, again.cpu), memory=memory)
    return cost


async def measure(shapes: list[Hostile], console: Console) -> list[Cost]:
    plane, port = await serve(Settings(redis="off"))
    try:
        return [await least_cost_of(shape, port) for shape in track(shapes, "Shapes", console=console)]
    finally:
        plane.close()


def show(costs: list[Cost], console: Console) -> None:
    table = Table(title="Cost of hostile requests", caption="block, CPU: ms of CPU time; bold: over 50 ms or 64 MiB")
    for name in ("shape", "on the wire", "reply", "longest block", "CPU", "memory"):
        table.add_column(name, justify="left" if name == "shape" else "right")
    for cost in sorted(costs, key=lambda cost: -cost.block):
        values: list[Any] = [f"{cost.wire / 1000:.0f} KB", cost.reply, f"{cost.block * 1000:.1f}"]
        values += [f"{cost.cpu * 1000:.1f}", f"{cost.memory / (1 << 20):.0f} MiB"]
        table.add_row(cost.name, *values, style=None if cost.is_bounded else "bold")
    console.print(table)


def main(only: Annotated[str, typer.Option(help="Shapes whose names contain this.")] = "") -> None:
    """Print what each shape costs; the exit status is 1 where one is over the bounds."""
    console = Console()
    shapes = [shape for shape in SHAPES if only in shape.name]
    gc.collect()
    gc.freeze()
    relax_collector()  # as in a worker
    costs = asyncio.run(measure(shapes, console))
    show(costs, console)
    over = sum(not cost.is_bounded for cost in costs)
    console.print(f"{len(costs)} shapes, {over} over the bounds")
    raise typer.Exit(bool(over))


if __name__ == "__main__":
    typer.run(main)
