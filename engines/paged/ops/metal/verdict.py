"""The self-check's verdict, kept in the cache folder: a second start of the same kernels on the same machine trusts it.

A verdict belongs to all that it depends on: torch, the system, the GPU, the sources of the kernels and of the code that
runs and judges them, and the options. Any change makes another file, so that none is ever wrong by age. Failures may
have passing causes (memory that another program holds, a GPU that was reset): they are checked again after a day. That
the replacement is wrong too is never kept. A file that cannot be read is no verdict; where none can be written, each
start checks.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from engines.paged.ops import cpp_compiler
from engines.paged.ops.metal.check_cases import GROUPS
from engines.paged.ops.metal.kernels import KERNELS
from engines.paged.ops.metal.ops import MetalOps

FAILURES_LAST_SECONDS = 24 * 3600
_OPS = Path(__file__).parents[1]
# What decides how kernels are run and judged, beside their own sources.
_SOURCES = ((KERNELS, "*.metal"), (_OPS, "*.py"), (_OPS / "metal", "*.py"), (_OPS / "reference", "*.py"))

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VerdictFile:
    """Groups of operations that failed, and why, as `{"failed": {group: reason}}`."""

    path: Path

    def read(self) -> dict[str, str] | None:
        """None where there is no verdict that holds."""
        try:
            failed = json.loads(self.path.read_text("utf-8"))["failed"]
            age = time.time() - self.path.stat().st_mtime
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if not isinstance(failed, dict) or not all(isinstance(reason, str) for reason in failed.values()):
            return None
        if not failed.keys() <= GROUPS.keys() or (failed and not 0 <= age < FAILURES_LAST_SECONDS):
            return None
        return failed

    def write(self, failed: Mapping[str, str]) -> None:
        """Whole or not at all: other processes may read it meanwhile."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self.path.parent, encoding="utf-8", delete=False) as file:
                json.dump({"failed": dict(failed)}, file)
            Path(file.name).replace(self.path)
        except OSError as error:
            _log.info("the kernels' check is repeated at the next start: cannot write %s: %s", self.path, error)


def verdict_file(ops: MetalOps, dtypes: Sequence[torch.dtype]) -> VerdictFile:
    """Where the verdict on these operations, on this machine, is kept."""
    options = (ops.name, ops.gpu_cores, ops.is_deterministic, *map(str, dtypes))
    facts = (torch.__version__, platform.platform(), platform.version(), gpu_name(), *map(str, options))
    digest = hashlib.sha256("\0".join(facts).encode())
    for folder, pattern in _SOURCES:
        for path in sorted(folder.glob(pattern)):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return VerdictFile(cpp_compiler.cache_root() / "metal-self-check" / f"{digest.hexdigest()[:40]}.json")


def gpu_name() -> str:
    """Of this Mac, "Apple M2 Pro"; elsewhere, and where this torch has no word for it, the processor's."""
    if torch.backends.mps.is_available() and hasattr(torch.backends.mps, "get_name"):
        return torch.backends.mps.get_name()
    return platform.processor()
