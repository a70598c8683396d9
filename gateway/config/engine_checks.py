"""Checks of an engine's keys together: contradictions are errors, keys without effect are warnings."""

from __future__ import annotations

from collections.abc import Collection

from gateway.config.specs import EngineSpec, TlsSpec
from gateway.protocol.engine_protocols import protocols_with
from gateway.yaml.nodes import Map
from gateway.yaml.problems import Location
from gateway.yaml.readers import Reading


def check_engine(engine: EngineSpec, node: Map, location: Location, reading: Reading) -> None:
    """Report what is wrong with a valid spec; `node` is its YAML node, `location` that of its name."""
    _check_endpoints(engine, location, reading)
    _check_protocol(engine, node, reading)
    _check_tls(engine, location, reading)
    for key, why in _idle_keys(engine, node):
        reading.warn(node.entries[key].location, f"{key!r} of engine {engine.name!r} has no effect: {why}")


def _check_endpoints(engine: EngineSpec, location: Location, reading: Reading) -> None:
    for protocol_name, message in (("grpc", "an address for gRPC"), ("rest", "an address for REST")):
        if (
            0
            < sum(getattr(endpoint, f"speaks_{protocol_name}") for endpoint in engine.endpoints)
            < len(engine.endpoints)
        ):
            what = (
                f"some endpoints of engine {engine.name!r} have {message} and others have none: give it to all, or none"
            )
            reading.error(location, what)
    seen = set()
    for endpoint in engine.endpoints:
        if endpoint.url in seen:
            reading.warn(location, f"engine {engine.name!r} lists endpoint {endpoint.url} twice: it is one endpoint")
        seen.add(endpoint.url)


def _check_protocol(engine: EngineSpec, node: Map, reading: Reading) -> None:
    if not engine.protocol.traits.has_grpc and any(endpoint.speaks_grpc for endpoint in engine.endpoints):
        message = f"engine {engine.name!r} speaks {engine.protocol.value}, which has no gRPC: give its http URL alone"
        reading.error(node.entries["endpoints"].location, message)


def _check_tls(engine: EngineSpec, location: Location, reading: Reading) -> None:
    if engine.tls.key is not None and engine.tls.cert is None:
        reading.error(location, f"engine {engine.name!r} has a tls key without its cert")
    if engine.tls != TlsSpec() and not any(
        endpoint.url.startswith(("https:", "grpcs:")) for endpoint in engine.endpoints
    ):
        reading.warn(location, f"engine {engine.name!r} has tls settings, but no endpoint is https or grpcs")


def _idle_keys(engine: EngineSpec, node: Map) -> list[tuple[str, str]]:
    """Keys without effect, each with the reason."""
    given: Collection[str] = node.entries
    protocol, traits, load = engine.protocol, engine.protocol.traits, engine.load
    found = [
        (key, f"it is for protocol {' and '.join(other.value for other in meant_for)}")
        for key in given
        if (meant_for := protocols_with(key)) and protocol not in meant_for
    ]
    balance = engine.balance.traits
    idle = {key for key, _ in found}
    if "chat_template" in given and traits.has_dialects and "chat" in engine.dialects:
        found.append(("chat_template", "its 'dialects' have chat, so the engine applies its own"))
    if "load" in given and "load" not in idle:
        if load.source == "metrics" and not engine.health.interval:
            found.append(("load", "metrics are asked for with the probes, and health.interval is 0"))
        elif load.source != "metrics" and load.path != type(load)().path:
            found.append(("load", f"a path is where metrics are, and its source is {load.source}"))
        elif load.source != "none" and not balance.uses_load:
            found.append(("load", f"balance {engine.balance.value} asks for no load; it is shown only"))
    if "affinity" in given and not balance.by_session:
        found.append(("affinity", f"it is for balance session, and this is {engine.balance.value}"))
    if "prefix" in given and "prefix" not in idle and not balance.by_prompt:
        found.append(("prefix", f"it is for balance prefix, and this is {engine.balance.value}"))
    if balance.by_prompt and not traits.generates_text:
        found.append(("balance", f"requests to a {protocol.value} engine have no prompt, so this is least_outstanding"))
    return found
