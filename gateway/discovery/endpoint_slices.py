"""EndpointSlices of one Service as values: what a list and the events of a watch add up to. Pure.

Source: Kubernetes' API `discovery.k8s.io/v1`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from gateway.config.source_specs import SourceSpec
from gateway.discovery.addresses import endpoint_at
from gateway.discovery.source_state import FoundEndpoint, SourceError

_LARGEST_PORT = 65535
MAX_SLICES = 50_000  # of one Service; each has up to 1,000 endpoints
_FAMILIES = {"ipv4": ("IPv4",), "ipv6": ("IPv6",), "all": ("IPv4", "IPv6")}

Json = Mapping[str, Any]


class WatchExpiredError(Exception):
    """The version that a watch began with is gone (410): list again."""


class EndpointSlices:
    """The slices of a Service, by name. `version` is the resource version that the next watch begins with."""

    def __init__(self, source: SourceSpec) -> None:
        assert source.kubernetes is not None
        self._source = source
        self._spec = source.kubernetes
        self._slices: dict[str, Json] = {}
        self._was_ready: set[str] = set()  # URLs
        self.version = ""

    def replace(self, items: Iterable[Json], version: str) -> None:
        """Take over a list."""
        self._slices = {_name(each): each for each in items}
        self.version = version

    def apply(self, event: Json) -> None:
        """Take over an event of a watch.

        Raises: WatchExpiredError, SourceError.
        """
        kind, item = event.get("type"), event.get("object")
        if not isinstance(item, Mapping):
            raise SourceError(f"an event of type {kind!r} has no object")
        if kind == "ERROR":
            if item.get("code") == 410:
                raise WatchExpiredError
            raise SourceError(f"the watch ends: {item.get('message') or item.get('reason') or 'no reason given'}")
        metadata = item.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, Mapping) else None
        if isinstance(version, str) and version:
            self.version = version
        if kind in ("ADDED", "MODIFIED"):
            self._slices[_name(item)] = item
            if len(self._slices) > MAX_SLICES:
                raise SourceError(f"the service has more than {MAX_SLICES} slices")
        elif kind == "DELETED":
            self._slices.pop(_name(item), None)

    def endpoints(self) -> list[FoundEndpoint]:
        """Those that are ready; those that terminate and still serve, or were ready, are leaving.

        Raises: SourceError where no slice has the port.
        """
        slices = list(self._slices.values())
        types = {str(each.get("addressType")) for each in slices if each.get("endpoints")}
        families = _FAMILIES.get(self._source.family) or (("IPv4",) if "IPv4" in types else ("IPv6",))
        found: dict[str, FoundEndpoint] = {}
        problem = ""
        for each in slices:
            if each.get("addressType") not in families or not each.get("endpoints"):
                continue
            try:
                port = _port(each, self._spec.port, self._spec.service)
                grpc_port = _port(each, self._source.grpc, self._spec.service) if self._source.grpc else None
            except SourceError as error:
                problem = str(error)
                continue
            for endpoint in each["endpoints"]:
                self._add(endpoint, port, grpc_port, found)
        if problem and not found:
            raise SourceError(problem)
        self._was_ready = {url for url, each in found.items()}
        return list(found.values())

    def _add(self, endpoint: Json, port: int, grpc_port: int | None, found: dict[str, FoundEndpoint]) -> None:
        addresses = endpoint.get("addresses") or []
        if not addresses:
            return
        name = f"{self._spec.service}.{self._spec.namespace}.svc" if self._spec.namespace is not None else None
        zone = endpoint.get("zone")
        spec = endpoint_at(
            self._source, str(addresses[0]), port, grpc_port=grpc_port, host=name, zone=str(zone) if zone else None
        )
        conditions = endpoint.get("conditions") or {}
        is_ready = conditions.get("ready") in (None, True)  # None: unknown, and to be taken for ready
        serves = conditions.get("serving")
        is_leaving = not is_ready and (
            (bool(conditions.get("terminating")) and serves is not False) or spec.url in self._was_ready
        )
        before = found.get(spec.url)
        if is_ready or (is_leaving and before is None):
            found[spec.url] = FoundEndpoint(spec, not is_ready)


def _name(item: Any) -> str:
    """The name of a slice in the API's form.

    Raises: SourceError where it has another.
    """
    metadata = item.get("metadata") if isinstance(item, Mapping) else None
    if not isinstance(metadata, Mapping) or not metadata.get("name"):
        raise SourceError("an EndpointSlice has no name")
    name = str(metadata["name"])
    for key in ("ports", "endpoints"):
        if not _is_list(item.get(key), Mapping):
            raise SourceError(f"{key!r} of EndpointSlice {name!r} is no list of objects")
    for each in item.get("ports") or ():
        port = each.get("port")
        if port is not None and not (type(port) is int and 0 < port <= _LARGEST_PORT):
            raise SourceError(f"EndpointSlice {name!r} has a port {port!r}: it must be 1 to {_LARGEST_PORT}")
    is_address = _IS_ADDRESS.get(str(item.get("addressType")))
    for each in item.get("endpoints") or ():
        conditions, addresses = each.get("conditions"), each.get("addresses")
        if not isinstance(conditions, Mapping | None):
            raise SourceError(f"an endpoint of EndpointSlice {name!r} has no object in 'conditions'")
        if not _is_list(addresses, str):
            raise SourceError(f"an endpoint of EndpointSlice {name!r} has no list of texts in 'addresses'")
        if is_address is not None and addresses and not is_address(addresses[0]):
            raise SourceError(f"EndpointSlice {name!r} has an endpoint {addresses[0][:100]!r}, which is no address")
    return name


def _is_list(value: Any, kind: type) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(each, kind) for each in value))


def _is_of(kind: Callable[[str], object]) -> Callable[[str], bool]:
    """Whether a text is an address that `kind` can read."""

    def is_address(text: str) -> bool:
        try:
            kind(text)
        except ValueError:
            return False
        return True

    return is_address


_IS_ADDRESS = {"IPv4": _is_of(IPv4Address), "IPv6": _is_of(IPv6Address)}


def _port(item: Json, wanted: str | None, service: str) -> int:
    """The number of a port, by its name or number; None: of the only one.

    Raises: SourceError.
    """
    ports = [each for each in item.get("ports") or () if each.get("port") is not None]
    if wanted is not None and wanted.isdigit():  # pods answer at ports that no Service names
        return int(wanted)
    matching = [int(each["port"]) for each in ports if wanted is None or each.get("name") == wanted]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(f"{each.get('name') or 'without a name'} ({each['port']})" for each in ports) or "none"
    what = f"port {wanted!r}" if wanted is not None else "one port alone: write 'port'"
    raise SourceError(f"service {service} has not {what}; it has {names}")
