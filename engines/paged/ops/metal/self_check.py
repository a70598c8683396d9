"""The startup check: whether this machine's GPU computes what the reference does.

Each operation is tried on small inputs. One that raises or disagrees is replaced by the reference's on the same device,
with a warning that names it: the engine is slower, and right. The replacement is tried by the same cases, as torch's
MPS has been silently wrong in several releases; where it is wrong too, the engine refuses to start. Where dispatches do
not run in order, all operations are replaced.

The verdict is stored in the cache folder for later starts. Its file depends on torch, the system, the GPU, the sources
of the kernels and of the code that runs and checks them, and the options. Failures may have passing causes (memory of
another program, a GPU reset) and expire after a day. A wrong replacement is never stored. Without a readable or
writable file each start checks.
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from engines.core.errors import unavailable
from engines.paged.ops import cpp_compiler
from engines.paged.ops.interface import Batch, LayerCache
from engines.paged.ops.metal.attention import MAX_DECODE_ROWS
from engines.paged.ops.metal.check_cases import GROUPS, Case, cases
from engines.paged.ops.metal.kernels import KERNELS
from engines.paged.ops.metal.ops import MetalOps
from engines.paged.ops.reference import Ops

# Both compute `attention`: sequences of few rows, and prompts.
DECODE, PREFILL = "attention_decode", "attention_prefill"


class ComposedOps:
    """Metal's operations; `fallback` computes the groups (check_cases.GROUPS) in `replaced`, which has the reasons."""

    def __init__(self, metal: MetalOps, fallback: Ops, replaced: Mapping[str, str]) -> None:
        self.replaced = dict(replaced)
        self._metal, self._fallback = metal, fallback
        self._methods = {method for group in replaced for method in GROUPS[group]}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fallback if name in self._methods else self._metal, name)

    def attention(self, q: Tensor, cache: LayerCache, batch: Batch, scale: float, window: int) -> Tensor:
        """A whole step goes to the fallback where one of its kernels is replaced."""
        ops = self._fallback if self._needed(batch) & self.replaced.keys() else self._metal
        return ops.attention(q, cache, batch, scale, window)

    def _needed(self, batch: Batch) -> set[str]:
        """The groups of this step's attention. In deterministic mode a row's result may not change with its step, so
        both kernels are replaced together."""
        if self._metal.is_deterministic or batch.is_reproducible:
            return {DECODE, PREFILL}
        return {PREFILL if length > MAX_DECODE_ROWS else DECODE for length in batch.query_lens_list}


FAILURES_LAST_SECONDS = 24 * 3600
_OPS = Path(__file__).parents[1]
# Sources that decide how kernels are run and checked, beside the kernels.
_SOURCES = ((KERNELS, "*.metal"), (_OPS, "*.py"), (_OPS / "metal", "*.py"), (_OPS / "reference", "*.py"))

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VerdictFile:
    """Failed groups of operations and the reasons, as `{"failed": {group: reason}}`."""

    path: Path

    def read(self) -> dict[str, str] | None:
        """None where there is no valid verdict."""
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
        """Atomically: other processes may read it meanwhile."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self.path.parent, encoding="utf-8", delete=False) as file:
                json.dump({"failed": dict(failed)}, file)
            Path(file.name).replace(self.path)
        except OSError as error:
            _log.info("the kernels' check is repeated at the next start: cannot write %s: %s", self.path, error)


def verdict_file(ops: MetalOps, dtypes: Sequence[torch.dtype]) -> VerdictFile:
    """The verdict's file for these operations on this machine."""
    options = (ops.name, ops.gpu_cores, ops.is_deterministic, *map(str, dtypes))
    facts = (torch.__version__, platform.platform(), platform.version(), gpu_name(), *map(str, options))
    digest = hashlib.sha256("\0".join(facts).encode())
    for folder, pattern in _SOURCES:
        for path in sorted(folder.glob(pattern)):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return VerdictFile(cpp_compiler.cache_root() / "metal-self-check" / f"{digest.hexdigest()[:40]}.json")


def gpu_name() -> str:
    """Of this Mac, "Apple M2 Pro"; elsewhere, or with an older torch, the processor's."""
    if torch.backends.mps.is_available() and hasattr(torch.backends.mps, "get_name"):
        return torch.backends.mps.get_name()
    return platform.processor()


ORDERING_ROUNDS = 1000
ORDERING_NUMBERS = 4096
# Largest difference from the reference, relative to the largest result: rounding of T, and other orders of sums.
TOLERANCES = {torch.float32: 1e-4, torch.float16: 8e-3, torch.bfloat16: 6e-2}


