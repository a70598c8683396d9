"""Every operation in plain torch: the definition the other backends are compared with, and what CPU and CUDA run."""

from engines.paged.ops.reference.ops import ReferenceOps

__all__ = ["ReferenceOps"]
