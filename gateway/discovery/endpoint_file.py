"""Endpoints in a file: a list in YAML or JSON, as rules write them, or Prometheus' `targets` with `labels`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

from gateway.config import value_parsers
from gateway.config.engine_specs import EndpointSpec
from gateway.config.host_access import read_settled
from gateway.config.source_specs import SourceSpec
from gateway.config.sources import read_endpoint
from gateway.discovery.addresses import endpoint_at
from gateway.discovery.source_state import FoundEndpoint, SourceError
from gateway.yaml.nodes import Items, Map, Node, Scalar, read_yaml
from gateway.yaml.problems import Problem
from gateway.yaml.readers import Reader, Reading, expected, reader_of, scalar

_MAX_BYTES = 4 * 1024 * 1024  # reading takes ten times the memory of the file and more
_LABELS = ("zone", "weight")


class EndpointFile:
    """The file of one source."""

    def __init__(self, source: SourceSpec) -> None:
        assert source.file is not None
        self._source = source
        self._path = Path(source.file)
        self._stamp: tuple[int, ...] | None = None
        self._problem: SourceError | None = None  # of the file with this stamp

    def read_changed(self) -> list[FoundEndpoint] | None:
        """Its endpoints; None where it has not changed since the last good reading.

        Raises: SourceError.
        """
        try:
            found = self._path.stat()
            stamp = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
            if stamp == self._stamp:
                if self._problem is not None:
                    raise self._problem
                return None
            content, _ = read_settled(self._path, _MAX_BYTES + 1)
        except OSError as error:
            self._stamp = None
            raise SourceError(f"it cannot be read: {error.strerror}") from None
        self._stamp, self._problem = stamp, None
        try:
            return read_endpoints(content, self._source)
        except SourceError as error:
            self._problem = SourceError(str(error))
            raise


def read_endpoints(content: bytes, source: SourceSpec) -> list[FoundEndpoint]:
    """Raises: SourceError that names the line."""
    if len(content) > _MAX_BYTES:
        raise SourceError(f"it has more than {_MAX_BYTES} bytes")
    problems: list[Problem] = []
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SourceError("it is no text in UTF-8") from None
    root = read_yaml(text, str(source.file), {}, problems)
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
    if endpoint.speaks_rest and endpoint.grpc is None and source.grpc is not None:
        endpoint = replace(endpoint, grpc=f"{_host(endpoint.url)}:{source.grpc}")
    if (endpoint.speaks_rest, endpoint.speaks_grpc) != (source.speaks_rest, source.speaks_grpc):
        what = f"{endpoint.url} with{'' if endpoint.grpc else 'out'} gRPC is not what the source declares"
        reading.error(node.location, f"{what}: scheme {source.scheme}, grpc {source.grpc or 'none'}")
        return
    yield replace(endpoint, zone=endpoint.zone or source.zone, priority=endpoint.priority or source.priority)


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
        yield endpoint_at(source, host.strip("[]"), int(port), **labels)


def _host(url: str) -> str:
    authority = url.partition("://")[2]
    bracketed, bracket, _ = authority.partition("]")
    return bracketed + bracket if bracket else authority.partition(":")[0]


_HINTS = get_type_hints(EndpointSpec, include_extras=True)
_LABEL: dict[str, Reader[Any]] = {key: reader_of(_HINTS[key], key) for key in _LABELS}
