"""What a list of EndpointSlices and the events of a watch add up to."""

from typing import Any

import pytest

from gateway.config.source_specs import KubernetesSpec, SourceSpec
from gateway.discovery.endpoint_slices import EndpointSlices, WatchExpiredError
from gateway.discovery.source_state import SourceError
from tests.support.kubernetes_api import endpoint

SOURCE = SourceSpec(kubernetes=KubernetesSpec("triton", "models", "http"), grpc="grpc")


def item(name: str, *endpoints: Any, kind: str = "IPv4", version: str = "5", **ports: int) -> dict[str, Any]:
    listed = [{"name": each, "port": number} for each, number in (ports or {"http": 8000, "grpc": 8001}).items()]
    metadata = {"name": name, "resourceVersion": version}
    return {"metadata": metadata, "addressType": kind, "endpoints": list(endpoints), "ports": listed}


def used(slices: EndpointSlices) -> dict[str, bool]:
    return {each.spec.url: each.is_leaving for each in slices.endpoints()}


def test_ready_endpoints_have_ports_zone_and_name() -> None:
    """An endpoint has the numbers of the named ports, its zone, and the Service's name."""
    slices = EndpointSlices(SOURCE)
    slices.replace([item("a", endpoint("10.0.0.1", zone="z1")), item("b", endpoint("10.0.0.2", ready=None))], "5")
    one, other = (each.spec for each in slices.endpoints())
    assert (one.url, one.grpc, one.zone, one.host) == (
        "http://10.0.0.1:8000",
        "10.0.0.1:8001",
        "z1",
        "triton.models.svc",
    )
    assert (other.url, other.zone) == ("http://10.0.0.2:8000", None)


def test_conditions() -> None:
    """What terminates and serves is leaving, as is what was ready and is not; what never was is left out."""
    slices = EndpointSlices(SOURCE)
    states = [
        endpoint("10.0.0.1", ready=False, serving=True, terminating=True),
        endpoint("10.0.0.2", ready=False, serving=False, terminating=True),
        endpoint("10.0.0.3", ready=False),
        endpoint("10.0.0.4"),
    ]
    slices.replace([item("a", *states)], "5")
    assert used(slices) == {"http://10.0.0.1:8000": True, "http://10.0.0.4:8000": False}
    slices.apply({"type": "MODIFIED", "object": item("a", endpoint("10.0.0.4", ready=False), version="6")})
    assert used(slices) == {"http://10.0.0.4:8000": True}
    slices.apply({"type": "MODIFIED", "object": item("a", endpoint("10.0.0.4"), version="7")})
    assert used(slices) == {"http://10.0.0.4:8000": False}


def test_events() -> None:
    """Slices come, change and go; a bookmark moves the version alone; an endpoint that moves between slices is one."""
    slices = EndpointSlices(SOURCE)
    slices.replace([item("a", endpoint("10.0.0.1"))], "5")
    slices.apply({"type": "ADDED", "object": item("b", endpoint("10.0.0.1", ready=False), endpoint("10.0.0.2"))})
    assert used(slices) == {"http://10.0.0.1:8000": False, "http://10.0.0.2:8000": False}
    slices.apply({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}})
    assert slices.version == "9"
    slices.apply({"type": "DELETED", "object": item("b", version="10")})
    assert (used(slices), slices.version) == ({"http://10.0.0.1:8000": False}, "10")
    with pytest.raises(WatchExpiredError):
        slices.apply({"type": "ERROR", "object": {"code": 410, "reason": "Expired"}})
    with pytest.raises(SourceError, match="the watch ends: etcd is away"):
        slices.apply({"type": "ERROR", "object": {"code": 500, "message": "etcd is away"}})


@pytest.mark.parametrize(
    "family, urls",
    [
        ("auto", ["http://10.0.0.1:8000"]),
        ("ipv4", ["http://10.0.0.1:8000"]),
        ("ipv6", ["http://[fd00::1]:8000"]),
        ("all", ["http://10.0.0.1:8000", "http://[fd00::1]:8000"]),
    ],
)
def test_families(family: Any, urls: list[str]) -> None:
    """A pod of two families is one endpoint, unless the source wants all."""
    source = SourceSpec(kubernetes=KubernetesSpec("triton", "models", "http"), family=family)
    slices = EndpointSlices(source)
    slices.replace([item("a", endpoint("10.0.0.1")), item("b", endpoint("fd00::1"), kind="IPv6")], "5")
    assert sorted(used(slices)) == urls


def test_ports() -> None:
    """A number is taken as it is; one port alone needs no name; an error lists those that there are."""

    def url(port: str | None, **ports: int) -> str:
        slices = EndpointSlices(SourceSpec(kubernetes=KubernetesSpec("triton", "models", port)))
        slices.replace([item("a", endpoint("10.0.0.1"), **ports)], "5")
        return next(iter(used(slices)))

    assert url("9000", http=8000) == "http://10.0.0.1:9000"
    assert url(None, only=8000) == "http://10.0.0.1:8000"
    with pytest.raises(SourceError, match=r"service triton has not port 'web'; it has http \(8000\), grpc \(8001\)"):
        url("web")
    with pytest.raises(SourceError, match="has not one port alone: write 'port'"):
        url(None)


def other(**keys: Any) -> dict[str, Any]:
    return item("a", endpoint("10.0.0.1")) | keys


@pytest.mark.parametrize(
    "written, problem",
    [
        (None, "has no name"),
        ("text", "has no name"),
        ({"metadata": None}, "has no name"),
        (other(endpoints="text"), "'endpoints' of EndpointSlice 'a'"),
        (other(endpoints=[None]), "'endpoints' of EndpointSlice 'a'"),
        (other(ports=["http"]), "'ports' of EndpointSlice 'a'"),
        (other(ports=[{"name": "http", "port": 70000}]), "a port 70000"),
        (other(ports=[{"name": "http", "port": "8000"}]), "a port '8000'"),
        (item("a", {"addresses": "10.0.0.1"}), "'addresses'"),
        (item("a", {"addresses": ["10.0.0.1"], "conditions": "ready"}), "'conditions'"),
        (item("a", {"addresses": ["x@10.0.0.1/"]}), "'x@10.0.0.1/', which is no address"),
        (item("a", {"addresses": ["1.2.3.4:99"]}, kind="IPv6"), "'1.2.3.4:99', which is no address"),
    ],
)
def test_slices_of_another_shape_are_errors(written: Any, problem: str) -> None:
    """They name the slice, change nothing of what is known, and never become endpoints that a worker cannot read."""
    slices = EndpointSlices(SOURCE)
    slices.replace([item("b", endpoint("10.0.0.2"))], "5")
    with pytest.raises(SourceError, match=problem):
        slices.replace([written], "6")
    if isinstance(written, dict):
        with pytest.raises(SourceError, match=problem):
            slices.apply({"type": "ADDED", "object": written})
    assert used(slices) == {"http://10.0.0.2:8000": False}
