"""The operations in plain torch: the definition that other backends are compared with, and the backend of CUDA."""

from engines.paged.ops.reference.ops import Ops

__all__ = ["Ops"]
