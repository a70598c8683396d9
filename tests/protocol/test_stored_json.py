"""JSON that others have written."""

import pytest

from gateway.protocol.stored_json import count_of, read_json_object, read_json_texts, time_of


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"1", b'{"a":1e999}', b'{"a":1' + b"0" * 400 + b"}", b'{"a":' * 100_000, b"\xff", b'{"a":NaN}'],
)
def test_what_is_no_object_is_a_value_error(text: bytes) -> None:
    """Infinite numbers and deep nesting as well."""
    with pytest.raises(ValueError):
        read_json_object(text)
    assert read_json_object(b'{"a": [1]}') == {"a": [1]}


def test_names_times_and_counts() -> None:
    """A list of texts, a time that dates can have, a count that all readers hold exactly."""
    for text in (b"{}", b"[1]", b'"ab"', b"[" * 100_000, b'["a", null]'):
        with pytest.raises(ValueError):
            read_json_texts(text)
    assert (read_json_texts('["a", "b"]'), time_of(17), count_of(3)) == (("a", "b"), 17.0, 3)
    for value in (-1, 1e300, float("inf"), float("nan"), "12", None, True, [], 2**60):
        with pytest.raises(ValueError):
            time_of(value)
        with pytest.raises(ValueError):
            count_of(value)
