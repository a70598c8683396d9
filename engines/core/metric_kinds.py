"""The kinds of custom metrics, and what changes them.

Source: Triton core `src/metric_family.cc`.
"""

from __future__ import annotations

from engines.core.errors import EngineError, ErrorCode, invalid

# A number; or, to merge into a histogram, the number of new observations in each bucket, and their sum.
Change = float | tuple[tuple[int, ...], float]

KINDS = ("counter", "gauge", "histogram")

# The kinds that have each operation.
_ALLOWED = {
    "increment": ("counter", "gauge"),
    "set": ("gauge",),
    "observe": ("histogram",),
    "merge": ("histogram",),
}


def check_change(kind: str, operation: str, value: Change) -> None:
    """Raises: EngineError where a metric of this kind lacks the operation, or it takes another value."""
    if kind not in _ALLOWED[operation]:
        raise unsupported(kind, operation.capitalize())
    if isinstance(value, tuple) != (operation == "merge"):
        raise invalid("'merge' takes counts and their sum, the other operations a number")
    if kind == "counter" and not isinstance(value, tuple) and value < 0:
        raise invalid("TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values.")


def unsupported(kind: str, operation: str) -> EngineError:
    return EngineError(ErrorCode.UNSUPPORTED, f"TRITONSERVER_METRIC_KIND_{kind.upper()} does not support {operation}")
