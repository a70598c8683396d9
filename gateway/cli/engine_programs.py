"""Engines as programs: this process becomes `python -m engines NAME`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import NoReturn


def execute(name: str, arguments: Iterable[str]) -> NoReturn:
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "engines", name, *arguments])
