"""Reads `endpoints:` of an engine: endpoints, and the sources that further ones come from."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from gateway.config import value_parsers
from gateway.config.engine_specs import EndpointSpec
from gateway.config.host_access import may_name
from gateway.config.source_specs import LISTED, KubernetesSpec, SourceSpec
from gateway.yaml.nodes import Map, Node
from gateway.yaml.readers import Reading, record_of, scalar

_LEAST_REFRESH = 0.05
_KINDS = ("dns", "kubernetes", "file", "http")
# Keys that some kinds of sources have alone
_KEYS_OF: dict[str, tuple[str, ...]] = {"family": ("dns", "kubernetes")}
_KEYS_OF |= dict.fromkeys(("min_refresh", "max_refresh", "servers"), ("dns",))
_KEYS_OF |= dict.fromkeys(("interval", "timeout", "token", "ca"), ("http",))

_ENDPOINT = record_of("an endpoint", EndpointSpec)


def read_endpoint(node: Node, reading: Reading) -> EndpointSpec | None:
    """Read `{url, grpc, weight}` or a URL; a gRPC URL gives both."""
    if isinstance(node, Map):
        endpoint = _ENDPOINT(node, reading)
    else:
        url = scalar(value_parsers.endpoint_url)(node, reading)
        endpoint = None if url is None else EndpointSpec(url)
    if endpoint is None or not endpoint.url.startswith("grpc"):
        return endpoint
    return replace(endpoint, grpc=endpoint.url.partition("://")[2])


def _path(node: Node, reading: Reading) -> str | None:
    """The absolute path of a file that is named relative to the rule file's folder; it may come later."""
    written = scalar(value_parsers.file_path)(node, reading)
    if written is None:
        return None
    path = (Path(node.location.file).parent / written).absolute()
    return str(path) if may_name(path, written, node.location, reading) else None


_SOURCE = record_of(
    "a source of endpoints",
    SourceSpec,
    file=_path,
    token=_path,
    ca=_path,
    kubernetes=record_of("kubernetes", KubernetesSpec, token=_path, ca=_path),
)


def read_endpoint_or_source(node: Node, reading: Reading) -> EndpointSpec | SourceSpec | None:
    """Read an entry of `endpoints`: a source has `dns`, `kubernetes`, `file` or `http`."""
    if not isinstance(node, Map):
        return read_endpoint(node, reading)
    kinds = [kind for kind in _KINDS if kind in node.entries]
    if not kinds:
        return read_endpoint(node, reading)
    if len(kinds) > 1:
        reading.error(node.location, f"a source of endpoints is {' or '.join(kinds)}, not both: write two entries")
        return None
    source = _SOURCE(node, reading)
    if source is None:
        return None
    problem = _problem(source, kinds[0], node)
    if problem:
        reading.error(node.location, problem)
        return None
    if source.dns is not None and find_spec("dns") is None and not source.is_srv and not source.servers:
        why = "the package dnspython is not installed, so its TTL is unknown"
        reading.warn(node.location, f"{source.label} is resolved every 5 s: {why}")
    spec = source.kubernetes
    if spec is not None and spec.token is not None and (spec.api or "").startswith("http:"):
        reading.warn(node.location, f"{source.label}: the token goes to {spec.api} unencrypted")
    if source.token is not None and (source.http or "").startswith("http:"):
        reading.warn(node.location, f"{source.label}: the token goes there unencrypted")
    if source.file is not None and not Path(source.file).is_file():
        reading.warn(node.location, f"there is no file {source.file} yet: the engine has no endpoint of it")
    return source


def _problem(source: SourceSpec, kind: str, node: Map) -> str:
    """What contradicts itself; empty where nothing does."""
    for key, kinds in _KEYS_OF.items():
        if key in node.entries and kind not in kinds:
            return f"{key!r} is for {' and '.join(kinds)}, and this source is {kind}"
    if source.grpc is not None and not source.speaks_rest:
        return f"the scheme {source.scheme} is gRPC already: leave 'grpc' out"
    if source.grpc == LISTED and kind in ("file", "http"):
        pass  # the entries have addresses
    elif source.grpc is not None and not source.grpc.isdigit() and kind != "kubernetes":
        listed = f", or {LISTED!r} where each entry has its own address" if kind in ("file", "http") else ""
        return f"grpc {source.grpc!r} is a name, which ports of Kubernetes have: write the number{listed}"
    if source.interval < _LEAST_REFRESH:
        return f"interval {source.interval:g} s is less than {_LEAST_REFRESH:g} s, which would flood the server"
    if source.min_refresh < _LEAST_REFRESH:
        return f"min_refresh {source.min_refresh:g} s is less than {_LEAST_REFRESH:g} s, which would flood the servers"
    if source.min_refresh > source.max_refresh:
        return f"min_refresh {source.min_refresh:g} s is more than max_refresh, {source.max_refresh:g} s"
    if find_spec("dns") is None and (source.is_srv or source.servers):
        what = "SRV records need" if source.is_srv else "'servers' needs"
        return f"{what} the package dnspython: pip install 'pointsman[discovery]'"
    kubernetes = source.kubernetes
    if kubernetes is not None and kubernetes.api is None and kubernetes.token is not None:
        return "'token' is for the server that 'api' names: inside of a cluster the service account's is used"
    if kubernetes is not None and kubernetes.api is None and kubernetes.ca is not None:
        return "'ca' is for the server that 'api' names: inside of a cluster the service account's is used"
    return ""
