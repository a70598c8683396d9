"""Fields of both fronts: versions, forwarded headers, trace context."""

import pytest

from engines.core.errors import EngineError
from engines.host.client_limits import HeaderForward
from engines.host.request_fields import datatype_named, read_version, trace_of
from gateway.protocol.operations import Operation
from gateway.protocol.restricted_apis import CATEGORIES


@pytest.mark.parametrize(
    ("text", "version"),
    [("", ""), ("1", "1"), ("007", "7"), (" 12", "12"), ("+3", "3"), ("3x", "3"), ("9" * 18, "9" * 18)],
)
def test_a_version_is_read_as_stol_reads_it(text, version):
    """Leading blanks, a sign and trailing letters are accepted."""
    assert read_version(text) == version


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "failed to get model version from specified version string 'x' (details: stol), version should be an "),
        ("9" * 20, f"failed to get model version from specified version string '{'9' * 20}' (details: stol), "),
        ("-1", "invalid model version specified '-1' , version should be an integral value > 0"),
    ],
)
def test_what_is_no_version(text, message):
    """Triton's texts."""
    with pytest.raises(EngineError) as caught:
        read_version(text)
    assert caught.value.message.startswith(message)


def test_headers_that_match_anywhere_are_forwarded():
    """Headers that match the pattern anywhere, in any case, are forwarded; without a pattern none are."""
    fields = [(b"x-forward-a", b"1"), (b"my-x-forward-b", "é".encode()), (b"other", b"2")]
    assert HeaderForward("X-Forward-.").parameters(fields) == {"x-forward-a": "1", "my-x-forward-b": "é"}
    assert HeaderForward("").parameters(fields) == {}
    assert not HeaderForward("")


def test_trace_context_needs_a_parent():
    """tracestate alone means nothing (W3C Trace Context section 3.3)."""
    assert trace_of({b"traceparent": b"00-1", b"tracestate": b"a=b"}) == {"traceparent": "00-1", "tracestate": "a=b"}
    assert trace_of({b"tracestate": b"a=b"}) == {}


def test_every_operation_has_a_category():
    """A restricted category covers every operation: OpenAI's paths have the categories of Triton's."""
    assert set(Operation) - {Operation.FEEDBACK, Operation.FLAGS} == set(CATEGORIES)  # which the gateway alone answers
    assert {CATEGORIES[each] for each in (Operation.CHAT, Operation.COMPLETION)} == {CATEGORIES[Operation.INFER]}


def test_a_datatype_that_is_none():
    """An unknown datatype has the name that Triton's core uses."""
    assert [datatype_named(name) for name in ("FP32", "BYTES", "INT33", "")] == [
        "FP32",
        "BYTES",
        "<invalid>",
        "<invalid>",
    ]
