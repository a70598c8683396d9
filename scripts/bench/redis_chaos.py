"""The effect of a fault of Redis on requests: latency before, during and after it; each request has a new session.

    python scripts/bench/redis_chaos.py                     # about 4 minutes
    python scripts/bench/redis_chaos.py --rounds 7 --rate 1000

Each request needs Redis, which is the worst case: a session that its worker has cached needs none. The load is open:
requests are sent when they are due, and their latency counts from then, so that no request hides the wait of the next.
"failed" are answers other than 200, and missing ones.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

_SCRIPTS = Path(__file__).resolve().parent.parent
sys.path[0] = str(_SCRIPTS)
sys.path.append(str(_SCRIPTS.parent))

import psutil  # noqa: E402
import typer  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from bench import command  # noqa: E402
from bench.messages import EXCHANGES  # noqa: E402
from bench.processes import Children, free_port, raise_file_limit  # noqa: E402
from bench.programs import Running, Site, start_on_port, start_pointsman  # noqa: E402
from tests.support.redis_server import RedisServer, watched  # noqa: E402
from tests.support.slow_proxy import SlowProxy  # noqa: E402

DEADLINE = "5ms"


@dataclass(frozen=True, slots=True)
class Latencies:
    """The latencies of one phase, in milliseconds."""

    requests: int
    failed: int
    p50: float
    p99: float
    longest: float


@dataclass(frozen=True, slots=True)
class Phases:
    """The phases of one round of one fault."""

    before: Latencies
    during: Latencies
    after: Latencies


PHASES = ("before", "during", "after")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of Redis: `begin` to `end`; `url` is the address for the gateway. A fault without an end has one
    round."""

    name: str
    url: str
    begin: Callable[[], object]
    end: Callable[[], object]
    is_undone: bool = True


class Client(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._head = b""
        self.answered: asyncio.Future[bool] | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._head += data
        head, separator, body = self._head.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0].strip()
        if separator and len(body) >= int(length or 0):
            self._head = b""
            if self.answered is not None and not self.answered.done():
                self.answered.set_result(head.startswith(b"HTTP/1.1 200"))

    def connection_lost(self, error: Exception | None) -> None:
        if self.answered is not None and not self.answered.done():
            self.answered.set_result(False)


@dataclass(frozen=True, slots=True)
class Load:
    """`rate` requests a second, each of a session of its own."""

    port: int
    rate: float
    seconds: float


async def send(load: Load) -> Latencies:
    """Send the requests, and measure."""
    loop = asyncio.get_running_loop()
    idle: list[Client] = []
    latencies: list[float] = []
    failed = 0
    prefix = f"{time.time_ns():x}"

    async def one(number: int, due: float) -> None:
        nonlocal failed
        client = idle.pop() if idle else (await loop.create_connection(Client, "127.0.0.1", load.port))[1]
        assert client.transport is not None
        client.answered = loop.create_future()
        client.transport.write(b"".join(EXCHANGES["small"].parts(f"x-session-id: {prefix}-{number}")))
        if await client.answered:
            latencies.append((loop.time() - due) * 1000)
            idle.append(client)
        else:
            failed += 1

    began_at = loop.time()
    tasks = []
    for number in range(int(load.rate * load.seconds)):
        due = began_at + number / load.rate
        await asyncio.sleep(max(0.0, due - loop.time()))
        tasks.append(asyncio.ensure_future(one(number, due)))
    await asyncio.wait(tasks, timeout=30)
    failed += sum(not task.done() or task.exception() is not None for task in tasks)
    latencies.sort()
    longest = latencies[-1]
    p50, p99 = (latencies[int(len(latencies) * share)] for share in (0.5, 0.99))
    return Latencies(len(tasks), failed, p50, p99, longest)


def run_load(load: Load) -> Latencies:
    """Run the load in a process of its own."""
    return asyncio.run(send(load))


@contextlib.contextmanager
def faults(folder: Path) -> Iterator[list[Fault]]:
    """The faults, each with a Redis of its own."""
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(RedisServer(folder / "one", "--appendonly", "yes"))
        slow = stack.enter_context(SlowProxy(one.port))
        slow_url = f"redis://127.0.0.1:{slow.port}/0"

        def delay(seconds: float) -> Callable[[], None]:
            return lambda: setattr(slow, "delay", seconds)

        def limit(size: int) -> Callable[[], object]:
            return lambda: one.client.config_set("maxmemory", size)

        def deface() -> None:
            one.client.flushall()
            one.client.set("pointsman:1:news", "?")
            one.client.set("pointsman:1:replicas", "?")

        master, _, sentinels = stack.enter_context(watched(folder / "watched"))
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)
        yield [
            Fault("killed (-9)", one.url, one.kill, one.start),
            Fault("paused (SIGSTOP)", one.url, one.pause, one.resume),
            Fault("slow: +3 ms", slow_url, delay(0.003), delay(0.0)),
            Fault("slow: +100 ms", slow_url, delay(0.1), delay(0.0)),
            Fault("full (maxmemory)", one.url, limit(1), limit(0)),
            Fault("wrong type in keys", one.url, deface, one.client.flushall),
            Fault("failover by Sentinel", f"redis+sentinel://{hosts}/pointsman", master.kill, lambda: None, False),
        ]


