"""Tensors as nested JSON, and back."""

from __future__ import annotations

import json
from math import prod
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.conversion.json_tensors import tensor_of
from gateway.protocol.conversion.tensors import RawTensor, raw_of_elements
from gateway.protocol.torchserve.request import json_value

ELEMENTS: dict[str, st.SearchStrategy[Any]] = {
    "INT64": st.integers(-(2**63), 2**63 - 1),
    "FP64": st.floats(allow_nan=False),
    "BOOL": st.booleans(),
    "BYTES": st.text(),
}


@st.composite
def tensors(draw: st.DrawFn) -> RawTensor:
    datatype = draw(st.sampled_from(sorted(ELEMENTS)))
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=4)))
    count = prod(shape)
    elements = draw(st.lists(ELEMENTS[datatype], min_size=count, max_size=count))
    return RawTensor("x", datatype, shape, raw_of_elements(datatype, elements))


@given(tensors())
def test_there_and_back(tensor: RawTensor) -> None:
    """A tensor of a datatype that JSON has is the same after it was JSON, in its shape and to the last bit."""
    assert tensor_of("x", json.loads(orjson.dumps(json_value(tensor)))) == tensor


@pytest.mark.parametrize(
    "datatype, raw, message",
    [
        ("FP32", b"\0" * 7, "7 bytes of data are not 2 elements of FP32"),
        ("BYTES", b"\x01\0\0\0a", "5 bytes of data are not 2 elements of BYTES"),
        ("FP8", b"\0\0", "its datatype is 'FP8', and none of"),
        ("BYTES", b"\x01\0\0\0\xff\0\0\0\0", "its data is not UTF-8"),
    ],
)
def test_no_values(datatype: str, raw: bytes, message: str) -> None:
    """Data that is not its shape's, or that JSON does not hold, is said to be so."""
    with pytest.raises(ValueError, match=message):
        json_value(RawTensor("x", datatype, (2,), raw))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_any_value(value: Any) -> None:
    """Whatever a handler answers is a tensor, or known to be none; its size is its shape's."""
    tensor = tensor_of("x", value)
    if tensor is not None and tensor.datatype in ("INT64", "FP64"):
        assert len(tensor.raw) == 8 * prod(tensor.shape)
