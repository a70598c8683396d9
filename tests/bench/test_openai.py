"""The language models' benchmark: its engine's replies, what its load counts, and which replies it rejects."""

import dataclasses
import http.client
from collections.abc import Iterator

import pytest
from bench import mixed_chats
from bench import openai_messages as messages
from bench.constant_rate import ConstantRate, capacity, run_at_rate
from bench.messages import TOKENS_PER_STREAM
from bench.openai_cases import CASES, answer_of, check_answers, check_stream, right_answer
from bench.openai_connections import AnswerReader, Tokens
from bench.openai_goals import verdicts
from bench.openai_load import OpenAILoad, run_load
from bench.openai_proxies import CACHE_AWARE, PROXIES
from bench.openai_run import start_engine
from bench.processes import BenchError, Children
from bench.programs import Running, Site
from bench.samples import Results, Sample
from bench.wrk import wrk_path

RIGHT = messages.chat_answer().decode("ascii")

BY_WRK = pytest.param(True, marks=pytest.mark.skipif(wrk_path() is None, reason="wrk is not installed"), id="wrk")
BY_US = pytest.param(False, id="ours")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("bench")
    with Children(folder) as children:
        yield Site(children, folder, None)


@pytest.fixture(scope="module")
def engine(site: Site) -> int:
    """The port of the canned engine."""
    return start_engine(site)[0]


def load(port: int, exchange: str = "chat", right: str | None = RIGHT, **others: object) -> OpenAILoad:
    base = OpenAILoad(exchange, port, connections=2, seconds=1, groups={}, right=right)
    return dataclasses.replace(base, **others)


@pytest.mark.parametrize("exchange", ["chat", "chat-long"])
def test_the_engine_answers_chats(engine: int, exchange: str) -> None:
    """A chat that names its model gets the expected text and usage."""
    assert right_answer(engine, exchange) == messages.chat_answer()


@pytest.mark.parametrize("exchange", ["tokens"])
def test_the_engine_streams(engine: int, exchange: str) -> None:
    """A streamed chat gets every token, a finish reason and an end."""
    check_stream(engine, exchange)


def test_the_engine_wants_the_model_renamed(engine: int) -> None:
    """The engine does not know the clients' model name: a proxy that does not rename it gets a 404."""
    assert answer_of(engine, "chat-rename")[0] == 404


def test_the_engine_speaks_generate(engine: int) -> None:
    """Triton's generate_stream brings the same number of tokens, under the name from its metadata."""
    connection = http.client.HTTPConnection("127.0.0.1", engine, timeout=120)
    connection.request("GET", f"/v2/models/{messages.ON_TRITON}")
    assert b'"text_output"' in connection.getresponse().read()
    connection.request("POST", messages.GENERATE_PATH, b"{}")
    assert connection.getresponse().read().count(b'"text_output":"') == TOKENS_PER_STREAM
    connection.close()


LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world"
CHUNKS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n"


@pytest.mark.parametrize("answer", [LENGTH, CHUNKS])
def test_answers_are_read_however_they_are_cut(answer: bytes) -> None:
    """Two replies in a row are parsed, cut at any byte."""
    reader = AnswerReader()
    for cut in range(1, len(answer)):
        first, ended = reader.feed(answer[:cut])
        rest, whole = reader.feed(answer[cut:])
        assert (first + rest, ended, whole) == (b"hello world", False, True)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\nno",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        LENGTH + b"!",
        CHUNKS + b"!",
    ],
)
def test_wrong_heads_and_lengths_are_no_answers(answer: bytes) -> None:
    """A reply is rejected for another status, no body, or bytes after the body."""
    with pytest.raises(BenchError):
        AnswerReader().feed(answer)


def stream(serials: range, end: bytes = messages.STREAM_END) -> bytes:
    return messages.STREAM_BEGIN + b"".join(map(messages.chat_token, serials)) + end


WHOLE = range(1, TOKENS_PER_STREAM + 1)


@pytest.mark.parametrize("cut", [1, 100, 263, 1000, 100_000])
def test_tokens_are_counted_however_they_are_cut(cut: int) -> None:
    """Events may be cut anywhere, or come many at a time."""
    tokens, data = Tokens(), stream(WHOLE)
    sent_at = [each for at in range(0, len(data), cut) for each in tokens.feed(data[at : at + cut])]
    tokens.end()
    assert len(sent_at) == TOKENS_PER_STREAM
    assert sent_at == sorted(sent_at)


@pytest.mark.parametrize(
    "data",
    [
        stream(range(1, TOKENS_PER_STREAM)),
        stream(range(2, TOKENS_PER_STREAM + 1)),
        stream(WHOLE, messages.DONE),
        stream(WHOLE, messages.STREAM_END.removesuffix(messages.DONE)),
        stream(WHOLE)[:-1],
    ],
    ids=["last lost", "first lost", "no reason", "no end", "cut off"],
)
def test_streams_that_lack_something_are_wrong(data: bytes) -> None:
    """A stream is rejected without a token, its finish reason, or its end."""
    tokens = Tokens()
    with pytest.raises(BenchError):
        tokens.feed(data)
        tokens.end()


@pytest.mark.parametrize("use_wrk", [BY_WRK, BY_US])
@pytest.mark.parametrize("unique_heads", [False, True])
def test_load_counts_chats(engine: int, use_wrk: bool, unique_heads: bool) -> None:
    """Complete replies are counted."""
    assert run_load(load(engine, unique_heads=unique_heads), None, use_wrk).units > 0


