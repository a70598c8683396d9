"""One address of an engine."""

import ssl
from time import monotonic

import pytest

from gateway.config.engine_specs import EndpointSpec, EngineSpec, HealthSpec
from gateway.protocol.engine_load import Load, Readiness
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
    """A URL yields the host and port to connect to, and the Host field of each request."""
    endpoint = Endpoint(EngineSpec("it", ()), EndpointSpec(url), None)
    assert (endpoint.pool.host, endpoint.pool.port, endpoint.host_line) == (host, port, line)


def test_a_name_stands_for_the_address() -> None:
    """`host` is the name in the Host field, in gRPC's authority and in TLS; the connection goes to the address."""
    spec = EndpointSpec("https://10.0.0.5:8000", "10.0.0.5:8001", host="triton.svc")
    endpoint = Endpoint(EngineSpec("it", (spec,)), spec, ssl.create_default_context())
    assert (endpoint.host_line, endpoint.authority) == (b"host: triton.svc:8000\r\n", b"triton.svc:8001")
    assert endpoint.pool is not None and endpoint.streams is not None
    assert (endpoint.pool.host, endpoint.streams.host) == ("10.0.0.5", "10.0.0.5")
    assert not endpoint.fits(endpoint.engine, EndpointSpec("https://10.0.0.5:8000", "10.0.0.5:8001"))
    assert Endpoint(EngineSpec("it", ()), EndpointSpec("http://[::1]", host="a.b"), None).host_line == b"host: a.b\r\n"


def test_latency() -> None:
    """A slower reply raises the average at once, faster ones lower it gradually."""
    endpoint = Endpoint(EngineSpec("it", ()), EndpointSpec("http://a"), None)
    report = []
    for seconds in (0.1, 0.5, 0.1, 0.1):
        endpoint.observe_latency(seconds)
        report.append(round(endpoint.latency, 3))
    assert report == [0.1, 0.5, 0.46, 0.424]


@pytest.mark.parametrize(
    "in_flight, load, others",
    [
        (0, Load(3, 2), 5),
        (2, Load(3, 2), 3),  # two of the five are this worker's
        (7, Load(3, 2), 0),  # reported before the latest requests
        (4, Load(kv_use=0.5), 0),
        (4, None, 0),
    ],
)
def test_others_requests(in_flight: int, load: Load | None, others: int) -> None:
    """The load of other gateways is the engine's running and waiting requests less this worker's own; it stays the same
    while the worker's own requests come and go."""
    endpoint = Endpoint(EngineSpec("it", ()), EndpointSpec("http://a"), None)
    endpoint.in_flight = in_flight
    endpoint.observe_load(load)
    assert (endpoint.load, endpoint.others, endpoint.pressure) == (load, others, in_flight + others)
    endpoint.in_flight += 1
    assert endpoint.pressure == in_flight + others + 1


@pytest.mark.parametrize("interval, kept", [(2.0, 10.0), (20.0, 60.0)])
def test_a_load_that_is_not_told_anew_is_forgotten(interval: float, kept: float) -> None:
    """A reported load expires after 10 s or three probe intervals: without requests no reply would update it."""
    endpoint = Endpoint(EngineSpec("it", (), health=HealthSpec(interval=interval)), EndpointSpec("http://a"), None)
    now = monotonic()
    endpoint.observe_load(Load(3))
    endpoint.close_stale(now + kept - 1)
    assert endpoint.others == 3
    endpoint.close_stale(monotonic() + kept)
    assert (endpoint.others, endpoint.load) == (0, None)


def test_its_repr_tells_its_state() -> None:
    """An endpoint's repr shows its readiness, its breaker and its requests in flight."""
    endpoint = Endpoint(EngineSpec("it", ()), EndpointSpec("http://a"), None)
    assert repr(endpoint) == "<Endpoint http://a: unknown, closed, 0 in flight>"
    endpoint.condition, endpoint.in_flight = Readiness.UNREADY, 3
    for _ in range(5):
        endpoint.breaker.failed(0.0)
    assert repr(endpoint) == "<Endpoint http://a: unready, open, 3 in flight>"
