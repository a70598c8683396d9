"""At startup: does this machine's GPU compute what the reference does?

Each operation is tried on small inputs. One that raises or disagrees is replaced by the reference's on the same
device, and named in a warning: the engine is slower, and right. Where dispatches do not run in order, nothing can be
trusted, and all are replaced.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from engines.paged.ops.contract import Ops
from engines.paged.ops.metal.check_cases import GROUPS, Case, cases
from engines.paged.ops.metal.ops import MetalOps
from engines.paged.ops.reference import ReferenceOps

ORDERING_ROUNDS = 1000
ORDERING_NUMBERS = 4096
# How far results may lie from the reference's, for each 1 of their largest: roundings of T, and sums in another order.
TOLERANCES = {torch.float32: 1e-4, torch.float16: 8e-3, torch.bfloat16: 6e-2}

log = logging.getLogger(__name__)


class ComposedOps:
    """MetalOps with some of their operations taken from another backend. `replaced` says which, and why."""

    def __init__(self, metal: MetalOps, fallback: Ops, replaced: Mapping[str, str]) -> None:
        self.replaced = dict(replaced)
        self._metal, self._fallback = metal, fallback
        self._methods = {method for group in replaced for method in GROUPS[group]}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fallback if name in self._methods else self._metal, name)

    def __repr__(self) -> str:
        return f"<ComposedOps {self._metal!r} but for {', '.join(sorted(self.replaced))}>"


def checked(ops: MetalOps, dtypes: Sequence[torch.dtype] = (torch.float16, torch.bfloat16)) -> Ops:
    """These operations, those that fail the check replaced. It uses the GPU and lets go of it, before the engine's
    thread comes."""
    failed = find_failures(ops, dtypes)
    ops.synchronize()
    ops.kernels.release_thread()
    if not failed:
        return cast(Ops, ops)
    for group, reason in sorted(failed.items()):
        log.warning("Metal's '%s' is not used on this machine, torch computes it, slower: %s", group, reason)
    return cast(Ops, ComposedOps(ops, ReferenceOps(ops.device), failed))


def find_failures(ops: MetalOps, dtypes: Sequence[torch.dtype]) -> dict[str, str]:
    """Groups of operations (check_cases.GROUPS) that do not agree with the reference, and the first reason for each."""
    if reason := _disorder(ops):
        return dict.fromkeys(GROUPS, reason)
    failed: dict[str, str] = {}
    reference = ReferenceOps("cpu")
    for dtype in dtypes:
        for case in cases(dtype):
            if case.group == "replay" and failed:
                continue  # of operations that are right alone; steps with others are not captured anyway
            if case.group not in failed and (reason := _disagreement(case, ops, reference)):
                failed[case.group] = f"{case.name} in {str(dtype).removeprefix('torch.')}: {reason}"
    return failed


def _disagreement(case: Case, ops: MetalOps, reference: ReferenceOps) -> str:
    """Empty where both agree."""
    expected = case.compute(cast(Ops, reference))
    try:
        results = [result.cpu() for result in case.compute(cast(Ops, ops))]
    except (RuntimeError, SyntaxError, ValueError) as error:  # what torch.mps and Metal's compiler raise
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
