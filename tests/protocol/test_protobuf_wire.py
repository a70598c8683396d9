"""Protobuf's encoding, read without a schema."""

import pytest

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.protobuf_wire import MAX_FIELDS, fields


def test_fields_are_bounded() -> None:
    """A reader of any message's fields stops at a bound, which each empty one of two bytes counts to."""
    assert sum(1 for _ in fields(b"\x12\0" * MAX_FIELDS)) == MAX_FIELDS
    with pytest.raises(GatewayError) as refused:
        list(fields(b"\x12\0" * (MAX_FIELDS + 1)))
    assert refused.value.kind is ErrorKind.BODY_TOO_LARGE
