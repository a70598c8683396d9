"""Addresses of endpoints."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.config.value_parsers import endpoint_url, host_port

GOOD = [
    (endpoint_url, "http://10.0.0.5:8000", "http://10.0.0.5:8000"),
    (endpoint_url, "http://10.0.0.5:8000/", "http://10.0.0.5:8000"),
    (endpoint_url, "https://triton.example.org", "https://triton.example.org"),
    (endpoint_url, "http://[::1]:8000", "http://[::1]:8000"),
    (endpoint_url, "http://engine_1:8000", "http://engine_1:8000"),
    (host_port, "10.0.0.5:8001", "10.0.0.5:8001"),
    (host_port, "[::1]:8001", "[::1]:8001"),
]


@pytest.mark.parametrize("parse, text, expected", GOOD)
def test_an_endpoint_is_a_host_and_a_port(parse: Callable[[str], str], text: str, expected: str) -> None:
    """Hosts are names, IPv4 or bracketed IPv6; a trailing slash makes no difference."""
    assert parse(text) == expected


BAD = [
    (endpoint_url, "10.0.0.5:8000", "URL '10.0.0.5:8000' has no scheme: did you mean 'http://10.0.0.5:8000'?"),
    (endpoint_url, "ws://a:1", "URL 'ws://a:1' must begin with http://, https://, grpc:// or grpcs://"),
    (endpoint_url, "grpc://a", "URL 'grpc://a' has no port: gRPC has no usual one"),
    (
        endpoint_url,
        "http://a:8000/v2/",
        "URL 'http://a:8000/v2/' has a path: did you mean 'http://a:8000'? "
        "Of an openai engine, write 'base_path: /v2' beside it",
    ),
    (endpoint_url, "grpc://a:8001/x", "URL 'grpc://a:8001/x' has a path: did you mean 'grpc://a:8001'?"),
    (endpoint_url, "http://a:8000?x", "URL 'http://a:8000?x' is not a host with an optional port"),
    (endpoint_url, "http://u:p@a:8000", "URL 'http://u:p@a:8000' is not a host with an optional port"),
    (endpoint_url, "http://", "URL 'http://' is not a host with an optional port"),
    (endpoint_url, "http://a:0", "URL 'http://a:0' has port 0: 1 to 65535"),
    (endpoint_url, "http://a:65536", "URL 'http://a:65536' has port 65536: 1 to 65535"),
    (host_port, "grpc://a:8001", "address 'grpc://a:8001' has a scheme: did you mean 'a:8001'?"),
    (host_port, "a", "address 'a' has no port: write host:port"),
    (host_port, "a b:1", "address 'a b:1' is not a host with an optional port"),
]


@pytest.mark.parametrize("parse, text, message", BAD)
def test_a_wrong_address_is_told_the_right_form(parse: Callable[[str], str], text: str, message: str) -> None:
    """An invalid address is rejected, and the message suggests the likely correct form."""
    with pytest.raises(ValueError) as caught:
        parse(text)
    assert str(caught.value) == message
