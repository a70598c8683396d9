"""JSON for rules: what engines read, and nothing of which two engines read different things."""

import json
from math import inf, isnan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.json_reader import read_json

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ['":', 'a":', '" :', "\\", '\\"']
)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)


@given(DOCUMENTS, st.booleans(), st.sampled_from([(",", ":"), (", ", ": "), (",\n", "\t : ")]))
def test_any_document_is_read(document: object, ascii_only: bool, separators: tuple[str, str]) -> None:
    """What writers write is read, whatever its texts hold."""
    assert read_json(json.dumps(document, ensure_ascii=ascii_only, separators=separators).encode()) == document


def test_what_engines_read_beyond_the_standard() -> None:
    """NaN, Infinity and a byte order mark are read, as by RapidJSON (Triton) and Python."""
    value = read_json(b'\xef\xbb\xbf{"a": [NaN, Infinity, -Infinity, Inf, -Inf], "b": "NaN Inf"}')
    assert isnan(value["a"][0])
    assert (value["a"][1:], value["b"]) == ([inf, -inf, inf, -inf], "NaN Inf")
    assert read_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": 1, "a": 2}',
        b'{"a": 1, "\\u0061": 2}',
        b'{"a": [1, {"b": {"c": 1, "c": 1}}]}',
        b'{"a": 1, "a": 2, "b": "\\u0022:"}',
        b'{"a": 1, "a": 2, "b": "\\"\\u003a"}',
        b'{"a": 1, "a": 2, "b": "\\"\\u0020:"}',
        b'{"a": 1, "a": 2, "b": [1, {"c": 3}]}',
        b'{"a": NaN, "a": 2}',
    ],
)
def test_a_key_that_stands_twice(body: bytes) -> None:
    """RapidJSON finds the first of two keys, others keep the last: such a document is refused."""
    with pytest.raises(ValueError, match="stands twice"):
        read_json(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"a": nan}',
        '{"a": "ä"}'.encode("utf-16"),
        '{"a": NaN}'.encode("utf-16-le"),
        b'{"a": "\xff"}',
        b'{"a": NaN, "b": "\xff"}',
        b'{"a": "\\ud800"}',
        b'{"a": NaN, "b": "\\ud800"}',
        b"[" * 100_000,
        b"[NaN," + b"[" * 100_000,
    ],
)
def test_what_is_no_json(body: bytes) -> None:
    """Other encodings than UTF-8, lone surrogates and malformed texts are refused."""
    with pytest.raises(ValueError):
        read_json(body)


def test_a_key_twice_among_many_is_found_in_one_pass() -> None:
    """A key that stands twice is found without comparing each key with all: 200,000 keys would take half an hour."""
    body = b"{%b}" % b",".join(b'"key %d":1' % number for number in [*range(200_000), 199_999])
    with pytest.raises(ValueError, match="the key 'key 199999' stands twice"):
        read_json(body)
