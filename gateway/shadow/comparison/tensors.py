"""The comparison of two tensors, element by element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.config.experiment_specs import ShadowSpec, ToleranceSpec

Array = NDArray[Any]

_DTYPES = {
    "BOOL": "u1",
    **{f"UINT{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
    "BF16": "<u2",  # the upper half of an FP32
}


@dataclass(frozen=True, slots=True)
class ComparedTensor:
    """An output with its values; BF16 is widened to FP32."""

    datatype: str
    values: Array


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """One output. Figures of finite values cover elements that are finite on both sides; `excess` is the largest
    deviation as a multiple of the tolerance: more than 1 differs.

    `argmax` is the share of rows with the same one, `top_k` the share of the k largest in both; None where the last
    axis has one element.
    """

    name: str
    problem: str  # "" where the values are comparable
    shape: tuple[int, ...]
    max_absolute: float = 0.0
    max_relative: float = 0.0
    mean_absolute: float = 0.0
    cosine: float | None = None
    argmax: float | None = None
    top_k: float | None = None
    outside: int = 0  # elements beyond the tolerance, including those that are finite on one side only
    nonfinite: int = 0  # NaN or infinite on one side only, or infinite with the other sign
    excess: float = 0.0
    index: tuple[int, ...] = ()  # of the largest deviation; then both values there
    primary: float | None = None
    candidate: float | None = None

    @property
    def agrees(self) -> bool:
        return not self.problem and not self.outside


def tensor_of_raw(datatype: str, shape: tuple[int, ...], raw: bytes) -> ComparedTensor:
    """Parse a tensor's raw form.

    Raises: ValueError where the data does not fit the shape, or the datatype is unknown.
    """
    if datatype not in _DTYPES:
        raise ValueError(f"its datatype is {datatype!r}")
    values: Array = np.frombuffer(raw, _DTYPES[datatype])
    if datatype == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return ComparedTensor(datatype, values.reshape(shape))


def compare(
    name: str, primary: ComparedTensor | None, candidate: ComparedTensor | None, spec: ShadowSpec
) -> TensorDifference:
    """Compare one output; None: that side lacks it."""
    if primary is None or candidate is None:
        present = candidate if primary is None else primary
        assert present is not None
        return TensorDifference(
            name, f"only the {'candidate' if primary is None else 'primary'} has it", present.values.shape
        )
    a, b = primary.values, candidate.values
    if a.shape != b.shape:
        return TensorDifference(name, f"shape {list(a.shape)} became {list(b.shape)}", a.shape)
    problem = "" if primary.datatype == candidate.datatype else f"{primary.datatype} became {candidate.datatype}"
    if not a.size:
        return TensorDifference(name, problem, a.shape)
    return _compared(name, problem, a, b, spec)


def _compared(name: str, problem: str, a: Array, b: Array, spec: ShadowSpec) -> TensorDifference:
    tolerance = spec.tolerance
    with np.errstate(all="ignore"):
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        is_finite = np.isfinite(wide_a) & np.isfinite(wide_b)
        absolute = _absolute(a, b, wide_a, wide_b)
        larger = np.maximum(np.abs(wide_a), np.abs(wide_b))
        relative = np.where(larger > 0, absolute / larger, 0.0)
        alike = (wide_a == wide_b) | (np.isnan(wide_a) & np.isnan(wide_b))
        excess = np.where(alike, 0.0, np.where(is_finite, _excess(absolute, relative, tolerance), np.inf))
        worst = np.unravel_index(int(np.argmax(excess * 1.0)), excess.shape)
        if excess[worst] in (0.0, np.inf) and is_finite.any():
            deviation = np.where(is_finite, absolute, np.inf if excess[worst] else 0.0)
            worst = np.unravel_index(int(np.argmax(deviation)), excess.shape)
        finite_absolute, finite_relative = absolute[is_finite], relative[is_finite]
        argmax, top_k = _ranks(wide_a, wide_b, spec.top_k)
        return TensorDifference(
            name,
            problem,
            a.shape,
            max_absolute=float(finite_absolute.max(initial=0.0)),
            max_relative=float(finite_relative.max(initial=0.0)),
            mean_absolute=float(finite_absolute.mean()) if finite_absolute.size else 0.0,
            cosine=_cosine(wide_a[is_finite], wide_b[is_finite]),
            argmax=argmax,
            top_k=top_k,
            outside=int((excess > 1).sum()),
            nonfinite=int((~is_finite & ~alike).sum()),
            excess=float(excess.max()),
            index=tuple(int(axis) for axis in worst),
            primary=float(wide_a[worst]),
            candidate=float(wide_b[worst]),
        )


def _absolute(a: Array, b: Array, wide_a: Array, wide_b: Array) -> Array:
    """|a - b|, exact for integers of 64 bits too, which no float holds."""
    if a.dtype.kind in "iu" and a.dtype == b.dtype:
        larger, smaller = np.maximum(a, b), np.minimum(a, b)
        unsigned = larger.astype(np.uint64) - smaller.astype(np.uint64)  # wraps to the true difference
        return unsigned.astype(np.float64)
    difference: Array = np.abs(wide_a - wide_b)
    return difference


def _excess(absolute: Array, relative: Array, tolerance: ToleranceSpec) -> Array:
    """Deviations as multiples of the tolerance; meeting either bound suffices."""
    by_absolute = np.divide(absolute, tolerance.absolute)  # a bound of 0 divides to infinity
    by_relative = np.divide(relative, tolerance.relative)
    smaller: Array = np.fmin(by_absolute, by_relative)
    return smaller


def _cosine(a: Array, b: Array) -> float | None:
    """The cosine of both as vectors; None where one is zero."""
    scale_a, scale_b = np.abs(a).max(initial=0.0), np.abs(b).max(initial=0.0)
    if not (scale_a > 0 and scale_b > 0):
        return None
    a, b = a / scale_a, b / scale_b  # squares of large values would overflow
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return min(1.0, max(-1.0, float(np.dot(a, b)) / norm)) if norm else None


def _ranks(a: Array, b: Array, top_k: int) -> tuple[float | None, float | None]:
    """The share of rows of the last axis with the same argmax, and the share of the k largest in both. Equal values
    count as the same place."""
    if not a.ndim or a.shape[-1] < 2 or np.isnan(a).any() or np.isnan(b).any():
        return None, None
    size = a.shape[-1]
    rows_a, rows_b = a.reshape(-1, size), b.reshape(-1, size)
    best = np.take_along_axis(rows_b, rows_a.argmax(-1)[:, None], -1)[:, 0]
    argmax = float((best == rows_b.max(-1)).mean())
    k = min(top_k, size)
    chosen = np.argpartition(rows_a, size - k, -1)[:, size - k :]
    bound = np.partition(rows_b, size - k, -1)[:, size - k, None]
    return argmax, float((np.take_along_axis(rows_b, chosen, -1) >= bound).mean())
