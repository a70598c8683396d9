"""At startup: does this machine's GPU compute what the reference does?

Each operation is tried on small inputs. One that raises or disagrees is replaced by the reference's on the same
device, and named in a warning: the engine is slower, and right. The replacement is tried by the same cases: torch's MPS
has been silently wrong in several releases. Where it is wrong too, the engine refuses to start. Where dispatches do not
run in order, nothing can be trusted, and all are replaced.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from engines.core.errors import unavailable
from engines.paged.ops.interface import Ops
from engines.paged.ops.metal.check_cases import GROUPS, Case, cases
from engines.paged.ops.metal.composed_ops import ComposedOps
from engines.paged.ops.metal.ops import MetalOps
from engines.paged.ops.metal.verdict import VerdictFile
from engines.paged.ops.reference import ReferenceOps

ORDERING_ROUNDS = 1000
ORDERING_NUMBERS = 4096
# How far results may lie from the reference's, for each 1 of their largest: roundings of T, and sums in another order.
TOLERANCES = {torch.float32: 1e-4, torch.float16: 8e-3, torch.bfloat16: 6e-2}

log = logging.getLogger(__name__)


def checked(
    ops: MetalOps,
    dtypes: Sequence[torch.dtype] = (torch.float16, torch.bfloat16),
    *,
    replacement: Ops | None = None,
    verdict: VerdictFile | None = None,
) -> Ops:
    """These operations, those that fail the check replaced. It uses the GPU and lets go of it, before the engine's
    thread comes.

    replacement  computes what fails, itself checked; None: the reference on the same device
    verdict      trusted where it holds a verdict, and written where it does not; None: checked each time

    Raises: EngineError where the replacement is wrong too.
    """
    replacement = replacement or ReferenceOps(ops.device)
    failed = verdict.read() if verdict is not None else None
    if failed is None:
        failed = find_failures(ops, dtypes)
        _check_replacement(replacement, dtypes, failed)
        ops.synchronize()
        ops.kernels.release_thread()
        if verdict is not None:
            verdict.write(failed)
    if not failed:
        return cast(Ops, ops)
    for group, reason in sorted(failed.items()):
        log.warning("Metal's '%s' is not used on this machine, torch computes it, slower: %s", group, reason)
    return cast(Ops, ComposedOps(ops, replacement, failed))


def find_failures(ops: MetalOps, dtypes: Sequence[torch.dtype]) -> dict[str, str]:
    """Groups of operations (check_cases.GROUPS) that do not agree with the reference, and the first reason for each."""
    if reason := _disorder(ops):
        return dict.fromkeys(GROUPS, reason)
    return disagreements(cast(Ops, ops), dtypes, GROUPS)


def disagreements(ops: Ops, dtypes: Sequence[torch.dtype], groups: Collection[str]) -> dict[str, str]:
    """Which of these groups `ops` computes otherwise than the reference on the CPU, and the first reason for each."""
    failed: dict[str, str] = {}
    reference = ReferenceOps("cpu")
    for dtype in dtypes:
        for case in cases(dtype):
            if case.group == "replay" and failed:
                continue  # of operations that are right alone; steps with others are not captured anyway
            wanted = case.group in groups and case.group not in failed
            if wanted and (reason := _disagreement(case, ops, reference)):
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


def _disagreement(case: Case, ops: Ops, reference: ReferenceOps) -> str:
    """Empty where both agree."""
    expected = case.compute(cast(Ops, reference))
    try:
        results = [result.cpu() for result in case.compute(ops)]
    except (RuntimeError, SyntaxError, TypeError, ValueError) as error:  # what torch.mps and Metal's compiler raise
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    for result, right in zip(results, expected, strict=True):
        if case.is_exact:
            if not torch.equal(result, right):
                return "a result differs"
        elif (reason := _distance(result, right)) is not None:
            return reason
    return ""


def _distance(result: Tensor, right: Tensor) -> str | None:
    """What is said of a result too far from the right one; None of one near enough."""
    if not bool(result.isfinite().all()):
        return "a result is not a number"
    allowed = TOLERANCES[right.dtype] * max(1.0, float(right.abs().max()))
    farthest = float((result.float() - right.float()).abs().max())
    return f"a result is off by {farthest:.2g}, where {allowed:.2g} is allowed" if farthest > allowed else None


def _disorder(ops: MetalOps) -> str:
    """Runs two dependent kernels in turn; empty where every dispatch has seen what the one before wrote."""
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
