"""The gateway's own Redis: a real redis-server, started, killed, shared and stopped."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest
import redis

from gateway.redis.data_dir import EmbeddedError, ServerFolder, default_data_dir, find_server
from gateway.redis.embedded import EmbeddedRedis
from tests.support.waiting import eventually

MEGABYTE = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def program() -> Path:
    try:
        return find_server()
    except EmbeddedError as error:
        pytest.skip(str(error))


def embedded(data_dir: Path, program: Path, max_memory_bytes: int = 64 * MEGABYTE) -> EmbeddedRedis:
    return EmbeddedRedis(ServerFolder.make(data_dir), program, max_memory_bytes=max_memory_bytes)


def client(server: EmbeddedRedis) -> redis.Redis:
    return redis.Redis(unix_socket_path=server.address.socket, decode_responses=True)


async def becomes(question: Callable[[], bool], timeout: float = 120.0) -> None:
    until = time.monotonic() + timeout
    while not question():
        assert time.monotonic() < until
        await asyncio.sleep(0.01)


def answers(server: EmbeddedRedis) -> bool:
    try:
        return bool(client(server).ping())
    except redis.RedisError:
        return False


def run(scene: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scene(), 120))  # type: ignore[arg-type]


def test_what_is_written_is_there_after_a_restart(tmp_path: Path, program: Path) -> None:
    """A server that is stopped and restarted keeps its data. Only its user can read its folder, which may have any
    name."""
    data_dir = tmp_path / 'Application Support, "größer"'

    async def scene() -> None:
        first = embedded(data_dir, program)
        assert await first.start()
        client(first).set("session", "kept")
        await first.close()
        assert first.pid is None and not answers(first)
        second = embedded(data_dir, program)
        assert await second.start()
        assert client(second).get("session") == "kept"
        assert client(second).config_get("maxmemory-policy") == {"maxmemory-policy": "volatile-ttl"}
        await second.close()
        assert (data_dir / "redis").stat().st_mode & 0o777 == 0o700

    run(scene)


def test_it_listens_on_no_port(tmp_path: Path, program: Path) -> None:
    """The server listens only on its Unix socket, which only this user may open."""

    async def scene() -> None:
        server = embedded(tmp_path, program)
        await server.start()
        assert server.pid is not None and server.address.socket is not None
        assert psutil.Process(server.pid).net_connections(kind="inet") == []
        assert Path(server.address.socket).stat().st_mode & 0o077 == 0
        await server.close()

    run(scene)


def test_a_killed_server_is_started_again(tmp_path: Path, program: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A killed server is restarted with its data, and one line is logged."""

    async def scene() -> None:
        server = embedded(tmp_path, program)
        await server.start()
        client(server).set("session", "kept")
        before = server.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        await becomes(lambda: server.pid not in (None, before) and answers(server))
        assert client(server).get("session") == "kept"
        assert server.restarts == 1
        await server.close()

    run(scene)
    report = [record.message for record in caplog.records if "embedded Redis" in record.message]
    assert report == ["the embedded Redis ended with status -9; trying again and again"]


def test_two_gateways_on_one_folder_share_one_server(tmp_path: Path, program: Path) -> None:
    """The second gateway uses the first one's server, and runs it on the same data when the first one stops."""

    async def scene() -> None:
        first, second = embedded(tmp_path, program), embedded(tmp_path, program)
        assert await first.start() and await second.start()
        assert first.pid is not None and second.pid is None
        client(second).set("session", "kept")
        await first.close()
        await becomes(lambda: second.pid is not None and answers(second))
        assert client(second).get("session") == "kept"
        await second.close()

    run(scene)


def test_one_that_only_shares_stops_nothing(tmp_path: Path, program: Path) -> None:
    """A gateway that uses another one's server leaves it running at its own stop."""

    async def scene() -> None:
        first, second = embedded(tmp_path, program), embedded(tmp_path, program)
        await first.start()
        await second.start()
        await second.close()
        assert answers(first)
        await first.close()

    run(scene)


