"""Checks that fail in different ways."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from engines.doctor.finding import Finding, ok


def raises() -> Finding:
    raise ValueError("the disk is upside down\nand more")


def crashes() -> Finding:
    os.kill(os.getpid(), signal.SIGSEGV)
    return ok("not reached")


def hangs(pid_file: str) -> Finding:
    child = subprocess.Popen(["sleep", "600"])
    with open(pid_file, "w") as file:  # noqa: PTH123
        file.write(f"{os.getpid()} {child.pid}")
    time.sleep(600)
    return ok("not reached")


def exits() -> Finding:
    sys.exit("no more")


def prints() -> Finding:
    print("a library's greeting")
    print('{"a": "stray line"}')
    return ok("found", number=1)
