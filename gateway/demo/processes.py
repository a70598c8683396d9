"""Programs that the demo runs beside itself: started, waited for, stopped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

# SIGTERM, and once more, which stops it at once: its own children end with it only where it ends by itself.
_MORE_SECONDS = 5.0
_POLL_SECONDS = 0.05
_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


class DemoError(Exception):
    """The demo cannot go on; the message says why."""


def start(
    stack: ExitStack,
    name: str,
    command: Sequence[str],
    ready: Path,
    *,
    within: float,
    patience: float,
    log: Path | None = None,
    variables: Mapping[str, str] = _NO_VARIABLES,
) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """Start `python -m ...` and wait for its ready file, whose JSON is returned with the process.

    `variables` are added to its environment.
    It is stopped when the stack is left: by SIGTERM, after `patience` seconds once more, then by SIGKILL. Its output
    goes to `log`, or where ours goes.
    Raises: DemoError where it does not start; without a log it has said why itself.
    """
    with ExitStack() as files:
        output = files.enter_context(log.open("wb")) if log is not None else None
        # A session of its own: Ctrl-C comes to us alone, and it stops when we say so.
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            start_new_session=True,
            stdout=output,
            stderr=output,
            env={**os.environ, **variables},
        )
    stack.callback(_stop, process, patience)
    deadline = time.monotonic() + within
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            why = "see above." if log is None else "its log ends:\n" + "\n".join(_tail(log))
            raise DemoError(f"{name} did not start; {why}")
        time.sleep(_POLL_SECONDS)
    told: dict[str, Any] = json.loads(ready.read_text())
    return process, told


def _tail(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-20:]


def _stop(process: subprocess.Popen[bytes], patience: float) -> None:
    for seconds in (patience, _MORE_SECONDS):
        process.terminate()
        try:
            process.wait(seconds)
            return
        except subprocess.TimeoutExpired:
            pass
    process.kill()
    process.wait()
