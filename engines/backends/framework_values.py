"""Datatypes and strings as frameworks have them: their names of dtypes, `str` in place of `bytes`, BF16 as uint16."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engines.core.datatypes import Array
from engines.core.errors import invalid

_DATATYPES = {"float16": "FP16", "float": "FP32", "float32": "FP32", "double": "FP64", "float64": "FP64"}
_DATATYPES |= {"bfloat16": "BF16", "string": "BYTES"}
_NAMES = {"BOOL": "bool", "FP16": "float16", "FP32": "float32", "FP64": "float64", "BF16": "bfloat16"}


def datatype_of_name(name: str) -> str:
    """The V2 datatype of a framework's dtype, by its name."""
    return _DATATYPES.get(name, name.upper())


def name_of_datatype(datatype: str) -> str:
    """The name of a dtype, by its V2 datatype."""
    return _NAMES.get(datatype, datatype.lower())


def decoded(name: str, array: Array) -> list[str]:
    """The elements of an input of strings. Raises: EngineError for one that is not UTF-8."""
    try:
        return [element.decode() for element in array.reshape(-1)]
    except UnicodeDecodeError as error:
        raise invalid(f"input '{name}' has a string that is not UTF-8: {error}") from error


def strings(elements: Sequence[bytes] | Sequence[str], shape: tuple[int, ...]) -> Array:
    """An array of objects, which numpy makes of no sequence of strings by itself."""
    array = np.empty(shape, object)
    array.reshape(-1)[:] = elements
    return array


def without_bfloat16(array: Array) -> Array:
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array
