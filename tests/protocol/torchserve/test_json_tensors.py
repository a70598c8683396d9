"""Conversion between tensors and nested JSON."""

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
    """A tensor of a datatype that JSON supports survives a round trip bit for bit."""
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
    """Data that does not fit its shape, or that JSON cannot hold, raises a ValueError that names the problem."""
    with pytest.raises(ValueError, match=message):
        json_value(RawTensor("x", datatype, (2,), raw))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_any_value(value: Any) -> None:
    """Any JSON value yields a tensor or None; the tensor's size fits its shape."""
    tensor = tensor_of("x", value)
    if tensor is not None and tensor.datatype in ("INT64", "FP64"):
        assert len(tensor.raw) == 8 * prod(tensor.shape)
