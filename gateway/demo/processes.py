"""The demo's child processes: started, waited for, stopped."""

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

# A second SIGTERM stops a process at once; its own children end with it only if it is not killed.
_MORE_SECONDS = 5.0
_POLL_SECONDS = 0.05
_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


class DemoError(Exception):
    """The demo cannot continue; the message names the reason."""


def start(
    stack: ExitStack,
    name: str,
    command: Sequence[str],
    ready: Path,
    *,
    within: float,
    timeout: float,
    log: Path | None = None,
    variables: Mapping[str, str] = _NO_VARIABLES,
) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """Start `python -m ...` and wait for its ready file, whose JSON is returned with the process.

    `variables` are added to its environment. When the stack is left it is stopped: by SIGTERM, again after `timeout`
    seconds, then by SIGKILL. Its output goes to `log`, or is inherited.
    Raises: DemoError where it does not start; without a log its output has the reason.
    """
    with ExitStack() as files:
        output = files.enter_context(log.open("wb")) if log is not None else None
        # A session of its own: Ctrl-C reaches this process only, which stops the child.
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            start_new_session=True,
            stdout=output,
            stderr=output,
            env={**os.environ, **variables},
        )
    stack.callback(_stop, process, timeout)
    deadline = time.monotonic() + within
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            reason = "see above." if log is None else "its log ends:\n" + "\n".join(_tail(log))
            raise DemoError(f"{name} did not start; {reason}")
        time.sleep(_POLL_SECONDS)
    ready_json: dict[str, Any] = json.loads(ready.read_text())
    return process, ready_json


def _tail(log: Path) -> list[str]:
    return log.read_text(errors="replace").splitlines()[-20:]


def _stop(process: subprocess.Popen[bytes], timeout: float) -> None:
    for seconds in (timeout, _MORE_SECONDS):
        process.terminate()
        try:
            process.wait(seconds)
            return
        except subprocess.TimeoutExpired:
            pass
    process.kill()
    process.wait()
