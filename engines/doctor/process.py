"""Runs a check in a process of its own: `python -m engines.doctor`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec

from engines.doctor.finding import Check, Finding, fail, skipped

_ATTACH = "attach this report to an issue"
_LAST_LINES = 12


def examine(check: Check) -> Finding:
    """Run a check. A crash, a hang and an exception are findings too."""
    if check.platforms and sys.platform not in check.platforms:
        return skipped(f"only on {' and '.join(check.platforms)}")
    missing = [name for name in check.needs if find_spec(name) is None]
    if missing:
        return skipped(f"{', '.join(missing)} not installed", f'pip install "pointsman[{check.extra}]"')
    command = [sys.executable, "-m", "engines.doctor", check.function, json.dumps(dict(check.arguments))]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True
    )
    try:
        printed, errors = process.communicate(timeout=check.seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        return fail(f"it did not end within {check.seconds:g} s", _ATTACH)
    except BaseException:  # Ctrl-C
        _end(process)
        raise
    return _finding(printed) or _crash(process.returncode, errors)


def _end(process: subprocess.Popen[str]) -> None:
    """Kill the check and the processes that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _finding(printed: str) -> Finding | None:
    """The finding in the last line; libraries may print before it."""
    try:
        return Finding.from_json(json.loads(printed.strip().rpartition("\n")[2]))
    except (ValueError, KeyError, TypeError):
        return None


def _crash(status: int, errors: str) -> Finding:
    lines = errors.strip().split("\n")[-_LAST_LINES:]
    if status < 0:
        return fail(f"it crashed: {signal.Signals(-status).name}", _ATTACH, errors=lines)
    return fail(f"it ended with status {status}: {lines[-1]}", _ATTACH, errors=lines)
