"""The cases of the gRPC benchmark: the call, the load generator, and the figures of one short round of one proxy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.grpc_checks import reply_at
from bench.grpc_client import run_grpcio
from bench.grpc_configs import Upstream
from bench.grpc_h2load import run_h2load
from bench.grpc_load import run_frames
from bench.grpc_messages import EXCHANGES, MIXED, GrpcLoad
from bench.processes import BenchError
from bench.programs import Running
from bench.samples import Case, Failure, Sample, sample_of
from bench.window import LoadResult


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcCase(Case):
    """A case of the gRPC benchmark: `connections` clients, each with `calls` calls at a time."""

    exchange: str
    run: Callable[[GrpcLoad, Sequence[int] | None], LoadResult]
    connections: int = 8
    calls: int = 4
    upstream: str = "canned"
    inserts_traces: bool = False
    unit: str = "call"
    # Turns of each proxy in a round. A light load needs more: its CPU for a unit depends on how the machine wakes up.
    turns: int = 1
    has_many_routes: bool = False  # for proxies of its own, see `MIXED_PROXIES`


CASES = {
    case.name: case
    for case in (
        GrpcCase(
            name="mixed",
            title="500 users, 40 models, three client libraries, every call unique",
            exchange=MIXED,
            run=run_frames,
            has_many_routes=True,
        ),
        GrpcCase(
            name="mixed-grpcio",
            title="500 users, 40 models, every call unique, from grpcio",
            exchange=MIXED,
            run=run_grpcio,
            has_many_routes=True,
        ),
        GrpcCase(name="unary", title="small ModelInfer", exchange="simple", run=run_h2load),
        GrpcCase(
            name="unary-triton",
            title="small ModelInfer, real Triton",
            exchange="identity_fp32",
            run=run_h2load,
            upstream="triton",
        ),
        GrpcCase(name="unique", title="small ModelInfer, every call unique", exchange="simple", run=run_frames),
        GrpcCase(
            name="churn",
            title="small ModelInfer, every call changes the header tables",
            exchange="simple",
            run=run_frames,
            inserts_traces=True,
        ),
        GrpcCase(
            name="tensor",
            title="600 KB tensor in, 600 KB tensor out",
            exchange="tensor",
            run=run_h2load,
            calls=1,
            body_bytes=EXCHANGES["tensor"].body_bytes,
        ),
        GrpcCase(
            name="stream",
            title="ModelStreamInfer, 100 streams of 100 messages/s",
            exchange="llm",
            run=run_frames,
            connections=100,
            calls=1,
            unit="message",
            turns=10,
        ),
        GrpcCase(
            name="latency",
            title="small ModelInfer, one call at a time",
            exchange="simple",
            run=run_h2load,
            connections=1,
            calls=1,
            serial=True,
        ),
        GrpcCase(name="grpcio", title="small ModelInfer from grpcio", exchange="simple", run=run_grpcio),
    )
}


class Loader:
    """The settings of the load: its duration, its cores and its upstreams."""

    def __init__(self, seconds: float, cores: Sequence[int] | None, upstreams: Sequence[Upstream]) -> None:
        self._seconds = seconds
        self._cores = cores
        self._upstreams = {upstream.name: upstream for upstream in upstreams}
        self._right_replies: dict[str, bytes] = {}  # by exchange

    def sample(self, case: Case, running: Running, round_number: int) -> Sample | Failure:
        """Check the proxy's reply, then run one round; an error is a failure of this proxy in this case."""
        assert isinstance(case, GrpcCase)
        port, upstream = running.ports[case.upstream], self._upstreams[case.upstream]
        exchange = EXCHANGES[case.exchange]
        try:
            if case.exchange not in self._right_replies:
                self._right_replies[case.exchange] = reply_at(upstream.grpc_port, exchange)
            right, found = self._right_replies[case.exchange], reply_at(port, exchange)
            if found != right:
                raise BenchError(f"a reply of {len(found):,} bytes that is not the upstream's of {len(right):,}")
            load = GrpcLoad(
                exchange=case.exchange,
                reply_bytes=len(right),
                port=port,
                connections=case.connections,
                calls=case.calls,
                seconds=self._seconds,
                groups=running.groups() | {"upstream": list(upstream.pids)},
                inserts_traces=case.inserts_traces,
            )
            return sample_of(case, running.name, round_number, case.run(load, self._cores))
        except BenchError as error:
            return Failure(case.name, running.name, str(error))
