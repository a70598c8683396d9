"""Tensors in TF Serving's JSON."""

import json
import struct
from typing import Any

import orjson
import pytest
from hypothesis import given, settings

from gateway.protocol.conversion import triton_json
from gateway.protocol.conversion.json_tensors import read_tensor as read
from gateway.protocol.conversion.tensors import RawTensor
from gateway.protocol.tfserving.predict import columns
from tests.protocol.conversion import inferences

NAN, INFINITY = float("nan"), float("inf")
LARGEST = "1.7976931348623157e+308"  # twice this value is infinite


def value(tensor: RawTensor) -> Any:
    return columns((tensor,))[tensor.name]


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def texts(*values: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(value)) + value for value in values)


WRITTEN = [
    ("FP32", (3,), floats(1, -0.0, 0.5), "[1.0,-0.0,0.5]"),
    ("FP32", (), floats(2.5), "2.5"),
    ("FP32", (2, 2), floats(NAN, INFINITY, -INFINITY, 1), "[[NaN,Infinity],[-Infinity,1.0]]"),
    ("FP32", (), floats(NAN), "NaN"),
    ("FP64", (2,), struct.pack("<2d", 1.7976931348623157e308, 1.7976931348623157e308), f"[{LARGEST},{LARGEST}]"),
    ("FP16", (2,), struct.pack("<2e", 1.5, -INFINITY), "[1.5,-Infinity]"),
    ("BF16", (3,), struct.pack("<3H", 0x3FC0, 0x8000, 0x7F80), "[1.5,-0.0,Infinity]"),
    ("BOOL", (2, 1), b"\0\x02", "[[false],[true]]"),
    ("BOOL", (), b"\x01", "true"),
    ("INT8", (1, 2), b"\x80\x7f", "[[-128,127]]"),
    ("UINT64", (1,), b"\xff" * 8, "[18446744073709551615]"),
    ("INT64", (1,), b"\0" * 7 + b"\x80", "[-9223372036854775808]"),
    ("FP32", (2, 0, 3), b"", "[[],[]]"),
    ("FP32", (0, 4), b"", "[]"),
    ("BYTES", (2,), texts(b"a", "gr\u00fcn".encode()), '["a","gr\u00fcn"]'),
    ("BYTES", (1, 2), texts(b"\xff", b""), '[[{"b64":"/w=="},""]]'),
    ("BYTES", (), texts(b"a\0b"), '"a\\u0000b"'),
]


@pytest.mark.parametrize("datatype, shape, raw, text", WRITTEN, ids=[f"{row[0]} {row[3]}" for row in WRITTEN])
def test_tensors_are_nested_lists(datatype: str, shape: tuple[int, ...], raw: bytes, text: str) -> None:
    """Tensors are nested lists in the tensor's shape, with bare tokens for NaN and infinities."""
    assert orjson.dumps(value(RawTensor("x", datatype, shape, raw))).decode() == text


def test_names_that_make_text_base64() -> None:
    """Text is base64 under names with TF Serving's suffix, and under the name `b64`."""
    for name in ("image_bytes", "b64"):
        assert value(RawTensor(name, "BYTES", (1,), texts(b"a"))) == [{"b64": "YQ=="}]
    assert value(RawTensor("bytes", "BYTES", (1,), texts(b"a"))) == ["a"]


@pytest.mark.parametrize(
    "datatype, written, shape, raw",
    [
        ("FP32", [1, 2.5], (2,), floats(1, 2.5)),
        ("FP32", 3, (), floats(3)),
        ("FP32", [[NAN], [INFINITY]], (2, 1), floats(NAN, INFINITY)),
        ("BYTES", ["a", {"b64": "/w=="}], (2,), texts(b"a", b"\xff")),
        ("BYTES", {"b64": ""}, (), texts(b"")),
        ("BYTES", "\udcff", (), texts(b"\xff")),
        ("INT8", [[1], [-1]], (2, 1), b"\x01\xff"),
        ("BOOL", True, (), b"\x01"),
        (None, [True], (1,), b"\x01"),
        (None, [1, 2], (2,), struct.pack("<2q", 1, 2)),
        (None, [2**64 - 1], (1,), b"\xff" * 8),
        (None, [1, 2.5], (2,), struct.pack("<2d", 1, 2.5)),
        (None, ["a"], (1,), texts(b"a")),
        (None, [], (0,), b""),
    ],
)
def test_values_are_read(datatype: str | None, written: Any, shape: tuple[int, ...], raw: bytes) -> None:
    """Values are read as the signature's datatype, or as one that holds them if there is none."""
    found = read("x", datatype, written)
    assert (found.shape, found.raw) == (shape, raw)
    assert datatype is None or found.datatype == datatype


