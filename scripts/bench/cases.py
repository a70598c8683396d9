"""The cases under load: what is sent, how it is checked beforehand, and what one short round of one proxy yields."""

import http.client
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench import messages
from bench.load import LoadResult, LoadSpec, run_load
from bench.messages import EXCHANGES
from bench.processes import BenchError
from bench.proxies import Running
from bench.wrk import run_wrk

# Health checks must have found the upstream before a proxy may be expected to answer.
FIRST_ANSWER_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Case:
    """One question put to all proxies."""

    name: str
    title: str
    exchange: str
    connections: int | None  # None: as --connections says
    unit: str = "request"
    unique_heads: bool = False
    serial: bool = False
    body_bytes: int = 0  # body bytes that one unit moves, both ways together; 0 where that is not the question

    @property
    def may_use_wrk(self) -> bool:
        return self.exchange == "small" and not self.serial


CASES = {
    case.name: case
    for case in (
        Case("small", "small JSON infer", "small", None),
        Case("unique", "small JSON infer, every head unique", "small", None, unique_heads=True),
        Case(
            "tensor",
            "600 KB tensor in, 600 KB tensor out",
            "tensor",
            8,
            body_bytes=len(EXCHANGES["tensor"].body) + len(messages.TENSOR_ANSWER),
        ),
        Case("sse", "server-sent events, 200 streams", "sse", 200, unit="token"),
        Case("latency", "small JSON infer, one connection", "small", 1, serial=True),
    )
}


@dataclass(frozen=True, slots=True)
class Sample:
    """What one round of one case gave for one proxy. CPU and busy figures are None for direct."""

    case: str
    proxy: str
    round: int
    units: int
    units_per_second: float
    megabytes_per_second: float
    p50_us: float
    p99_us: float
    cpu_us: float | None  # of the whole process tree, for one unit
    worker_cpu_us: float | None  # of the one process that carries requests, for one unit
    busy: float | None  # share of one core that the tree used; near 1: the proxy is what limits the rate
    upstream_busy: float
    loader_busy: float | None  # None where wrk made the load


@dataclass(frozen=True, slots=True)
class Loader:
    """How load is made: for how long, over how many connections, by which program, on which cores."""

    seconds: float
    connections: int
    use_wrk: bool
    cores: Sequence[int] | None
    upstream_pids: list[int]

    def sample(self, case: Case, running: Running, round_number: int) -> Sample:
        """Run one round and put its figures in relation to its units."""
        spec = LoadSpec(
            exchange=case.exchange,
            port=running.ports.of(case.exchange),
            connections=case.connections or self.connections,
            seconds=self.seconds,
            groups=running.groups() | {"upstream": self.upstream_pids},
            unique_heads=case.unique_heads,
            serial=case.serial,
        )
        try:
            run = run_wrk if self.use_wrk and case.may_use_wrk else run_load
            result = run(spec, self.cores)
        except BenchError as error:
            raise BenchError(f"{case.name} through {running.name}: {error}") from error
        return _sample(case, running.name, round_number, result)


def _sample(case: Case, proxy: str, round_number: int, result: LoadResult) -> Sample:
    if not result.units:
        raise BenchError(f"{case.name} through {proxy}: no answer in the whole window")

    def per_unit(group: str) -> float | None:
        cpu = result.group_cpu_seconds.get(group)
        return None if cpu is None else cpu / result.units * 1e6

    def share(cpu: float | None) -> float | None:
        return None if cpu is None else cpu / result.seconds

    return Sample(
        case=case.name,
        proxy=proxy,
        round=round_number,
        units=result.units,
        units_per_second=result.units / result.seconds,
        megabytes_per_second=result.units * case.body_bytes / result.seconds / 1e6,
        p50_us=result.p50_us,
        p99_us=result.p99_us,
        cpu_us=per_unit("tree"),
        worker_cpu_us=per_unit("worker"),
        busy=share(result.group_cpu_seconds.get("tree")),
        upstream_busy=share(result.group_cpu_seconds["upstream"]) or 0.0,
        loader_busy=share(result.loader_cpu_seconds),
    )


def answer_of(running: Running, exchange_name: str) -> tuple[int, bytes]:
    """Status and body of one request through a proxy."""
    exchange = EXCHANGES[exchange_name]
    connection = http.client.HTTPConnection("127.0.0.1", running.ports.of(exchange_name), timeout=10)
    try:
        headers = dict(line.split(": ", 1) for line in exchange.headers)
        connection.request("POST", exchange.path, exchange.body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        return 0, repr(error).encode()
    finally:
        connection.close()


def check_answers(running: Running) -> None:
    """Wait until a proxy answers, then compare whole answers with what the upstream sends, byte for byte."""
    deadline = time.monotonic() + FIRST_ANSWER_SECONDS
    while (first := answer_of(running, "small"))[0] != 200 and time.monotonic() < deadline:
        time.sleep(0.1)
    _check(running.name, "small", first, first[1] == messages.SMALL_ANSWER)
    tensor = answer_of(running, "tensor")
    _check(running.name, "tensor", tensor, tensor[1] == messages.TENSOR_ANSWER)
    stream = answer_of(running, "sse")
    tokens = [stream[1][at : at + messages.TOKEN_BYTES] for at in range(0, len(stream[1]), messages.TOKEN_BYTES)]
    begin = messages.token_event(0)[: messages.TOKEN_TIME.start]
    is_whole = len(tokens) == messages.TOKENS_PER_STREAM and all(token.startswith(begin) for token in tokens)
    _check(running.name, "sse", stream, is_whole)


def _check(proxy: str, exchange: str, answer: tuple[int, bytes], is_right: bool) -> None:
    status, body = answer
    if status != 200 or not is_right:
        raise BenchError(f"{exchange} through {proxy}: status {status}, {len(body)} bytes: {body[:200]!r}")
