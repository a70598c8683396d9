"""A real redis-server for tests, on a port or a Unix socket, which can be killed, paused and restarted."""

import contextlib
import os
import random
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import pytest
import redis

from gateway.redis.data_dir import EmbeddedError, find_server
from tests.support.waiting import eventually


def program() -> Path:
    """The installed redis-server; without one the test is skipped."""
    try:
        return find_server()
    except EmbeddedError as error:
        pytest.skip(str(error))


# Offset of a node's cluster bus port; both ports are below the ephemeral ones (from 32,768 on).
BUS = 10_000


def free_port() -> int:
    """A free port whose cluster bus port is free too."""
    while True:
        port = random.randrange(20_000, 22_700)
        with socket.socket() as probe, socket.socket() as bus, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + BUS))
            return port


class RedisServer:
    """One server on a port of 127.0.0.1; it keeps its address after a restart."""

    def __init__(self, folder: Path, *options: str, port: int | None = None, sentinel: bool = False) -> None:
        """A Sentinel stores its state in its configuration file, which starts as `options`."""
        self.folder = folder
        self.port = port or free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._command = [str(program())]
        if sentinel:
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / "sentinel.conf"
            file.write_text("\n".join((f"port {self.port}", f"dir {folder}", *options)) + "\n")
            self._command += [str(file), "--sentinel"]
        else:
            self._command += ["--port", str(self.port), "--dir", str(folder), "--save", "", *options]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, decode_responses=True, socket_timeout=5)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, cwd=self.folder)
        try:
            eventually(self.answers)
        except BaseException:
            self.kill()
            raise
        return self

    def answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.ConnectionError:
            return False

    def kill(self) -> None:
        """Kill it, as in a crash."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


@contextlib.contextmanager
def cluster(folder: Path, size: int = 3) -> Iterator[list[RedisServer]]:
    """A cluster of this many masters, each with its share of the slots."""
    quick = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(RedisServer(folder / str(number), *quick)) for number in range(size)]
        share = 16384 // size + 1
        for number, server in enumerate(servers):
            slots = range(number * share, min((number + 1) * share, 16384))
            server.client.execute_command("CLUSTER", "ADDSLOTS", *slots)
            server.client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server in servers:
            eventually(lambda server=server: _has_met(server, servers))  # type: ignore[misc]
        yield servers


def _has_met(server: RedisServer, servers: Sequence[RedisServer]) -> bool:
    """Whether the server reports a complete cluster; if not, introduce the nodes again."""
    if "cluster_state:ok" in str(server.client.execute_command("CLUSTER", "INFO")):
        return True
    for other in servers:
        server.client.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port)
    return False


@contextlib.contextmanager
def watched(folder: Path, options: Sequence[str] = ()) -> Iterator[tuple[RedisServer, RedisServer, list[RedisServer]]]:
    """A master, its replica, and three Sentinels that know it as `pointsman`."""
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(RedisServer(folder / "master", *options))
        behind = ("--replicaof", "127.0.0.1", str(master.port))
        replica = stack.enter_context(RedisServer(folder / "replica", *behind, *options))
        eventually(lambda: replica.client.info("replication")["master_link_status"] == "up")
        reply = (
            f"sentinel monitor pointsman 127.0.0.1 {master.port} 2",
            "sentinel down-after-milliseconds pointsman 300",
            "sentinel failover-timeout pointsman 3000",
        )
        sentinels = [
            stack.enter_context(RedisServer(folder / f"sentinel-{n}", *reply, sentinel=True)) for n in range(3)
        ]
        for sentinel in sentinels:
            eventually(lambda sentinel=sentinel: _sees_all(sentinel))  # type: ignore[misc]
        yield master, replica, sentinels


def _sees_all(sentinel: RedisServer) -> bool:
    seen = sentinel.client.execute_command("SENTINEL", "MASTER", "pointsman")
    facts = seen if isinstance(seen, dict) else dict(zip(seen[::2], seen[1::2], strict=True))
    return str(facts["num-other-sentinels"]) == "2" and str(facts["num-slaves"]) == "1"
