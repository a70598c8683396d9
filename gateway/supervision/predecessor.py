"""The gateway before this one on the same ports: its workers serve until this one's do, and drain then.

Its control process has died, or is asked to leave them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gateway.control.handover import ForeignWorker, find_workers
from gateway.supervision.ports import WORKERS_BIND, PortError, ReservedPort

_log = logging.getLogger("pointsman")

# Has a control process leave its workers to a successor.
HANDOVER_SIGNAL = signal.SIGUSR2

_LEAVE_SECONDS = 60.0
_POLL_SECONDS = 0.1


class Predecessor:
    """The workers of the gateway before this one."""

    def __init__(self, workers: Sequence[ForeignWorker]) -> None:
        self._workers = workers

    @classmethod
    async def find(cls, folder: Path, ports: Sequence[int], *, is_replaced: bool) -> Predecessor | None:
        """The gateway on any of these ports whose workers offer their sockets in the folder. `is_replaced`: its control
        process is asked to leave, where it lives.

        Raises: PortError where it lives and is not replaced, or does not leave.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _LEAVE_SECONDS
        signalled: set[int] = set()
        while True:
            workers = await asyncio.to_thread(_workers_on, folder, ports)
            living = {worker.control_pid for worker in workers if worker.control_pid and _lives(worker.control_pid)}
            if not living:
                return cls(workers) if workers else None
            for worker in workers:
                worker.close()
            if not is_replaced:
                pids = ", ".join(map(str, sorted(living)))
                text = f"the gateway of process {pids} serves on port {ports[0]}; stop it, or replace it by --take-over"
                raise PortError(text)
            if loop.time() > deadline:
                raise PortError(f"the gateway of process {min(living)} does not hand over its ports")
            for pid in living - signalled:
                _log.info("process %d is asked to hand over its ports", pid)
                os.kill(pid, HANDOVER_SIGNAL)
            signalled |= living
            await asyncio.sleep(_POLL_SECONDS)

    def listener(self, port: int) -> socket.socket | None:
        """A socket of its on this port."""
        sockets = (each for worker in self._workers for each in worker.listeners)
        return next((each for each in sockets if each.getsockname()[1] == port), None)

    def listeners(self, ports: Sequence[ReservedPort]) -> list[tuple[socket.socket, ...]]:
        """For each worker that listens at these ports, and no others, its sockets. None where all workers have those of
        the ports."""
        if not WORKERS_BIND:
            return []
        addresses = {port.address for port in ports}
        sets = [worker.listeners for worker in self._workers]
        return [found for found in sets if {each.getsockname() for each in found} == addresses]

    def drain(self) -> None:
        """Let their requests end."""
        pids = ", ".join(str(worker.pid) for worker in self._workers)
        _log.info("the workers of the gateway before this one drain: %s", pids)
        for worker in self._workers:
            worker.drain()
        self.close()

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


def _workers_on(folder: Path, ports: Sequence[int]) -> list[ForeignWorker]:
    found = []
    for worker in find_workers(folder):
        if any(each.getsockname()[1] in ports for each in worker.listeners):
            found.append(worker)
        else:
            worker.close()
    return found


def _lives(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
