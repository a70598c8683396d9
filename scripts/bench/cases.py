"""The cases under load: the requests, the check before the load, and the figures of one short round of one proxy."""

import http.client
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench import messages
from bench.constant_rate import SHARES, ConstantRate, capacity, run_at_rate
from bench.load import LoadSpec, run_load
from bench.messages import EXCHANGES, KEYED, upstream_of
from bench.processes import BenchError
from bench.programs import Running
from bench.samples import Case, Results, Sample, sample_of
from bench.wrk import run_wrk

# Health checks must have found the upstream before a proxy can answer.
FIRST_ANSWER_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCase(Case):
    """A case of the HTTP benchmark."""

    exchange: str
    connections: int | None = None  # None: as --connections says
    unique_heads: bool = False
    setup: str = "plain"  # the proxies of the case, see `SETUPS`

    @property
    def may_use_wrk(self) -> bool:
        return self.exchange == "small" and not self.serial


CASES = {
    case.name: case
    for case in (
        HttpCase(name="small", title="small JSON infer", exchange="small"),
        HttpCase(name="unique", title="small JSON infer, every head unique", exchange="small", unique_heads=True),
        HttpCase(name="keys", title="small JSON infer, without and with API keys", exchange="small", setup="keys"),
        HttpCase(
            name="mixed",
            title="500 users, 40 models, every head and body unique",
            exchange="mixed",
            setup="mixed",
        ),
        *(
            HttpCase(
                name=name,
                title=f"mixed, at {share:.0%} of the requests/s that Envoy can serve",
                exchange="mixed",
                setup="mixed",
                share=share,
            )
            for name, share in SHARES.items()
        ),
        HttpCase(
            name="tensor",
            title="600 KB tensor in, 600 KB tensor out",
            exchange="tensor",
            connections=8,
            body_bytes=len(EXCHANGES["tensor"].body) + len(messages.TENSOR_ANSWER),
        ),
        HttpCase(name="sse", title="server-sent events, 200 streams", exchange="sse", connections=200, unit="token"),
        HttpCase(
            name="latency", title="small JSON infer, one connection", exchange="small", connections=1, serial=True
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Loader:
    """The settings of the load: its duration, its connections, its program and its cores."""

    seconds: float
    connections: int
    use_wrk: bool
    cores: Sequence[int] | None
    upstream_pids: list[int]
    results: Results  # of the cases before

    def sample(self, case: HttpCase, running: Running, round_number: int) -> Sample:
        """Run one round and divide its figures by its units."""
        groups = running.groups() | {"upstream": self.upstream_pids}
        port = running.ports[upstream_of(case.exchange)]
        if case.share:
            rate, reply_bytes = case.share * capacity(self.results), len(messages.SMALL_ANSWER)
            at_rate = ConstantRate("http", port, rate, self.seconds, groups, reply_bytes)
            return sample_of(case, running.name, round_number, run_at_rate(at_rate, self.cores))
        spec = LoadSpec(
            exchange="keys" if running.name == KEYED else case.exchange,
            port=port,
            connections=case.connections or self.connections,
            seconds=self.seconds,
            groups=groups,
            unique_heads=case.unique_heads,
            serial=case.serial,
        )
        try:
            run = run_wrk if self.use_wrk and case.may_use_wrk else run_load
            result = run(spec, self.cores)
        except BenchError as error:
            raise BenchError(f"{case.name} through {running.name}: {error}") from error
        return sample_of(case, running.name, round_number, result)


def answer_of(running: Running, exchange_name: str) -> tuple[int, bytes]:
    """Status and body of one request through a proxy."""
    exchange = EXCHANGES[exchange_name]
    connection = http.client.HTTPConnection("127.0.0.1", running.ports[upstream_of(exchange_name)], timeout=10)
    try:
        headers = dict(line.split(": ", 1) for line in exchange.headers)
        connection.request("POST", exchange.path, exchange.body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        return 0, repr(error).encode()
    finally:
        connection.close()


def check_mixed_answers(running: Running) -> None:
    _check_first(running, "mixed")


def check_keyed_answers(running: Running) -> None:
    _check_first(running, "keys" if running.name == KEYED else "small")


def _check_first(running: Running, exchange: str) -> None:
    """Wait until a proxy answers, then compare the whole answer with the upstream's."""
    deadline = time.monotonic() + FIRST_ANSWER_SECONDS
    while (first := answer_of(running, exchange))[0] != 200 and time.monotonic() < deadline:
        time.sleep(0.1)
    _check(running.name, exchange, first, first[1] == messages.SMALL_ANSWER)


def check_answers(running: Running) -> None:
    """Wait until a proxy answers, then compare whole answers with the upstream's, byte for byte."""
    _check_first(running, "small")
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
