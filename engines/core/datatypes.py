"""The V2 datatypes as numpy's dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"UINT{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    "BF16": np.dtype("<u2"),
    "BYTES": np.dtype(object),
}
# By the number of the dtype: C has several types of one size.
_DATATYPES: dict[int, str] = {
    np.dtype(code).num: f"{family}{8 * np.dtype(code).itemsize}"
    for family, codes in {"INT": "bhilq", "UINT": "BHILQ", "FP": "efd"}.items()
    for code in codes
} | {np.dtype(bool).num: "BOOL", np.dtype(object).num: "BYTES", np.dtype(bytes).num: "BYTES"}


def numpy_datatype(datatype: str) -> np.dtype[Any]:
    """The dtype of a V2 datatype: uint16 for BF16 (the upper half of an FP32), object for BYTES. Raises: KeyError."""
    return _DTYPES[datatype]


def datatype_of(array: Array) -> str | None:
    """The V2 datatype of an array's elements; None if there is none."""
    return _DATATYPES.get(array.dtype.num)
