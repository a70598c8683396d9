"""Which processes share memory with this one: those of the same machine since it started, in the same container.

A folder of caches does not tell: a home folder may be on NFS, and containers may share a volume.
"""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # random(4)
_CGROUP = Path("/sys/fs/cgroup")


def memory_domain() -> str:
    """A name of letters, digits, '.', '_' and '-': the machine's start, and the inode of the cgroup at the root of what
    this process sees (cgroup_namespaces(7): a container sees its own there; on a host it is the machine's)."""
    try:
        inode = _CGROUP.stat().st_ino
    except OSError:
        inode = 0
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', _boot())}-{inode}"


def _boot() -> str:
    """What the kernel has drawn at its start; the name of the host where there is none."""
    try:
        if sys.platform == "darwin":
            command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]  # drawn by XNU at each start
            text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        else:
            text = _BOOT_ID.read_text()
    except OSError:
        text = ""
    return text.strip() or socket.gethostname()
