"""Lists of endpoints, in YAML or JSON: as rules write them, or Prometheus' `targets` with `labels`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_type_hints

from gateway.config import value_parsers
from gateway.config.engine_specs import EndpointSpec
from gateway.config.source_specs import SourceSpec
from gateway.config.sources import read_endpoint
from gateway.discovery.addresses import endpoint_at
from gateway.discovery.source_state import FoundEndpoint, SourceError
from gateway.yaml.nodes import Items, Map, Node, Scalar, read_yaml
from gateway.yaml.problems import Problem
from gateway.yaml.readers import Reader, Reading, expected, reader_of, scalar

MAX_BYTES = 4 * 1024 * 1024  # reading takes ten times the memory of the list and more
_LABELS = ("zone", "weight")


def read_endpoints(content: bytes, source: SourceSpec) -> list[FoundEndpoint]:
    """Raises: SourceError that names the line."""
    if len(content) > MAX_BYTES:
        raise SourceError(f"it has more than {MAX_BYTES} bytes")
    problems: list[Problem] = []
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SourceError("it is no text in UTF-8") from None
    root = read_yaml(text, source.file or source.http or "", {}, problems)
    reading = Reading(problems)
    endpoints: list[FoundEndpoint] = []
    if isinstance(root, Items):
        for node in root.nodes:
            endpoints += [FoundEndpoint(each) for each in _entry(node, source, reading)]
    else:
        expected(root, "a list of endpoints", reading)
    errors = [str(problem) for problem in reading.problems if problem.is_error]
    if errors:
        raise SourceError("; ".join(errors[:3]))
    return endpoints


def _entry(node: Node, source: SourceSpec, reading: Reading) -> Iterator[EndpointSpec]:
    if isinstance(node, Map) and "targets" in node.entries:
        yield from _targets(node, source, reading)
        return
    if isinstance(node, Scalar) and "://" not in node.text:
        yield from _at(node, source, reading, {})
        return
    endpoint = read_endpoint(node, reading)
    if endpoint is None:
        return
    if endpoint.speaks_rest and endpoint.grpc is None and source.grpc is not None and source.grpc.isdigit():
        endpoint = replace(endpoint, grpc=f"{_host(endpoint.url)}:{source.grpc}")
    elif source.http is not None and source.grpc is None and endpoint.speaks_rest:
        endpoint = replace(endpoint, grpc=None)  # the list may have other readers
    if _is_declared(endpoint, node, source, reading):
        yield replace(endpoint, zone=endpoint.zone or source.zone, priority=endpoint.priority or source.priority)


def _is_declared(endpoint: EndpointSpec, node: Node, source: SourceSpec, reading: Reading) -> bool:
    """Whether it has the protocols of the source; an error where not."""
    if (endpoint.speaks_rest, endpoint.speaks_grpc) == (source.speaks_rest, source.speaks_grpc):
        return True
    what = f"{endpoint.url} with{'' if endpoint.grpc else 'out'} gRPC is not what the source declares"
    reading.error(node.location, f"{what}: scheme {source.scheme}, grpc {source.grpc or 'none'}")
    return False


def _targets(node: Map, source: SourceSpec, reading: Reading) -> Iterator[EndpointSpec]:
    """Prometheus' form; its other labels have no meaning here."""
    labels: dict[str, Any] = {}
    entry = node.entries.get("labels")
    if entry is not None and isinstance(entry.node, Map):
        entries = entry.node.entries
        labels = {key: _LABEL[key](entries[key].node, reading) for key in _LABELS if key in entries}
    targets = node.entries["targets"].node
    if not isinstance(targets, Items):
        expected(targets, "a list of host:port", reading)
        return
    for target in targets.nodes:
        yield from _at(target, source, reading, labels)


def _at(node: Node, source: SourceSpec, reading: Reading, labels: dict[str, Any]) -> Iterator[EndpointSpec]:
    authority = scalar(value_parsers.host_port)(node, reading)
    if authority is not None:
        host, _, port = authority.rpartition(":")
        endpoint = endpoint_at(source, host.strip("[]"), int(port), **labels)
        if _is_declared(endpoint, node, source, reading):
            yield endpoint


def _host(url: str) -> str:
    authority = url.partition("://")[2]
    bracketed, bracket, _ = authority.partition("]")
    return bracketed + bracket if bracket else authority.partition(":")[0]


_HINTS = get_type_hints(EndpointSpec, include_extras=True)
_LABEL: dict[str, Reader[Any]] = {key: reader_of(_HINTS[key], key) for key in _LABELS}
