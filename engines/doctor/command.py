"""Programs of the system, asked."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Printed:
    """A program's exit status and what it printed, errors after the rest; `status` is -1 where it could not be run."""

    status: int
    text: str

    @property
    def is_good(self) -> bool:
        return self.status == 0


def printed(*argv: str, seconds: float = 10.0) -> Printed:
    """Run a program for its output."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Printed(-1, str(error))
    return Printed(done.returncode, (done.stdout + done.stderr).strip())
