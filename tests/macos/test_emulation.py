"""The emulation itself: programs that start as on a Mac find what macOS has."""

import json
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.usefixtures("on_a_mac")


def told(code: str) -> object:
    """What a Python process, started as on a Mac, prints as JSON for this code."""
    command = [sys.executable, "-c", "import json, os\n" + textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_macos_lacks_is_gone() -> None:
    """os, select and fcntl lack what macOS lacks, whenever they are imported, and have the rest."""
    assert told(
        """
        import asyncio, fcntl, select, selectors, socket
        names = "waitid memfd_create sched_getaffinity pipe2 eventfd pidfd_open posix_fallocate".split()
        there = [name for name in names if hasattr(os, name)]
        there += [name for name in ("F_SETPIPE_SZ", "F_GETPIPE_SZ") if hasattr(fcntl, name)]
        kept = [hasattr(os, "sched_yield"), hasattr(os, "killpg"), hasattr(socket, "SO_REUSEPORT")]
        asyncio.run(asyncio.create_subprocess_exec("true"))
        print(json.dumps([there, hasattr(select, "epoll"), kept]))
        """
    ) == [[], False, [True, True, True]]


def test_shared_memory_is_as_on_macos() -> None:
    """Shared memory has no device and no inode, its size is set once, and its names have 31 characters at most. Other
    files are unchanged."""
    assert told(
        """
        import errno, mmap, tempfile
        import _posixshmem

        def error(act, *arguments):
            try:
                act(*arguments)
            except OSError as error:
                return errno.errorcode[error.errno]

        shm = _posixshmem.shm_open("/pointsman-emulation", os.O_RDWR | os.O_CREAT, 0o600)
        _posixshmem.shm_unlink("/pointsman-emulation")
        os.ftruncate(shm, 8192)
        found = os.fstat(shm)
        mmap.mmap(shm, 8192)
        with tempfile.TemporaryFile() as file:
            os.ftruncate(file.fileno(), 10)
            os.ftruncate(file.fileno(), 20)
            other = os.fstat(file.fileno())
        print(json.dumps([
            [found.st_dev, found.st_ino, found.st_size], error(os.ftruncate, shm, 16384),
            error(_posixshmem.shm_open, "/" + "x" * 31, os.O_RDWR | os.O_CREAT, 0o600),
            other.st_size, other.st_ino > 0, error(os.fstat, 999),
        ]))
        """
    ) == [[0, 0, 8192], "EINVAL", "ENAMETOOLONG", 20, True, "EBADF"]


def test_limits_and_programs_are_those_of_a_mac_s_shell() -> None:
    """Programs get 256 files, a long TMPDIR, and stubs for compilers."""
    assert told(
        """
        import resource, subprocess, tempfile
        done = subprocess.run(["clang++", "--version"], capture_output=True, text=True)
        print(json.dumps([
            resource.getrlimit(resource.RLIMIT_NOFILE)[0], len(os.environ["TMPDIR"]),
            tempfile.gettempdir() + "/" == os.environ["TMPDIR"], done.returncode, "xcode-select: note" in done.stderr,
        ]))
        """
    ) == [256, 60, True, 1, True]


def test_what_we_decide_by_platform_is_decided_as_on_macos() -> None:
    """Workers share a listener and tensors are in POSIX shared memory, also in the processes of models."""
    assert told(
        """
        import engines.ipc.arena, gateway.net.sockets, gateway.supervision.ports
        print(json.dumps([engines.ipc.arena.USES_POSIX_SHM, gateway.net.sockets.BIND_REFUSES_ALL,
                          gateway.supervision.ports.WORKERS_BIND]))
        """
    ) == [True, False, False]


@pytest.mark.parametrize("loop", ["asyncio.new_event_loop", "uvloop.new_event_loop"])
def test_backlogs_are_cut(loop: str) -> None:
    """The backlog is kern.ipc.somaxconn at most, with every event loop."""
    assert (
        told(
            f"""
        import asyncio, socket, struct
        import uvloop
        loop = {loop}()
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        loop.run_until_complete(loop.create_server(asyncio.Protocol, sock=listener, backlog=4096))
        # <linux/tcp.h>: tcpi_sacked of a socket that listens is its backlog
        info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        print(json.dumps(struct.unpack_from("7I", info, 8)[5]))
        """
        )
        == 128
    )
