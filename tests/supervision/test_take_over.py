"""Gateways that follow each other on the same ports."""

import asyncio
import http.client
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from gateway.control.handover import HandoverPoint, find_workers
from gateway.supervision import ports, predecessor
from gateway.supervision.ports import ReservedPort
from gateway.supervision.predecessor import Predecessor
from tests.supervision.stage import RULES
from tests.support.canned_engine import CannedEngine
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually


class Traffic:
    """Requests over new connections, one after the other; `failures` are those that got no reply."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.failures: list[str] = []
        self.latest: str | None = None  # the engine of the last reply
        self.is_over = False

    def run(self) -> None:
        while not self.is_over:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            try:
                connection.request("POST", "/v2/models/m/infer", b"{}")
                reply = connection.getresponse()
                reply.read()
                assert reply.status == 200
                self.latest = reply.headers["x-pointsman-engine"]
            except (OSError, http.client.HTTPException, AssertionError) as error:
                self.failures.append(repr(error))
            finally:
                connection.close()


@contextmanager
def traffic(port: int) -> Iterator[Traffic]:
    clients = Traffic(port)
    threads = [threading.Thread(target=clients.run, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield clients
    finally:
        clients.is_over = True
        for thread in threads:
            thread.join(60)


def successor(folder: Path, rules: str, first: GatewayProcess, *options: str) -> GatewayProcess:
    """A gateway on the ports and the data folder of another one."""
    numbers = {"--http-port": first.http_port, "--grpc-port": first.grpc_port, "--admin-port": first.admin_port}
    arguments = [part for name, number in numbers.items() for part in (name, str(number))]
    return GatewayProcess.start(rules, folder, data_dir=first.data_dir, extra_args=[*arguments, *options])


def workers_of(gateway: GatewayProcess) -> list[psutil.Process]:
    return [child for child in psutil.Process(gateway.process.pid).children() if "gateway.worker" in child.cmdline()]


def test_gateways_follow_each_other_without_a_refused_connection(tmp_path: Path) -> None:
    """A gateway takes the ports of one whose control process was killed: the workers that were left serve until its own
    do, and end. One that lives keeps its ports, and the error names it; with --take-over its successor has them. No
    request fails meanwhile."""
    started: list[GatewayProcess] = []
    with CannedEngine("any") as engine:

        def rules(name: str) -> str:
            return RULES.replace("http://127.0.0.1:1", engine.url).replace("it", name)

        try:
            started.append(GatewayProcess.start(rules("first"), tmp_path / "1", workers=2).wait_ready())
            first = started[0]
            with traffic(first.http_port) as clients:
                eventually(lambda: clients.latest == "first")
                left = workers_of(first)
                os.kill(first.process.pid, signal.SIGKILL)
                started.append(successor(tmp_path / "2", rules("second"), first).wait_ready())
                eventually(lambda: clients.latest == "second")
                eventually(lambda: not any(worker.is_running() for worker in left))

                refused = successor(tmp_path / "3", rules("third"), first)
                assert refused.process.wait(60) == 1
                pid = started[1].process.pid
                assert f"the gateway of process {pid} serves on port {first.http_port}" in refused.log()
                assert "--take-over" in refused.log()

                started.append(successor(tmp_path / "4", rules("fourth"), first, "--take-over").wait_ready())
                eventually(lambda: clients.latest == "fourth")
                assert started[1].process.wait(60) == 0
            assert clients.failures == []
            started[2].stop()
        finally:
            for gateway in started:
                gateway.kill()


@contextmanager
def short_folder() -> Iterator[Path]:

    with tempfile.TemporaryDirectory(prefix="pm-") as folder:  # paths of sockets are short
        yield Path(folder) / "workers"


def listening() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener


def test_a_worker_hands_its_sockets_over() -> None:
    """The successor accepts at the same socket, and the worker drains when it is told to, not before."""

    async def scene() -> None:
        listener, drains = listening(), asyncio.Event()
        point = HandoverPoint([listener.fileno()], lambda: 7, drains.set)
        with short_folder() as folder:
            point.open(folder)
            (found,) = await asyncio.to_thread(find_workers, folder)
            assert (found.pid, found.control_pid) == (os.getpid(), 7)
            address = listener.getsockname()
            listener.close()
            with socket.create_connection(address, timeout=60):
                assert found.listeners[0].getsockname() == address
                found.listeners[0].accept()[0].close()
            assert not drains.is_set()
            found.drain()
            await asyncio.wait_for(drains.wait(), 60)
            found.close()
            point.close()
            assert list(folder.iterdir()) == []

    asyncio.run(scene())


def test_what_a_killed_worker_left_is_removed() -> None:
    """A socket without a process behind it is deleted, and the search goes on."""
    with short_folder() as folder:
        folder.mkdir()
        left = socket.socket(socket.AF_UNIX)
        left.bind(str(folder / "1.sock"))
        left.close()
        assert find_workers(folder) == []
        assert list(folder.iterdir()) == []


def test_workers_of_other_ports_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway with the same data folder on other ports is no predecessor."""

    async def scene() -> None:
        listener = listening()
        point = HandoverPoint([listener.fileno()], lambda: 0, lambda: pytest.fail("drained"))
        with short_folder() as folder:
            point.open(folder)
            port = listener.getsockname()[1]
            assert await Predecessor.find(folder, [port + 1], is_replaced=False) is None
            found = await Predecessor.find(folder, [port], is_replaced=False)
            assert found is not None and found.listener(port) is not None
            found.close()
            point.close()
        listener.close()

    asyncio.run(scene())


def test_where_workers_share_a_socket_it_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """On systems where workers inherit one listening socket, the successor's port is that socket."""
    monkeypatch.setattr(ports, "WORKERS_BIND", False)
    monkeypatch.setattr(predecessor, "WORKERS_BIND", False)
    with listening() as listener:
        port = ReservedPort("127.0.0.1", listener.getsockname()[1], "--http-port", inherited=listener)
        assert port.listener is not None
        assert port.listener.getsockname() == listener.getsockname()
        assert Predecessor([]).listeners([port]) == []
        with socket.create_connection(listener.getsockname(), timeout=60):
            port.listener.accept()[0].close()
        port.close()
