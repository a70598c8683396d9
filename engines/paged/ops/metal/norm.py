"""The residual stream and its norms."""

from __future__ import annotations

from torch import Tensor

from engines.paged.ops.metal.base import KernelFamily, check

GROUP = 256  # kernels/norm.metal: NORM_THREADS


class NormOps(KernelFamily):
    def add_rmsnorm(self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See the contract: the residual is written in place."""
        n, width = x.shape
        check("the norm's weight", weight, x.dtype)
        y = self.new(n, width, dtype=x.dtype)
        library = self.kernels.load("norm", T=x.dtype, WIDTH=width)
        if residual is None:
            library.run("rmsnorm", (n,), GROUP, y, x, x, weight, float(eps))
            return y, x
        check("residual", residual, x.dtype)
        library.run("add_rmsnorm", (n,), GROUP, y, residual, x, weight, float(eps))
        return y, residual