OWNER = """
import asyncio, sys
from pathlib import Path
from gateway.redis.embedded import EmbeddedRedis
from gateway.redis.data_dir import ServerFolder, find_server

async def scene():
    server = EmbeddedRedis(ServerFolder.make(Path(sys.argv[1])), find_server(), max_memory_bytes=1 << 26)
    await server.start()
    print(server.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(scene())
"""


def test_it_does_not_outlive_who_runs_it(tmp_path: Path) -> None:
    """When the process that runs it is killed, the server shuts down cleanly."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout:
        server = psutil.Process(int(owner.stdout.readline()))
        owner.kill()
        owner.wait()
        eventually(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE)
    assert "User requested shutdown" in (tmp_path / "redis" / "redis.log").read_text()


def test_a_paused_server_is_killed_when_it_must_stop(
    tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that ignores SIGTERM delays the gateway's stop only for a bounded time."""
    monkeypatch.setattr("gateway.redis.embedded._STOP_SECONDS", 0.2)

    async def scene() -> None:
        server = embedded(tmp_path, program)
        await server.start()
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        await asyncio.wait_for(server.close(), 120)
        assert server.pid is None

    run(scene)


def test_why_it_does_not_start_is_told(tmp_path: Path, program: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An unreadable data file is reported in one line with the server's own message and the remedy."""

    async def scene() -> None:
        folder = ServerFolder.make(tmp_path)
        (folder.path / "appendonly.aof").write_text("this is no append-only file\n")
        server = EmbeddedRedis(folder, program, max_memory_bytes=64 * MEGABYTE)
        assert not await server.start(0.5)
        await server.close()

    run(scene)
    (report,) = [record.message for record in caplog.records if "embedded Redis" in record.message]
    assert "append only file" in report
    assert f"move {tmp_path}/redis/appendonly* away" in report


def test_a_long_path_gets_a_short_socket(tmp_path: Path, program: Path) -> None:
    """A data directory whose path is too long for a socket has its socket in /tmp, the same one for every gateway."""

    async def scene() -> None:
        deep = tmp_path / ("d" * 100)
        server = embedded(deep, program)
        assert await server.start()
        assert server.address == embedded(deep, program).address
        assert server.address.socket is not None and server.address.socket.startswith("/tmp/pointsman-")
        assert (deep / "redis" / "appendonly.aof").exists()
        await server.close()
        Path(server.address.socket).parent.rmdir()

    run(scene)


def test_another_user_cannot_take_the_short_socket(tmp_path: Path) -> None:
    """The folder in /tmp has a random name, which the data folder keeps; one that is gone, or is not this user's,
    is replaced by another."""
    deep = tmp_path / ("d" * 100)
    found = []
    for _ in range(2):
        socket = ServerFolder.make(deep).socket
        assert ServerFolder.make(deep).socket == socket
        socket.parent.rmdir()
        found.append(socket.parent)
        socket.parent.symlink_to(tmp_path)  # of somebody who has seen the name
    socket = ServerFolder.make(deep).socket
    assert len({socket.parent, *found}) == 3 and socket.parent.stat().st_mode & 0o777 == 0o700
    socket.parent.rmdir()
    for folder in found:
        folder.unlink()


def test_a_folder_that_cannot_be_had_is_named(tmp_path: Path) -> None:
    """A data directory below a file is refused, and the error names the option to choose another."""
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedError, match=r"file/redis cannot be made: .*--data-dir"):
        ServerFolder.make(tmp_path / "file")


def test_state_is_kept_where_the_system_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The data directory is in $XDG_STATE_HOME, or else in the user's own state directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_data_dir() == tmp_path / "pointsman"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert default_data_dir() == tmp_path / ".local" / "state" / "pointsman"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert default_data_dir() == tmp_path / "Library" / "Application Support" / "pointsman"


def test_without_a_server_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a redis-server program the error names the ways to install one."""
    monkeypatch.setattr("gateway.redis.data_dir.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EmbeddedError, match=r"apt install redis-server, brew install redis.*--redis URL"):
        find_server()
