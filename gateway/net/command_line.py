"""The command line of this process, as `ps` shows it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

# Fields of proc_pid_stat(5), counted from the one behind the name: where the arguments begin and end.
_ARG_START, _ARG_END = 45, 46


def show_command_line(arguments: Sequence[str]) -> None:
    """Show these arguments instead of those that the process was started with, as far as there is room: Linux has them
    in the process' own memory. Elsewhere nothing changes."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        if 0 < start < end:
            text = b"".join(each.encode() + b"\0" for each in arguments)[: end - start - 1]
            ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)
