"""Unary load from h2load (nghttp2): written in C, so that it costs little beside the proxy on the same machine.

h2load does not understand gRPC, and an error is an HTTP 200 too, but one without a message: so the body bytes that it
counts must be those of as many right replies. The upstream answers messages of the right length only.
"""

import math
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.grpc_messages import DEADLINE_SECONDS, EXCHANGES, HEADERS, TENANT, GrpcLoad, trace
from bench.processes import BenchError, group_cpu_seconds
from bench.window import LoadResult, percentile, run_program
from gateway.wire.grpc import framed

HOW_TO_GET = "apt install nghttp2-client, or brew install nghttp2"


def h2load_path() -> str | None:
    return shutil.which("h2load")


def h2load_version() -> str | None:
    if not (path := h2load_path()):
        return None
    return subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout.strip()


def run_h2load(load: GrpcLoad, cores: Sequence[int] | None) -> LoadResult:
    """Run h2load with one thread. Its CPU window is the whole run, including the time to open the connections.

    Raises: BenchError if it is missing, and for wrong replies.
    """
    if h2load_path() is None:
        raise BenchError(f"h2load makes this load and is not installed here ({HOW_TO_GET})")
    seconds = max(1, math.ceil(load.seconds))
    with tempfile.TemporaryDirectory() as folder:
        body, log = Path(folder) / "request", Path(folder) / "calls.tsv"
        argv = [*command_line(load, body, seconds), f"--log-file={log}"]
        cpu = group_cpu_seconds(load.groups)
        done = run_program(argv, seconds, cores)
        cpu_after = group_cpu_seconds(load.groups)
        latencies_us = [float(line.rpartition("\t")[2]) for line in log.read_text().splitlines()]
    if done.returncode:
        raise BenchError(f"h2load ended with status {done.returncode}: {done.stdout}{done.stderr}")
    units = right_replies(done.stdout, load)
    return LoadResult(
        units=units,
        seconds=seconds,
        p50_us=percentile(latencies_us, 50),
        p99_us=percentile(latencies_us, 99),
        group_cpu_seconds={name: cpu_after[name] - cpu[name] for name in cpu},
        loader_cpu_seconds=None,
    )


def command_line(load: GrpcLoad, body: Path, seconds: int) -> list[str]:
    """h2load with one thread; the request is written to the file `body`."""
    exchange = EXCHANGES[load.exchange]
    body.write_bytes(framed(exchange.request))
    headers = [*HEADERS, ("grpc-timeout", f"{DEADLINE_SECONDS}S"), TENANT, trace()]
    argv = [h2load_path() or "h2load", "-t1", f"-c{load.connections}", f"-m{load.calls}", f"-D{seconds}"]
    argv += [part for name, value in headers for part in ("-H", f"{name}: {value}")]
    return [*argv, "-d", str(body), f"http://127.0.0.1:{load.port}{exchange.path}"]


def right_replies(output: str, load: GrpcLoad) -> int:
    """The number of calls that h2load reports; all of them must have had the right reply.

    Raises: BenchError.
    """
    requests = re.search(r"requests: .* (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored", output)
    traffic = re.search(r"traffic: .* \((\d+)\) data", output)
    if not requests or not traffic:
        raise BenchError(f"h2load says what is not understood: {output}")
    done, succeeded, failed, errored = map(int, requests.groups())
    if failed or errored or succeeded != done:
        raise BenchError(f"h2load saw {failed} calls fail (HTTP status other than 200, reset) and {errored} broken off")
    size = load.reply_bytes
    # Calls that the end of the run interrupts have transferred some bytes too, and are not among those that are done.
    under_way = load.connections * load.calls
    data = int(traffic[1])
    if not done * size <= data <= (done + under_way) * size:
        raise BenchError(f"{done} calls brought {data:,} bytes of messages where right replies have {done * size:,}")
    return done
