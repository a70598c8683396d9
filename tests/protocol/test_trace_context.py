"""W3C trace context: which fields are valid."""

import pytest

from gateway.protocol.trace_context import TraceContext, read_traceparent

TRACE, SPAN = b"4bf92f3577b34da6a3ce929d0e0e4736", b"00f067aa0ba902b7"


@pytest.mark.parametrize(
    "value, is_sampled",
    [
        (b"00-%b-%b-01" % (TRACE, SPAN), True),
        (b"00-%b-%b-00" % (TRACE, SPAN), False),
        (b"00-%b-%b-03" % (TRACE, SPAN), True),  # with flags that this version does not know
        (b"01-%b-%b-01" % (TRACE, SPAN), True),
        (b"cc-%b-%b-01-what-comes-later" % (TRACE, SPAN), True),
    ],
)
def test_valid(value: bytes, is_sampled: bool) -> None:
    """A context has ids and a flag; of later versions, what follows is ignored (section 3.2.4)."""
    assert read_traceparent(value) == TraceContext(TRACE, SPAN, is_sampled)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"00",
        b"ff-%b-%b-01" % (TRACE, SPAN),
        b"00-%b-%b-01-more" % (TRACE, SPAN),
        b"00-%b-%b-01" % (TRACE.upper(), SPAN),
        b"00-%b-%b-01" % (b"0" * 32, SPAN),
        b"00-%b-%b-01" % (TRACE, b"0" * 16),
        b"00-%b-%b-1" % (TRACE, SPAN),
        b"00-%b-%b-0g" % (TRACE, SPAN),
        b"cc-%b-%b-01.more" % (TRACE, SPAN),
        b"00-%b-%b-01 " % (TRACE, SPAN),
    ],
)
def test_invalid(value: bytes) -> None:
    """Anything else counts as missing."""
    assert read_traceparent(value) is None
