"""Processes of this machine: their parents, and the memory of a process tree.

On Linux memory is the proportional set size (PSS) of the tree: shared pages, such as a mapped model file or a tensor in
shared memory, count once. On macOS it is the physical footprint, which includes the GPU's part of unified memory. If
neither is readable, it is the resident set.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Process:
    """One process; `started` distinguishes it from a later one with the same pid."""

    pid: int
    parent: int
    group: int
    rss_bytes: int
    started: str


def describe_exit(status: int) -> str:
    """`exit code 3`, or the name of the signal."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def available_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS has no affinity


def processes() -> dict[int, Process]:
    """Every process that can be seen, by pid."""
    result = _from_proc() if sys.platform == "linux" else _from_ps()
    return {process.pid: process for process in result}


def tree(root: int, table: Mapping[int, Process], groups: Iterable[int] = ()) -> list[Process]:
    """A process, its descendants, and the members of the given process groups: parents first, living ones only."""
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    waiting = [table[root]] if root in table else []
    waiting += [process for process in table.values() if process.group in set(groups) and process.pid != root]
    result: dict[int, Process] = {}
    for process in waiting:  # grows while it is walked
        if process.pid not in result:
            result[process.pid] = process
            waiting += children.get(process.pid, [])
    return list(result.values())


def memory_of(members: Iterable[Process], at_least: int = 0) -> int:
    """Bytes that the processes take together.

    The exact figure costs a walk over their pages: if the sum of the resident sets, an upper bound, is at most
    `at_least`, that sum is returned.
    """
    members = list(members)
    resident = sum(process.rss_bytes for process in members)
    if resident <= at_least:
        return resident
    exact = _pss if sys.platform == "linux" else _footprint
    return sum(process.rss_bytes if (size := exact(process.pid)) is None else size for process in members)


def memory_of_one(pid: int) -> int | None:
    """Bytes of one process, quickly: its resident set, on macOS its footprint (including GPU memory); None if it has
    ended."""
    if sys.platform != "linux":
        return _footprint(pid)
    try:
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None


def _from_proc() -> list[Process]:
    result = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):  # it may have ended
            # proc(5): the name in parentheses may contain anything; then state, ppid, pgrp ... starttime (20th), rss.
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] not in "ZX":
                rss = int(fields[21]) * _PAGE_BYTES
                result.append(Process(int(entry.name), int(fields[1]), int(fields[2]), rss, fields[19]))
    return result


def _from_ps() -> list[Process]:
    listed = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,pgid=,rss=,stat=,lstart="], capture_output=True, text=True, check=False
    )
    result = []
    for line in listed.stdout.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and not fields[4].startswith("Z"):
            pid, parent, group, rss = (int(field) for field in fields[:4])
            result.append(Process(pid, parent, group, rss * 1024, fields[5].strip()))
    return result


def _pss(pid: int) -> int | None:
    try:
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


class _RusageInfoV0(ctypes.Structure):
    """`struct rusage_info_v0` of <sys/resource.h> on macOS."""

    _fields_ = (
        ("uuid", ctypes.c_uint8 * 16),
        *((name, ctypes.c_uint64) for name in ("user", "system", "idle_wakeups", "interrupt_wakeups", "pageins")),
        *((name, ctypes.c_uint64) for name in ("wired", "resident", "footprint", "started", "ended")),
    )


def _footprint(pid: int) -> int | None:
    """`ri_phys_footprint` of proc_pid_rusage(3)."""
    try:
        libproc = ctypes.CDLL("/usr/lib/libproc.dylib")
        usage = _RusageInfoV0()
        if libproc.proc_pid_rusage(ctypes.c_int(pid), ctypes.c_int(0), ctypes.byref(usage)) == 0:
            return int(usage.footprint)
    except (OSError, AttributeError):
        pass
    return None
