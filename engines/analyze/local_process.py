"""Whether a server runs on this machine, and as which process: its memory can be weighed then."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

_LISTENING = "0A"  # Linux, include/net/tcp_states.h: TCP_LISTEN


def server_pid(url: str) -> int | None:
    """The process that listens at a URL's port on this machine; None where it is another machine's, or cannot be told
    (another user's)."""
    parts = urlsplit(url)
    if not _is_here(parts.hostname or ""):
        return None
    port = parts.port or 80
    return _listener_by_proc(port) if sys.platform == "linux" else _listener_by_lsof(port)


def _is_here(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    if address.is_loopback:
        return True
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET) as one,
    ):
        one.bind((host, 0))  # only an address of this machine can be bound
        return True
    return False


def _listener_by_proc(port: int) -> int | None:
    inodes = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    holders = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if any(str(link.readlink()) in inodes for link in (entry / "fd").iterdir()):
                    holders.append(int(entry.name))
    return _eldest(holders)


def _listener_by_lsof(port: int) -> int | None:
    try:
        listed = subprocess.run(
            ["lsof", "-nP", "-t", f"-iTCP:{port}", "-sTCP:LISTEN"], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return _eldest([int(line) for line in listed.stdout.split() if line.isdigit()])


def _eldest(holders: list[int]) -> int | None:
    """Of several processes that hold a socket, the one that the others have it from."""
    return next((pid for pid in holders if _parent(pid) not in holders), None)


def _parent(pid: int) -> int | None:
    """None where it cannot be told, or the process is gone."""
    try:
        if sys.platform == "linux":
            return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])  # proc(5): state, ppid
        listed = subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return int(listed.stdout)
    except (OSError, ValueError, IndexError):
        return None
