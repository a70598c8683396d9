"""Every operation in plain torch: the definition that other backends are compared with, and the backend of CPU and
CUDA."""

from engines.paged.ops.reference.ops import ReferenceOps

__all__ = ["ReferenceOps"]
