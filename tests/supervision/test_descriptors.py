"""A gateway that starts with the limit of open files of a Mac's shell."""

import contextlib
import resource
import socket
import sys
from collections.abc import Callable

import psutil
import pytest

from tests.support import plain_http
from tests.support.descriptors import MAC_SOFT_LIMIT, soft_limit
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

RULES = "version: 1\nengines: {it: {endpoints: ['http://127.0.0.1:9']}}\nroutes: [{name: all, engine: it}]\n"
NUM_CONNECTIONS = 400
ASKS = b"GET /v2/health/live HTTP/1.1\r\nhost: it\r\n\r\n"


def worker_of(gateway: GatewayProcess) -> psutil.Process:
    (worker,) = (
        child for child in psutil.Process(gateway.process.pid).children() if "gateway.worker" in child.cmdline()
    )
    return worker


def gauge(gateway: GatewayProcess, name: str) -> float:
    """A gauge of the only worker."""
    lines = plain_http.get(gateway.admin_url + "/metrics").text.splitlines()
    (line,) = (line for line in lines if line.startswith(f'{name}{{worker="{worker_of(gateway).pid}"}} '))
    return float(line.rpartition(" ")[2])


def connect(gateway: GatewayProcess, stack: contextlib.ExitStack, number: int) -> list[socket.socket]:
    return [
        stack.enter_context(socket.create_connection(("127.0.0.1", gateway.http_port), timeout=120))
        for _ in range(number)
    ]


def test_more_connections_than_a_mac_s_shell_allows(start_gateway: Callable[..., GatewayProcess]) -> None:
    """With `ulimit -n 256` one worker answers 400 connections at the same time; /metrics reports its open
    descriptors."""
    with soft_limit(MAC_SOFT_LIMIT):
        gateway = start_gateway(RULES, workers=1)
    with contextlib.ExitStack() as stack:
        clients = connect(gateway, stack, NUM_CONNECTIONS)
        for client in clients:
            client.sendall(ASKS)
        assert {client.recv(12) for client in clients} == {b"HTTP/1.1 200"}
        assert NUM_CONNECTIONS < gauge(gateway, "pointsman_open_fds") < NUM_CONNECTIONS + 100
    assert gauge(gateway, "pointsman_max_fds") == min(10_240, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    assert "descriptors" not in gateway.log()


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit(2) is Linux's")
def test_a_worker_says_that_it_has_no_descriptors_left(start_gateway: Callable[..., GatewayProcess]) -> None:
    """A worker without free descriptors logs their number, because libuv closes connections silently then."""
    gateway = start_gateway(RULES, workers=1)
    worker = worker_of(gateway)
    worker.rlimit(psutil.RLIMIT_NOFILE, (100, 100))
    with contextlib.ExitStack() as stack:
        connect(gateway, stack, 120)
        line = f"process {worker.pid} has 100 of 100 file descriptors open"
        eventually(lambda: line in gateway.log())
