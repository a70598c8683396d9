"""A gateway whose workers report how long their event loop was busy at a stretch.

    python -m bench.scale_worker serve OPTIONS

The longest stretch of each second is a line of JSON in the file that POINTSMAN_BENCH_PAUSES names.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from gateway.cli import supervisor
from gateway.cli.serve import serve
from gateway.control import messages
from gateway.worker import process

VARIABLE = "POINTSMAN_BENCH_PAUSES"
_TICK_SECONDS = 0.001


class TickingWorker(process.Worker):
    """Measures the CPU time that its thread takes between two ticks of a timer: preemption by others does not count."""

    async def start(self, start: messages.Start) -> None:
        await super().start(start)
        self._loop = asyncio.get_running_loop()
        self._file = Path(os.environ[VARIABLE])
        self._number, self._longest = 0, 0.0
        self._last = time.thread_time()
        self._tick()
        self._report()

    def _tick(self) -> None:
        now = time.thread_time()
        self._longest = max(self._longest, now - self._last)
        self._last = now
        self._loop.call_later(_TICK_SECONDS, self._tick)

    def _report(self) -> None:
        """The stretches from the last report on: those of a change are in the report of either number."""
        assert self.plane is not None
        line = {"rules": self.plane.snapshot.number, "cpu_ms": round(self._longest * 1e3, 2)}
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")
        self._longest = 0.0
        self._loop.call_later(1.0, self._report)


def main() -> int:
    process.Worker = TickingWorker  # type: ignore[misc]  # of forked workers, too
    if sys.argv[1:2] == ["--control-fd"]:
        return process.main()
    command = (sys.executable, "-m", "bench.scale_worker")
    supervisor.Supervisor.__init__.__kwdefaults__["worker_command"] = command
    del sys.argv[1]
    import typer

    typer.run(serve)
    return 0


if __name__ == "__main__":
    sys.exit(main())
