"""Memory budgets enforced by the kernel where cgroup v2 is available: a group for each agent with a budget.

At the budget the kernel first reclaims pages that it can read again (of a model mapped from disk), and only then kills
the group. Sampling cannot do that.
Source: Linux, Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_PROCS = "cgroup.procs"
_SUBTREE = "cgroup.subtree_control"
# A group with children that have controllers may hold no process, so the fleet moves to a child.
_OURS = "pointsman-fleet"


class NoCgroupsError(Exception):
    """The kernel cannot enforce budgets here."""


def own_group(self_cgroup: str, mounts: str) -> Path:
    """The directory of this process's group, from the texts of /proc/self/cgroup and /proc/self/mounts. Raises:
    NoCgroupsError."""
    roots = [line.split()[1] for line in mounts.splitlines() if line.split()[2:3] == ["cgroup2"]]
    paths = [line.removeprefix("0::") for line in self_cgroup.splitlines() if line.startswith("0::")]
    if not roots or not paths:
        raise NoCgroupsError("cgroup v2 is not mounted")
    return Path(roots[0]) / paths[0].lstrip("/")


class Cgroups:
    """The groups of one fleet, below the group that it was started in."""

    def __init__(self, own: Path) -> None:
        """Prepare to limit memory. Raises: NoCgroupsError; then nothing has changed."""
        self._own = own
        try:
            if "memory" not in (own / "cgroup.controllers").read_text().split():
                raise NoCgroupsError(f"the memory controller is not delegated to {own}")
            if "memory" not in (own / _SUBTREE).read_text().split():
                self._take_controller()
        except OSError as error:
            raise NoCgroupsError(f"{own} cannot be used: {error.strerror}") from error

    def _take_controller(self) -> None:
        ours = self._own / _OURS
        ours.mkdir(exist_ok=True)
        (ours / _PROCS).write_text(str(os.getpid()))
        try:
            (self._own / _SUBTREE).write_text("+memory")
        except OSError:  # the group has other processes, such as a shell
            (self._own / _PROCS).write_text(str(os.getpid()))
            ours.rmdir()
            raise

    def __repr__(self) -> str:
        return f"<Cgroups {self._own}>"

    def put(self, name: str, pid: int, memory_bytes: int) -> None:
        """Move a process into the group of an agent, which its children inherit. Raises: OSError."""
        group = self._group(name)
        group.mkdir(exist_ok=True)
        (group / "memory.max").write_text(str(memory_bytes))
        (group / "memory.oom.group").write_text("1")
        (group / _PROCS).write_text(str(pid))

    def memory_of(self, name: str) -> int | None:
        """The bytes of the group without those that the kernel reclaims at once."""
        try:
            current = int((self._group(name) / "memory.current").read_text())
            return current - self._count(name, "memory.stat", "inactive_file")
        except (OSError, ValueError):
            return None

    def num_kills(self, name: str) -> int:
        """The number of processes that the kernel has killed for memory."""
        try:
            return self._count(name, "memory.events", "oom_kill")
        except (OSError, ValueError):
            return 0

    def remove(self, name: str) -> None:
        """Remove an agent's group, unless it has processes."""
        with contextlib.suppress(OSError):
            self._group(name).rmdir()

    def _group(self, name: str) -> Path:
        return self._own / f"pointsman-agent-{name}"

    def _count(self, name: str, file: str, key: str) -> int:
        for line in (self._group(name) / file).read_text().splitlines():
            if line.split()[:1] == [key]:
                return int(line.split()[1])
        return 0


def find() -> Cgroups:
    """The groups that this process may create. Raises: NoCgroupsError."""
    try:
        own = own_group(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mounts").read_text())
    except OSError as error:
        raise NoCgroupsError("this system has no cgroups") from error
    return Cgroups(own)