def test_an_empty_tensor_has_the_axes_of_its_signature() -> None:
    """An empty tensor takes the axes that JSON cannot show from its signature."""
    assert read("x", "FP32", [], (-1, 4, -1)).shape == (0, 4, 0)
    assert read("x", "FP32", [[], []], (2, -1, 3)).shape == (2, 0, 3)
    assert read("x", "FP32", [[], []], None).shape == (2, 0)


@pytest.mark.parametrize(
    "datatype, written, text",
    [
        ("FP32", [[1], [2, 3]], "its rows are not of one shape"),
        ("FP32", [[1], 2], "its rows are not of one shape"),
        ("FP32", [1, [2]], "an array in it, which is no FP32"),
        ("FP32", [None], "null in it, which is no FP32"),
        ("FP32", ["1"], "a string in it, which is no FP32"),
        ("INT32", [1.0], "a fraction in it, which is no INT32"),
        ("BYTES", [1], "neither text nor"),
        ("BYTES", [{"b64": "%"}], "its data is no base64"),
        ("BYTES", [{"b64": "YQ==", "x": 1}], "neither text nor"),
        ("BYTES", ["\ud800"], "half of a surrogate pair"),
        ("DT_COMPLEX64", [1], "datatype is 'DT_COMPLEX64'"),
        (None, [{"x": 1}], "neither text nor"),
    ],
)
def test_values_that_are_no_tensor(datatype: str | None, written: Any, text: str) -> None:
    """Values that form no tensor are rejected; the error describes the problem."""
    with pytest.raises(ValueError, match=text):
        read("x", datatype, written)


def test_a_shape_of_a_few_bytes_makes_nothing_large() -> None:
    """An empty tensor with a huge axis is rejected before its lists are allocated."""
    with pytest.raises(ValueError, match="too many lists"):
        value(RawTensor("x", "FP32", (2**40, 0), b""))


@pytest.mark.parametrize(
    "text, written",
    [
        (b'{"a": [1.0]}', {"a": [1.0]}),
        (b"[Infinity, -Infinity]", [INFINITY, -INFINITY]),
        (b'["NaN", "\\"Infinity"]', ["NaN", '"Infinity']),
        (b'["\xff"]', ["\udcff"]),
    ],
)
def test_bare_tokens_are_read(text: bytes, written: Any) -> None:
    """Bare NaN and infinity tokens are read outside strings; text may be invalid UTF-8."""
    assert triton_json.read(text) == written


@pytest.mark.parametrize("text", [b"", b"{", b"[NaN", b"[1,]", b"NaNs", b"[" * 100_000 + b"NaN"])
def test_what_is_no_json(text: bytes) -> None:
    """Invalid JSON raises a ValueError."""
    with pytest.raises(ValueError):
        triton_json.read(text)


@settings(max_examples=300, deadline=None)
@given(inferences.tensors())
def test_nothing_is_lost_on_the_way_to_json_and_back(tensor: inferences.Tensor) -> None:
    """Tensors of every datatype survive a round trip through JSON, except for NaN payloads; an empty tensor's axes
    come from its signature."""
    written = orjson.dumps(value(RawTensor(tensor.name, tensor.datatype, tuple(tensor.shape), tensor.raw)))
    found = read(tensor.name, tensor.datatype, triton_json.read(written), tensor.shape)
    assert (found.datatype, list(found.shape)) == (tensor.datatype, tensor.shape)
    assert canonical(tensor.datatype, bytes(found.raw)) == canonical(tensor.datatype, tensor.raw)
    assert repr(json.loads(written)) == repr(triton_json.read(written))


def canonical(datatype: str, raw: bytes) -> Any:
    """Raw data with all NaN values made equal."""
    if datatype == "BF16":
        return [half if (half & 0x7FFF) <= 0x7F80 else "NaN" for (half,) in struct.iter_unpack("<H", raw)]
    code = {"FP16": "e", "FP32": "f", "FP64": "d"}.get(datatype)
    return raw if code is None else [repr(number) for (number,) in struct.iter_unpack("<" + code, raw)]
