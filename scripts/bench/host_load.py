"""Load on the engine servers from h2load (nghttp2), over HTTP/1.1 and over gRPC: written in C, so that it costs little
beside the server on the same machine, and the same for all servers.

h2load requires status 200 of every reply; it does not check the content, and a gRPC error is a 200 too, but without a
message: so the body bytes of all replies together must be those of as many right ones.
"""

import http.client
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc

from bench.grpc_h2load import HOW_TO_GET, h2load_path
from bench.grpc_messages import HEADERS
from bench.host_messages import GRPC_PATH, Inference
from bench.processes import BenchError, group_cpu_seconds
from bench.window import LoadResult, percentile, run_program
from gateway.wire.grpc import framed

CALL_SECONDS = 20.0

# A gRPC client shares a connection among its calls; above this number of calls there are several clients.
CALLS_A_CONNECTION = 8

# Tolerated difference of lengths between right answers: MLServer's have an id, and numbers vary.
TOLERANCE = 0.02


@dataclass(frozen=True, slots=True)
class HostLoad:
    """One run of load: `concurrency` requests in flight at any time."""

    inference: Inference
    protocol: str  # grpc or rest
    port: int
    concurrency: int
    seconds: float
    groups: Mapping[str, list[int]]  # whose CPU time to read: name -> process ids


def answer_bytes(inference: Inference, protocol: str, port: int) -> int:
    """Send one request, check the answer, and return the length of its body (with gRPC's prefix).

    Raises: BenchError.
    """
    if protocol == "grpc":
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            try:
                reply = channel.unary_unary(GRPC_PATH)(inference.grpc_message(), timeout=CALL_SECONDS)
            except grpc.RpcError as error:
                raise BenchError(f"{error.code().name}: {error.details()}") from error
        inference.check_grpc(reply)
        return len(framed(reply))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CALL_SECONDS)
    try:
        connection.request("POST", inference.rest_path, inference.rest_body(), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        body = answer.read()
    except OSError as error:
        raise BenchError(f"no answer: {error}") from error
    finally:
        connection.close()
    if answer.status != 200:
        raise BenchError(f"status {answer.status}: {body[:300]!r}")
    inference.check_rest(body)
    return len(body)


def run_load(load: HostLoad, cores: Sequence[int] | None) -> LoadResult:
    """Check one answer, then run h2load with one thread; its CPU window is the whole run.

    Raises: BenchError if it is missing, and for wrong answers.
    """
    if h2load_path() is None:
        raise BenchError(f"h2load makes this load and is not installed here ({HOW_TO_GET})")
    right = answer_bytes(load.inference, load.protocol, load.port)
    seconds = max(1, math.ceil(load.seconds))
    with tempfile.TemporaryDirectory() as folder:
        body, log = Path(folder) / "request", Path(folder) / "calls.tsv"
        argv = [*command_line(load, body, seconds), f"--log-file={log}"]
        cpu = group_cpu_seconds(dict(load.groups))
        done = run_program(argv, seconds, cores)
        cpu_after = group_cpu_seconds(dict(load.groups))
        latencies_us = [float(line.rpartition("\t")[2]) for line in log.read_text().splitlines()]
    if done.returncode:
        raise BenchError(f"h2load ended with status {done.returncode}: {done.stdout}{done.stderr}")
    return LoadResult(
        units=right_answers(done.stdout, right, load.concurrency),
        seconds=seconds,
        p50_us=percentile(latencies_us, 50),
        p99_us=percentile(latencies_us, 99),
        group_cpu_seconds={name: cpu_after[name] - cpu[name] for name in cpu},
        loader_cpu_seconds=None,
    )


def command_line(load: HostLoad, body: Path, seconds: int) -> list[str]:
    """h2load with one thread; the request is written to the file `body`."""
    program = h2load_path() or "h2load"
    if load.protocol == "rest":
        body.write_bytes(load.inference.rest_body())
        argv = [program, "--h1", "-t1", f"-c{load.concurrency}", f"-D{seconds}", "-H", "content-type: application/json"]
        return [*argv, "-d", str(body), f"http://127.0.0.1:{load.port}{load.inference.rest_path}"]
    body.write_bytes(framed(load.inference.grpc_message()))
    calls = min(CALLS_A_CONNECTION, load.concurrency)
    argv = [program, "-t1", f"-c{load.concurrency // calls}", f"-m{calls}", f"-D{seconds}"]
    argv += [part for name, value in HEADERS for part in ("-H", f"{name}: {value}")]
    return [*argv, "-d", str(body), f"http://127.0.0.1:{load.port}{GRPC_PATH}"]


def right_answers(output: str, right: int, under_way: int) -> int:
    """The number of requests that h2load reports; all of them must have had answers of the right length.

    Raises: BenchError.
    """
    requests = re.search(r"requests: .* (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored", output)
    traffic = re.search(r"traffic: .* \((\d+)\) data", output)
    if not requests or not traffic:
        raise BenchError(f"h2load says what is not understood: {output}")
    done, succeeded, failed, errored = map(int, requests.groups())
    if failed or errored or succeeded != done:
        raise BenchError(f"h2load saw {failed} requests fail and {errored} broken off")
    data = int(traffic[1])
    if not done * right * (1 - TOLERANCE) <= data <= (done + under_way) * right * (1 + TOLERANCE):
        raise BenchError(f"{done} requests brought {data:,} bytes where right answers have {done * right:,}")
    return done
