"""The cases of the engine host's benchmark: the request, the servers, and the number of concurrent requests."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.host_load import HostLoad, run_load
from bench.host_messages import INFERENCES
from bench.processes import BenchError
from bench.programs import Running
from bench.samples import Case, Failure, Sample, sample_of

CONCURRENCIES = (1, 8, 64)
EVERYBODY, WITH_SHARED_MEMORY, OURS = ("triton", "mlserver", "ours"), ("triton", "ours"), ("ours",)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCase(Case):
    """`concurrency` requests for `inference` at any time; `servers` are those that can answer it."""

    inference: str  # a key of INFERENCES
    protocol: str
    concurrency: int
    servers: Sequence[str] = EVERYBODY


def _adder(protocol: str, concurrency: int) -> HostCase:
    title = f"int32 adder over {'gRPC' if protocol == 'grpc' else 'REST'}, {concurrency} at a time"
    return HostCase(
        name=f"{protocol}-{concurrency}", title=title, inference="adder", protocol=protocol, concurrency=concurrency
    )


def _tower(kind: str, how: str) -> HostCase:
    batching = "with dynamic batching" if how == "batched" else "without batching"
    return HostCase(
        name=f"{kind}-{how}",
        title=f"{'ONNX' if kind == 'onnx' else 'TorchScript'} network {batching}, 64 at a time",
        inference=f"{kind}_{how}",
        protocol="grpc",
        concurrency=64,
        servers=OURS,
    )


def _shared_memory(size: str, title: str) -> HostCase:
    return HostCase(
        name=f"shm-{size}",
        title=f"{title} in and out through shared memory, one at a time",
        inference=f"shm_{size}",
        protocol="grpc",
        concurrency=1,
        servers=WITH_SHARED_MEMORY,
    )


CASES = {
    case.name: case
    for case in (
        *(_adder(protocol, concurrency) for protocol in ("grpc", "rest") for concurrency in CONCURRENCIES),
        *(_tower(kind, how) for kind in ("onnx", "torch") for how in ("alone", "batched")),
        _shared_memory("large", "600 KB tensor"),
        _shared_memory("small", "64 byte tensor"),
    )
}


class Loader:
    """The settings of the load: its duration and its cores."""

    def __init__(self, seconds: float, cores: Sequence[int] | None) -> None:
        self._seconds = seconds
        self._cores = cores

    def sample(self, case: Case, running: Running, round_number: int) -> Sample | Failure:
        """Check the server's answer, then run one round; an error is a failure of this server in this case."""
        assert isinstance(case, HostCase)
        load = HostLoad(
            inference=INFERENCES[case.inference],
            protocol=case.protocol,
            port=running.ports[case.protocol],
            concurrency=case.concurrency,
            seconds=self._seconds,
            groups=running.groups() | {"upstream": []},  # an engine has no upstream
        )
        try:
            return sample_of(case, running.name, round_number, run_load(load, self._cores))
        except BenchError as error:
            return Failure(case.name, running.name, str(error))
