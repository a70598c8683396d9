"""The datatypes of the V2 protocol."""

from __future__ import annotations

import pytest

from gateway.protocol.datatypes import DATATYPES, data_bytes


@pytest.mark.parametrize(
    "datatype, shape, expected",
    [
        ("BOOL", (8,), 8),
        ("FP16", (2, 2), 8),
        ("BF16", (3,), 6),
        ("FP32", (1, 3, 224, 224), 602112),
        ("INT64", (), 8),
        ("FP64", (0, 5), 0),
        ("BYTES", (1,), None),
        ("FLOAT", (1,), None),
    ],
)
def test_shape_and_datatype_tell_the_size(datatype: str, shape: tuple[int, ...], expected: int | None) -> None:
    """A scalar has one element; BYTES and unknown datatypes have no size of their own."""
    assert data_bytes(datatype, shape) == expected


def test_the_protocol_has_fourteen_datatypes() -> None:
    """The protocol has thirteen datatypes of fixed size, and BYTES."""
    assert len(DATATYPES) == 14