def checked(
    ops: MetalOps,
    dtypes: Sequence[torch.dtype] = (torch.float16, torch.bfloat16),
    *,
    replacement: Ops | None = None,
    verdict: VerdictFile | None = None,
) -> Ops:
    """These operations, with those that fail replaced. Uses the GPU and releases it, before the engine's thread comes.

        replacement  computes what fails, itself checked; None: the reference on the same device
        verdict      used where it is valid, else written; None: checked each time

    Raises: EngineError where the replacement is wrong too.
    """
    replacement = replacement or Ops(ops.device)
    failed = verdict.read() if verdict is not None else None
    if failed is None:
        failed = find_failures(ops, dtypes)
        _check_replacement(replacement, dtypes, failed)
        ops.synchronize()
        ops.kernels.release_thread()
        if verdict is not None:
            verdict.write(failed)
    if not failed:
        return ops
    for group, reason in sorted(failed.items()):
        _log.warning("Metal's '%s' is not used on this machine, torch computes it, slower: %s", group, reason)
    return cast(Ops, ComposedOps(ops, replacement, failed))


def find_failures(ops: MetalOps, dtypes: Sequence[torch.dtype]) -> dict[str, str]:
    """Groups of operations (check_cases.GROUPS) that disagree with the reference, and the first reason for each."""
    if reason := _disorder(ops):
        return dict.fromkeys(GROUPS, reason)
    return disagreements(ops, dtypes, GROUPS)


def disagreements(ops: Ops, dtypes: Sequence[torch.dtype], groups: Collection[str]) -> dict[str, str]:
    """Which of these groups `ops` computes differently from the reference on the CPU, and the first reason for each."""
    failed: dict[str, str] = {}
    reference = Ops("cpu")
    for dtype in dtypes:
        for case in cases(dtype):
            if case.group == "replay" and failed:
                continue  # replay is checked only where all operations are right: mixed steps are not captured
            is_due = case.group in groups and case.group not in failed
            if is_due and (reason := _disagreement(case, ops, reference)):
                failed[case.group] = f"{case.name} in {str(dtype).removeprefix('torch.')}: {reason}"
    return failed


def _check_replacement(replacement: Ops, dtypes: Sequence[torch.dtype], failed: Mapping[str, str]) -> None:
    wrong = disagreements(replacement, dtypes, failed)
    if not wrong:
        return
    group, reason = min(wrong.items())
    raise unavailable(
        f"ops: this machine's GPU computes '{group}' wrong, by Metal's kernel ({failed[group]}) and by torch "
        f"{torch.__version__} ({reason}): use device 'cpu', or update the system or torch"
    )


def _disagreement(case: Case, ops: Ops, reference: Ops) -> str:
    """Empty where both agree."""
    expected = case.compute(reference)
    try:
        results = [result.cpu() for result in case.compute(ops)]
    except (RuntimeError, SyntaxError, TypeError, ValueError) as error:  # the errors of torch.mps and Metal's compiler
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    for result, right in zip(results, expected, strict=True):
        if case.is_exact:
            if not torch.equal(result, right):
                return "a result differs"
            continue
        if not bool(result.isfinite().all()):
            return "a result is not a number"
        allowed = TOLERANCES[right.dtype] * max(1.0, float(right.abs().max()))
        farthest = float((result.float() - right.float()).abs().max())
        if farthest > allowed:
            return f"a result is off by {farthest:.2g}, where {allowed:.2g} is allowed"
    return ""


def _disorder(ops: MetalOps) -> str:
    """Run two dependent kernels alternately; empty where every dispatch has seen the previous one's result."""
    try:
        a = torch.arange(ORDERING_NUMBERS, dtype=torch.int32, device=ops.device)
        b = torch.empty_like(a)
        library = ops.kernels.load("ordering")
        for _ in range(ORDERING_ROUNDS):
            library.run("ordering_forth", (ORDERING_NUMBERS // 256,), 256, b, a)
            library.run("ordering_back", (ORDERING_NUMBERS // 256,), 256, a, b)
    except (RuntimeError, SyntaxError) as error:
        return f"the first kernel failed: {error}"
    right = torch.arange(ORDERING_NUMBERS)
    for _ in range(ORDERING_ROUNDS):
        right = (right + 1).roll(-1) * 3 % 65521
    return "" if torch.equal(a.cpu().long(), right) else "dispatches do not run one after the other"
