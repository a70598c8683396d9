"""The cases of language models: the requests, the proxies that get them, and one short round of one proxy."""

import http.client
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bench.constant_rate import SHARES, ConstantRate, capacity, run_at_rate
from bench.openai_connections import Tokens
from bench.openai_load import OpenAILoad, run_load
from bench.openai_messages import EXCHANGES, MIXED, why_wrong
from bench.openai_proxies import CACHE_AWARE, ENGINE
from bench.processes import BenchError, group_cpu_seconds
from bench.programs import Running
from bench.samples import Case, Results, Sample, sample_of

# Health checks must have found the engine before a proxy can answer.
FIRST_ANSWER_SECONDS = 20.0

# An overloaded proxy has a queue to finish after its round is over.
QUIET_SHARE = 0.05
QUIET_SECONDS = 0.1
MAX_UNQUIET_SECONDS = 15.0

OURS = "ours"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAICase(Case):
    """A case of language models."""

    exchange: str  # a key of openai_messages.EXCHANGES
    connections: int | None = None  # None: as --connections says
    unique_heads: bool = False
    is_mixed: bool = False  # for routers that choose by the prompt, too
    proxies: Sequence[str] | None = None  # the proxies that support this; None: all
    beside: Mapping[str, str] = field(default_factory=dict)  # extra rows of ours: their names, and exchanges

    @property
    def is_stream(self) -> bool:
        return self.unit == "token"

    def rows(self, running: Sequence[Running]) -> list[Running]:
        """The proxies that take turns in this case."""
        rows = [each for each in running if self.proxies is None or each.name in self.proxies]
        rows = [each for each in rows if self.is_mixed or not each.name.endswith(CACHE_AWARE)]
        rows += [replace(each, name=name) for each in running if each.name == OURS for name in self.beside]
        return rows

    def exchange_of(self, row: str) -> str:
        return self.beside.get(row, self.exchange)


CASES = {
    case.name: case
    for case in (
        OpenAICase(
            name="mixed",
            title="conversations of 40 applications, 500 keys, 5,000 sessions; every head and body unique",
            exchange=MIXED,
            is_mixed=True,
        ),
        *(
            OpenAICase(
                name=name,
                title=f"mixed, at {share:.0%} of the requests/s that Envoy can serve",
                exchange=MIXED,
                share=share,
                is_mixed=True,
            )
            for name, share in SHARES.items()
        ),
        OpenAICase(name="chat", title="a chat, answered whole", exchange="chat"),
        OpenAICase(name="chat-unique", title="a chat, every head unique", exchange="chat", unique_heads=True),
        OpenAICase(
            name="chat-rename",
            title="a chat, the model renamed on its way",
            exchange="chat-rename",
            proxies=("litellm", OURS),
            beside={"ours, same name": "chat"},
        ),
        OpenAICase(name="chat-long", title="a chat with a prompt of 220 KB", exchange="chat-long", connections=8),
        OpenAICase(
            name="tokens", title="200 streams of 100 tokens/s", exchange="tokens", connections=200, unit="token"
        ),
        OpenAICase(
            name="translated",
            title="200 streams of 100 tokens/s, from Triton's generate_stream",
            exchange="translated",
            connections=200,
            unit="token",
            proxies=(OURS,),
            beside={"ours, untranslated": "tokens"},
        ),
        OpenAICase(name="latency", title="a chat, one connection", exchange="chat", connections=1, serial=True),
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

    def sample(self, case: Case, running: Running, round_number: int) -> Sample:
        """Check one answer, run one round, and divide its figures by its units.

        Raises: BenchError at a wrong answer.
        """
        assert isinstance(case, OpenAICase)
        exchange, port = case.exchange_of(running.name), running.ports[ENGINE]
        groups = running.groups() | {"upstream": self.upstream_pids}
        try:
            if case.share:
                rate, reply_bytes = case.share * capacity(self.results), len(right_answer(port, exchange))
                at_rate = ConstantRate("chat", port, rate, self.seconds, groups, reply_bytes)
                return sample_of(case, running.name, round_number, run_at_rate(at_rate, self.cores))
            spec = OpenAILoad(
                exchange=exchange,
                port=port,
                connections=case.connections or self.connections,
                seconds=self.seconds,
                groups=groups,
                unique_heads=case.unique_heads,
                serial=case.serial,
                right=None if case.is_stream else right_answer(port, exchange).decode("ascii"),
            )
            result = run_load(spec, self.cores, self.use_wrk)
        except BenchError as error:
            raise BenchError(f"{case.name} through {running.name}: {error}") from error
        await_quiet(running)
        return sample_of(case, running.name, round_number, result)


def answer_of(port: int, exchange_name: str) -> tuple[int, bytes]:
    """Status and body of one request; status 0 and the reason if there is no answer."""
    exchange = EXCHANGES[exchange_name]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        headers = dict(line.split(": ", 1) for line in exchange.headers)
        connection.request("POST", exchange.path, exchange.body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        return 0, repr(error).encode()
    finally:
        connection.close()


def right_answer(port: int, exchange: str) -> bytes:
    """A proxy's answer, after it was checked as a client reads it.

    Raises: BenchError if it is not the engine's.
    """
    status, body = answer_of(port, exchange)
    why = f"status {status}" if status != 200 else why_wrong(body)
    if why is not None:
        raise BenchError(f"{exchange}: {why}: {body[:200]!r}")
    return body


def check_stream(port: int, exchange: str) -> None:
    """Raises: BenchError if a stream lacks a token or its end."""
    status, body = answer_of(port, exchange)
    if status != 200:
        raise BenchError(f"{exchange}: status {status}: {body[:200]!r}")
    tokens = Tokens()
    tokens.feed(body)
    tokens.end()


def check_answers(running: Running, cases: Sequence[OpenAICase]) -> None:
    """Wait until a proxy answers, then check one answer of each kind that the cases use.

    Raises: BenchError at a wrong one.
    """
    port = running.ports[ENGINE]
    deadline = time.monotonic() + FIRST_ANSWER_SECONDS
    while answer_of(port, "chat")[0] != 200 and time.monotonic() < deadline:
        time.sleep(0.1)
    asked = {(case.exchange_of(row.name), case.is_stream) for case in cases for row in case.rows([running])}
    for exchange, is_stream in sorted(asked):
        try:
            check_stream(port, exchange) if is_stream else right_answer(port, exchange)
        except BenchError as error:
            raise BenchError(f"{running.name} answers wrongly: {error}") from error


def await_quiet(running: Running) -> None:
    """Wait until a proxy is idle, so that the next one has the core for itself."""
    deadline = time.monotonic() + MAX_UNQUIET_SECONDS
    groups = {name: pids for name, pids in running.groups().items() if name == "tree"}
    while groups and time.monotonic() < deadline:
        before = group_cpu_seconds(groups)["tree"]
        time.sleep(QUIET_SECONDS)
        if group_cpu_seconds(groups)["tree"] - before < QUIET_SHARE * QUIET_SECONDS:
            return
