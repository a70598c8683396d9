"""`x-forwarded-client-cert`, as Envoy writes it."""

import pytest

from gateway.auth.forwarded_certificate import forwarded_names

ENVOY = b'By=spiffe://a/gw;Hash=46;Subject="CN=web,O=Acme\\, Inc.";URI=spiffe://a/web;DNS=A.test;DNS=b.test'


@pytest.mark.parametrize(
    "value, names",
    [
        (
            ENVOY,
            (("subject", "CN=web,O=Acme\\, Inc."), ("uri", "spiffe://a/web"), ("dns", "a.test"), ("dns", "b.test")),
        ),
        (
            b"URI=spiffe://forged," + b"By=spiffe://a/gw;URI=spiffe://a/b",
            (("uri", "spiffe://a/b"),),
        ),  # the last one counts
        (b"by=x;uri=spiffe://a/?b=c", (("uri", "spiffe://a/?b=c"),)),
        (b'URI="a,b;c=\\"d\\""', (("uri", 'a,b;c="d"'),)),
        (b'Subject="CN=end\\\\"', (("subject", "CN=end\\\\"),)),
        (b'By=x;Hash=1;Subject="";URI=', ()),
        (b"DNS=*.test;URI=a\x01;Other=x", ()),
    ],
)
def test_names_of_the_nearest_proxy(value: bytes, names: tuple[tuple[str, str], ...]) -> None:
    """The last element counts: its keys in any case, its values with quotes and escapes; names that identify nobody in
    a certificate do not here."""
    assert forwarded_names(value) == names


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"x",
        b"URI=a;",
        ENVOY + b",",
        b'URI="a',
        b'URI=a"b"',
        b'URI="a"b',
        b'Cert=",' + ENVOY,  # a quote of the client would hide where the proxy's element begins
        b'Cert=",By=x;Subject="CN=\\"quoted,URI=spiffe://admin";URI=spiffe://a/web',
        b"URI=" + b" " * 50_000 + b'"',
    ],
)
def test_a_field_that_could_be_read_in_two_ways_is_refused(value: bytes) -> None:
    """Quotes that do not enclose a whole value, and pairs without a key, are errors."""
    with pytest.raises(ValueError, match="x-forwarded-client-cert is not as Envoy writes it"):
        forwarded_names(value)