def test_load_counts_tokens(engine: int) -> None:
    """Two streams of a hundred tokens a second bring at most two hundred in a second, and hardly more."""
    assert 0 < run_load(load(engine, "tokens", right=None), None, False).units < 250


def test_mixed_chats_differ_and_are_answered(engine: int) -> None:
    """No two heads are the same, and the engine answers conversations of any length."""
    requests = mixed_chats.requests(200, seed=1)
    assert len({request.partition(b"\r\n\r\n")[0] for request in requests}) == len(requests)
    assert run_load(load(engine, messages.MIXED), None, True).units > 0


def test_a_constant_rate_is_kept(engine: int) -> None:
    """No more requests are answered than are due, and a reply of another length is no figure."""
    spec = ConstantRate("chat", engine, 50.0, 2.0, {}, len(RIGHT))
    result = run_at_rate(spec, None)
    assert 0 < result.units < 250
    assert result.p999_us is not None and result.p50_us <= result.p99_us <= result.p999_us
    with pytest.raises(BenchError, match="are right"):
        run_at_rate(dataclasses.replace(spec, reply_bytes=1), None)


def test_rates_are_shares_of_envoys() -> None:
    """Without Envoy's figure of the same run there is no rate."""
    assert capacity(Results([sample("mixed", "envoy", 10.0)])) == 1.0
    with pytest.raises(BenchError, match="add the case mixed"):
        capacity(Results([sample("mixed", "ours", 10.0)]))


@pytest.mark.parametrize("use_wrk", [BY_WRK, BY_US])
@pytest.mark.parametrize("serial", [False, True])
def test_other_answers_are_no_figures(engine: int, use_wrk: bool, serial: bool) -> None:
    """A reply of the right length with another text ends the run."""
    with pytest.raises(BenchError, match="right one"):
        run_load(load(engine, right=RIGHT.replace("Baixa", "Paris"), serial=serial), None, use_wrk)


@pytest.mark.parametrize("use_wrk", [BY_WRK, BY_US])
def test_refusals_are_no_figures(engine: int, use_wrk: bool) -> None:
    """A 404 ends the run, too."""
    with pytest.raises(BenchError, match=r"404|other than 200|broken connections"):
        run_load(load(engine, "chat-rename"), None, use_wrk)


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"{}",
        messages.chat_answer().replace(b"Chiado", b"Paris"),
        messages.chat_answer().replace(b'"stop"', b'"length"'),
        messages.chat_answer().replace(b'"completion_tokens":27', b'"completion_tokens":0'),
    ],
)
def test_answers_are_read_as_clients_read_them(wrong: bytes) -> None:
    """Text, reason and usage must be the engine's; the order of the fields need not."""
    assert messages.why_wrong(wrong) is not None
    assert messages.why_wrong(messages.chat_answer()) is None


def test_ours_answers_every_case(site: Site, engine: int) -> None:
    """The rules route the requests of every case to the engine: by name, renamed, and translated."""
    running = PROXIES["ours"].start(site, engine)
    assert running.process is not None
    try:
        check_answers(running, list(CASES.values()))
    finally:
        site.children.stop(running.process)


def test_only_who_can_takes_part() -> None:
    """Of the peers only LiteLLM renames models, and none translates; Pointsman without either is measured as well."""
    running = [Running(name, {}, None, None) for name in PROXIES]
    rows = {name: [row.name for row in case.rows(running)] for name, case in CASES.items()}
    assert rows["mixed"] == list(PROXIES)
    assert rows["chat"] == [name for name in PROXIES if not name.endswith(CACHE_AWARE)]
    assert rows["chat-rename"] == ["litellm", "ours", "ours, same name"]
    assert rows["translated"] == ["ours", "ours, untranslated"]
    assert CASES["translated"].rows(running[:1]) == []


@pytest.mark.parametrize(
    "figures, passed",
    [
        ({"ours": 45.0, "vllm-router": 76.0, "sglang-router": 130.0}, [True, None, None, None, True, None, None]),
        ({"ours": 46.0, "vllm-router": 76.0, "sglang-router": 130.0}, [False, None, None, None, False, None, None]),
        ({"ours": 45.0, "vllm-router": 76.0}, [True, None, None, None, None, None, None]),
    ],
)
def test_goals_compare_with_the_routers(figures: dict[str, float], passed: list[bool | None]) -> None:
    """0.6 of vllm-router's 76 µs and 0.35 of sglang-router's 130 µs are the limits of a chat."""
    results = Results([sample("chat", proxy, cpu_us) for proxy, cpu_us in figures.items()])
    assert [verdict.passed for verdict in verdicts(results)] == passed


@pytest.mark.parametrize("translated, passed", [(19.9, True), (20.1, False)])
def test_translated_tokens_compare_with_our_own(translated: float, passed: bool) -> None:
    """A translated token may cost at most twice as much as an untranslated one, in the same rounds."""
    own = [sample("translated", "ours", translated), sample("translated", "ours, untranslated", 10.0)]
    assert [verdict.passed for verdict in verdicts(Results(own))] == [None] * 6 + [passed]


def sample(case: str, proxy: str, cpu_us: float) -> Sample:
    return Sample(case, proxy, 0, 1, 1.0, 1.0, 1.0, 1.0, cpu_us, cpu_us, 1.0, 1.0, None)
