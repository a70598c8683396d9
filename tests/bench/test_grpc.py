"""The gRPC benchmark's own parts: what it sends, what it counts, and which replies it rejects."""

import dataclasses
import itertools
import random
import socket
from collections.abc import Callable, Iterator

import h2.config
import h2.connection
import h2.events
import h2.settings
import hpack
import pytest
from bench import grpc_messages as messages
from bench import mixed, mixed_calls
from bench.grpc_checks import await_first_reply, reply_at
from bench.grpc_client import run_grpcio
from bench.grpc_frames import ReplyFields, SteadyFields, indexed, literal
from bench.grpc_goals import verdicts
from bench.grpc_h2load import HOW_TO_GET, h2load_path, right_replies, run_h2load
from bench.grpc_load import run_frames
from bench.grpc_messages import EXCHANGES, GrpcLoad
from bench.grpc_run import start_canned
from bench.processes import BenchError, Children
from bench.programs import Running, Site
from bench.rounds import interleave, order
from bench.samples import Case, Failure, Results, Sample
from bench.window import LoadResult
from rich.progress import Progress

from gateway.wire.grpc import PREFIX_BYTES, framed

UNARY_REPLY_BYTES = PREFIX_BYTES + len(EXCHANGES["simple"].reply or b"")

NEEDS_H2LOAD = pytest.mark.skipif(h2load_path() is None, reason=f"h2load is not installed ({HOW_TO_GET})")


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The gRPC port of the canned upstream."""
    folder = tmp_path_factory.mktemp("bench")
    with Children(folder) as children:
        upstream = start_canned(Site(children, folder, None))
        await_first_reply(upstream.grpc_port)
        yield upstream.grpc_port


def load(port: int, exchange: str = "simple", reply_bytes: int = UNARY_REPLY_BYTES, **others: object) -> GrpcLoad:
    base = GrpcLoad(exchange, reply_bytes, port, connections=2, calls=2, seconds=1, groups={})
    return dataclasses.replace(base, **others)


@pytest.mark.parametrize("inserts_traces", [False, True])
def test_header_blocks_mean_what_was_asked(inserts_traces: bool) -> None:
    """A decoder reads the right fields from every block, whatever was inserted into its table in between."""
    steady = [(b"te", b"trailers"), (b"user-agent", b"x" * 100), (b"grpc-timeout", b"30S")]
    decoder, blocks = hpack.Decoder(), SteadyFields(steady)
    for call in range(200):
        trace = (b"traceparent", b"%055d" % call)
        block = blocks.block() + literal(trace, is_inserted=inserts_traces)
        blocks.num_inserted += inserts_traces
        assert decoder.decode(block, raw=True) == [*steady, trace]


def test_reply_fields_follow_the_table() -> None:
    """An indexed field has the new value once a block has changed the table, and keeps it until the next change."""
    fields = ReplyFields()
    for status in (b"0", b"3"):
        assert fields.read(literal((b"grpc-status", status), is_inserted=True)) == {b"grpc-status": status}
        for _ in range(2):
            assert fields.read(indexed(0)) == {b"grpc-status": status}


@pytest.mark.parametrize("name", ["simple", "tensor"])
def test_canned_replies(port: int, name: str) -> None:
    """grpcio reads from the canned upstream the reply that the messages say."""
    exchange = EXCHANGES[name]
    assert reply_at(port, exchange) == framed(exchange.reply or b"")


def test_canned_stream(port: int) -> None:
    """A stream's request gets all of its messages and the status OK."""
    assert len(reply_at(port, EXCHANGES["llm"])) == messages.STREAMED_BYTES * messages.MESSAGES_PER_STREAM


def test_canned_refuses_other_messages(port: int) -> None:
    """A message whose length a proxy has changed is refused."""
    with pytest.raises(BenchError, match="INVALID_ARGUMENT"):
        reply_at(port, dataclasses.replace(EXCHANGES["simple"], request=b"\x0a\x01x"))


@pytest.mark.parametrize("window_bytes", [1, 1000, 65_535, 1 << 20])
def test_canned_keeps_windows(port: int, window_bytes: int) -> None:
    """The upstream never exceeds a flow-control window, even if the peer updates it late, and sends the complete
    reply."""
    exchange = EXCHANGES["tensor" if window_bytes > 1000 else "simple"]
    config = h2.config.H2Configuration(client_side=True, header_encoding=None)
    client = h2.connection.H2Connection(config)
    client.local_settings = h2.settings.Settings(
        client=True, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window_bytes}
    )
    client.initiate_connection()
    body, trailers = b"", None
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        client.send_headers(1, _head(exchange.path))
        left = framed(exchange.request)
        while trailers is None:
            while left and (room := min(client.local_flow_control_window(1), client.max_outbound_frame_size)) > 0:
                piece, left = left[:room], left[room:]
                client.send_data(1, piece, end_stream=not left)
            connection.sendall(client.data_to_send())
            for event in client.receive_data(connection.recv(65_536)):
                if isinstance(event, h2.events.DataReceived):
                    body += event.data
                    client.acknowledge_received_data(event.flow_controlled_length, 1)
                elif isinstance(event, h2.events.TrailersReceived):
                    trailers = event.headers
    assert body == framed(exchange.reply or b"")
    assert trailers == [messages.TRAILER_FIELD]


def _head(path: str) -> list[tuple[str, str]]:
    pseudo = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "127.0.0.1")]
    return [*pseudo, *messages.HEADERS]


@pytest.mark.parametrize("inserts_traces", [False, True])
def test_frame_load_counts_calls(port: int, inserts_traces: bool) -> None:
    """Calls with different fields are all answered."""
    assert run_frames(load(port, inserts_traces=inserts_traces), None).units > 0