def gateways(site: Site, upstream: int, urls: Sequence[str]) -> dict[str, Running]:
    """A gateway for each Redis, and one with an embedded Redis."""
    places = f"'http://127.0.0.1:{upstream}', 'http://localhost:{upstream}'"
    rules = f"version: 1\nengines: {{it: {{endpoints: [{places}], balance: session}}}}\n"
    rules += "routes: [{name: all, engine: it}]\n"
    found = {}
    for number, url in enumerate(("embedded", *dict.fromkeys(urls))):
        state = ("--data-dir", str(site.folder / f"state-{number}"))
        options = ("--redis", url, "--redis-deadline", DEADLINE, *state)
        found[url] = start_pointsman(site, rules, dict, name=f"gateway-{number}", options=options)
    return found


def own_redis(gateway: Running) -> Fault:
    """The embedded Redis, which its gateway restarts."""

    def kill() -> None:
        assert gateway.process is not None
        children = psutil.Process(gateway.process.pid).children()
        next(child for child in children if child.name() == "redis-server").kill()

    return Fault("embedded, killed (-9)", "embedded", kill, lambda: None)


def main(
    rate: Annotated[float, typer.Option(min=1, max=20_000, help="Requests a second.")] = 300.0,
    rounds: Annotated[int, typer.Option(min=1, max=50, help="Rounds of every fault; medians are shown.")] = 3,
    seconds: Annotated[float, typer.Option(min=1, max=60, help="Length of each phase.")] = 2.0,
    only: Annotated[str, typer.Option(metavar="TEXT", help="Only the faults whose name has this in it.")] = "",
    results: Annotated[Path, typer.Option(metavar="FOLDER", help="Where redis_chaos.json goes.")] = command.RESULTS,
) -> None:
    """Measure latencies before, during and after each fault. Exits with 1 if a request failed."""
    raise_file_limit()
    figures: dict[str, list[Phases]] = {}
    with (
        TemporaryDirectory(prefix="pm-") as name,
        faults(folder := Path(name)) as known,
        Children(folder) as children,
        ProcessPoolExecutor(1, get_context("spawn")) as pool,
    ):
        site = Site(children, folder, None)
        upstream = free_port()
        start_on_port(site, "upstream", (sys.executable, "-m", "bench.upstream", "--port", str(upstream)), upstream, {})
        running = gateways(site, upstream, [fault.url for fault in known])
        for fault in [fault for fault in (own_redis(running["embedded"]), *known) if only in fault.name]:
            port = running[fault.url].ports["http"]
            pool.submit(run_load, Load(port, rate, 1.0)).result()  # connections, caches
            times = rounds if fault.is_undone else 1
            figures[fault.name] = [one_round(fault, pool, Load(port, rate, seconds)) for _ in range(times)]
    results.mkdir(parents=True, exist_ok=True)
    told = {name: [asdict(phases) for phases in found] for name, found in figures.items()}
    (results / "redis_chaos.json").write_text(json.dumps(told, indent=1))
    raise typer.Exit(
        show(figures, f"milliseconds, medians of {rounds} rounds; {rate:g} requests/s, deadline {DEADLINE}")
    )


def show(figures: Mapping[str, Sequence[Phases]], title: str) -> bool:
    """Print the table; returns whether a request failed."""
    columns = ("Redis is", "p50 before", "during", "after", "p99 before", "during", "after", "longest", "failed")
    table, has_failed = Table(*columns, title=title), False
    for name, found in figures.items():
        cells = [
            f"{median(getattr(getattr(phases, when), what) for phases in found):.1f}"
            for what in ("p50", "p99")
            for when in PHASES
        ]
        longest = median(phases.during.longest for phases in found)
        all_phases = [getattr(phases, when) for phases in found for when in PHASES]
        failed, requests = (sum(getattr(phase, what) for phase in all_phases) for what in ("failed", "requests"))
        table.add_row(name, *cells, f"{longest:.1f}", f"{failed} of {requests}")
        has_failed |= failed > 0
    Console(width=None if sys.stdout.isatty() else 130).print(table)
    return has_failed


def one_round(fault: Fault, pool: ProcessPoolExecutor, load: Load) -> Phases:
    """One round: the fault begins in the first half of `during`, and is over before `after`."""
    before = pool.submit(run_load, load).result()
    under_way = pool.submit(run_load, load)
    time.sleep(load.seconds / 4)
    fault.begin()
    during = under_way.result()
    fault.end()
    time.sleep(2.0)
    return Phases(before, during, pool.submit(run_load, load).result())


if __name__ == "__main__":
    typer.run(main)
