"""One address of an engine."""

import pytest

from gateway.config.specs import EndpointSpec, EngineSpec
from gateway.protocol.condition import Condition
from gateway.upstream.endpoint import Endpoint


@pytest.mark.parametrize(
    "url, host, port, line",
    [
        ("http://gpu1:8000", "gpu1", 8000, b"host: gpu1:8000\r\n"),
        ("http://gpu1", "gpu1", 80, b"host: gpu1\r\n"),
        ("https://gpu1", "gpu1", 443, b"host: gpu1\r\n"),
        ("http://GPU1:8000", "gpu1", 8000, b"host: GPU1:8000\r\n"),
        ("http://10.0.0.5:8000", "10.0.0.5", 8000, b"host: 10.0.0.5:8000\r\n"),
        ("http://[::1]:8000", "::1", 8000, b"host: [::1]:8000\r\n"),
    ],
)
def test_urls(url: str, host: str, port: int, line: bytes) -> None:
    """A URL tells where to connect to, and the Host field of each request."""
    endpoint = Endpoint(EngineSpec("it", ()), EndpointSpec(url), None)
    assert (endpoint.pool.host, endpoint.pool.port, endpoint.host_line) == (host, port, line)


def test_latency() -> None:
    """A slower reply counts at once, faster ones bring the average down by and by."""
    endpoint = Endpoint(EngineSpec("it", ()), EndpointSpec("http://a"), None)
    told = []
    for seconds in (0.1, 0.5, 0.1, 0.1):
        endpoint.observe_latency(seconds)
        told.append(round(endpoint.latency, 3))
    assert told == [0.1, 0.5, 0.46, 0.424]


def test_its_repr_tells_its_state() -> None:
    """An endpoint says what the probes and the requests tell of it."""
    endpoint = Endpoint(EngineSpec("it", ()), EndpointSpec("http://a"), None)
    assert repr(endpoint) == "<Endpoint http://a: unknown, closed, 0 in flight>"
    endpoint.condition, endpoint.in_flight = Condition.UNREADY, 3
    for _ in range(5):
        endpoint.breaker.failed(0.0)
    assert repr(endpoint) == "<Endpoint http://a: unready, open, 3 in flight>"