@pytest.mark.parametrize("number", range(3))
def test_mixed_blocks_are_those_of_three_libraries(number: int) -> None:
    """Each connection's blocks decode in their order to a call with metadata of its own."""
    write, decoder = mixed_calls.block_writer(number, 8001, random.Random(1)), hpack.Decoder()
    ids = set()
    for _ in range(50):
        fields = dict(decoder.decode(write(), raw=True))
        assert fields[b":path"] == messages.INFER_PATH.encode() and fields[b"te"] == b"trailers"
        assert len(fields[b"authorization"]) == len("Bearer ") + mixed.TOKEN_BYTES
        assert int(fields[b"grpc-timeout"][:-1]) > 0
        ids.add(fields[b"x-request-id"])
    assert len(ids) == 50


@pytest.mark.parametrize("run", [run_frames, run_grpcio])
def test_mixed_calls_are_answered(port: int, run: Callable[[GrpcLoad, None], LoadResult]) -> None:
    """All messages have the length by which the upstream recognises them."""
    reply = len(framed(EXCHANGES[messages.MIXED].reply or b""))
    assert run(load(port, messages.MIXED, reply), None).units > 0


def test_frame_load_counts_messages(port: int) -> None:
    """Four streams of a hundred messages a second bring at most four hundred in a second, and hardly more."""
    size = messages.STREAMED_BYTES * messages.MESSAGES_PER_STREAM
    assert 0 < run_frames(load(port, "llm", size), None).units < 500


@NEEDS_H2LOAD
def test_h2load_counts_calls(port: int) -> None:
    """A load generator without gRPC counts calls, too."""
    assert run_h2load(load(port), None).units > 0


@pytest.mark.parametrize("exchange, reply_bytes", [("identity_fp32", UNARY_REPLY_BYTES), ("simple", 100)])
@pytest.mark.parametrize("run", [run_frames, run_grpcio, pytest.param(run_h2load, marks=NEEDS_H2LOAD)])
def test_wrong_replies_are_no_figures(
    port: int, run: Callable[[GrpcLoad, None], object], exchange: str, reply_bytes: int
) -> None:
    """An error in place of a message, or a message of a wrong length, ends the run."""
    with pytest.raises(BenchError, match=r"status 3|INVALID_ARGUMENT|bytes"):
        run(load(port, exchange, reply_bytes), None)


@pytest.mark.parametrize(
    "done, data, is_right",
    [
        (100, 100 * UNARY_REPLY_BYTES, True),
        (100, 103 * UNARY_REPLY_BYTES, True),  # some were in flight at the end
        (100, 0, False),  # errors are HTTP 200 without a message
        (100, 99 * UNARY_REPLY_BYTES, False),
        (100, 200 * UNARY_REPLY_BYTES, False),
    ],
)
def test_h2load_replies_are_judged_by_their_bytes(done: int, data: int, is_right: bool) -> None:
    """The number of message bytes must be that of right replies; otherwise the run fails."""
    output = (
        f"requests: {done} total, {done} started, {done} done, {done} succeeded, 0 failed, 0 errored, 0 timeout\n"
        f"traffic: 1KB (1024) total, 1KB (1024) headers (space savings 0.00%), 1KB ({data}) data\n"
    )
    if is_right:
        assert right_replies(output, load(0)) == done
    else:
        with pytest.raises(BenchError):
            right_replies(output, load(0))


def test_a_failure_ends_one_proxys_case_alone() -> None:
    """A proxy that fails is skipped for the rest of its case; other proxies and other cases continue."""

    def measure(case: Case, running: Running, round_number: int) -> Sample | Failure:
        if (case.name, running.name) == ("first", "bad"):
            return Failure(case.name, running.name, "it answers nothing")
        return sample(case.name, running.name, 1.0)

    cases = [Case(name="first", title="first"), Case(name="second", title="second")]
    running = [Running(name, {}, None, None) for name in ("good", "bad")]
    results = Results()
    with Progress(disable=True) as progress:
        interleave(cases, running, 3, measure, progress, results)
    assert results.failures == [Failure("first", "bad", "it answers nothing")]
    counted = [(found.case, found.proxy) for found in results.samples]
    assert {pair: counted.count(pair) for pair in counted} == {
        ("first", "good"): 3,
        ("second", "good"): 3,
        ("second", "bad"): 3,
    }


@pytest.mark.parametrize("number", range(1, 8))
def test_turns_are_fair(number: int) -> None:
    """Over some rounds all proxies begin equally often, and follow each other equally often."""
    rounds = [order(number, each) for each in range(number * (1 + number % 2))]
    assert all(sorted(turns) == list(range(number)) for turns in rounds)
    firsts = [turns[0] for turns in rounds]
    pairs = [pair for turns in rounds for pair in itertools.pairwise(turns)]
    assert {firsts.count(each) for each in range(number)} == {len(rounds) // number}
    assert len(set(pairs)) == number * (number - 1)
    assert len({pairs.count(pair) for pair in pairs}) <= 1


@pytest.mark.parametrize("ours, passed", [(26.9, [True, True]), (27.1, [False, True]), (120.1, [False, False])])
def test_goals_compare_with_peers(ours: float, passed: list[bool]) -> None:
    """0.9 of Envoy's 30 µs and 0.3 of grpcio's 400 µs are the limits of a unary call."""
    cpu = {"envoy": 30.0, "grpcio": 400.0, "ours": ours}
    results = Results([sample("unary", proxy, cost) for proxy, cost in cpu.items()])
    assert [verdict.passed for verdict in verdicts(results)] == [None, *passed, None, None, None]


def sample(case: str, proxy: str, cpu_us: float) -> Sample:
    return Sample(case, proxy, 0, 1, 1.0, 1.0, 1.0, 1.0, cpu_us, cpu_us, 1.0, 1.0, None)
