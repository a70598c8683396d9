"""The `engines:` section: separately-run services and how to reach them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from gateway.config import value_parsers
from gateway.config.credentials import read_credential
from gateway.config.engine_specs import (
    ActivatorSpec,
    BreakerSpec,
    EndpointSpec,
    EngineSpec,
    KvEventsSpec,
    PrefixSpec,
    TlsSpec,
)
from gateway.config.host_access import may_name
from gateway.config.overload import check_overload
from gateway.config.source_specs import SourceSpec
from gateway.config.sources import read_endpoint_or_source
from gateway.protocol.engine_protocols import protocols_with
from gateway.protocol.llm.templates import read_template as compile_template
from gateway.yaml import values
from gateway.yaml.nodes import Entry, Map, Node, Scalar
from gateway.yaml.problems import Location
from gateway.yaml.readers import Reader, Reading, keyed, one_or_many, record_of, scalar

T = TypeVar("T")

_TOKENIZER, _TOKENIZER_FILE = "tokenizer_config.json", "tokenizer.json"


def read_template(node: Node, reading: Reading) -> str | None:
    """The text of a template that is named by its path, relative to the rule file's folder; it must be there."""
    written = scalar(str)(node, reading)
    if written is None:
        return None
    path = (Path(node.location.file).parent / written).absolute()
    if not may_name(path, written, node.location, reading):
        return None
    try:
        text = path.read_text("utf-8")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        reading.error(node.location, f"chat template {written!r} cannot be read: {why} ({path})")
        return None
    if path.suffix == ".json" and not _has_template(text):
        reading.error(
            node.location, f"{written!r} has no 'chat_template': name a tokenizer_config.json, or a Jinja file"
        )
        return None
    try:
        compile_template(text)
    except ValueError as error:
        reading.error(node.location, f"chat template {written!r} cannot be used: {error}")
        return None
    beside = path.with_name(_TOKENIZER)
    if path.suffix != ".json" and beside.is_file():  # with a Jinja file's special tokens
        with suppress(OSError, ValueError, RecursionError):
            config = json.loads(beside.read_text("utf-8"))
            if isinstance(config, dict):
                return json.dumps(config | {"chat_template": text})
    return text


def _read_tokenizer(node: Node, reading: Reading) -> str | None:
    """A model's folder with tokenizer.json, named by its path, relative to the rule file's folder."""
    written = scalar(str)(node, reading)
    if written is None:
        return None
    folder = (Path(node.location.file).parent / written).absolute()
    if not may_name(folder, written, node.location, reading):
        return None
    if not (folder / _TOKENIZER_FILE).is_file():
        reading.error(node.location, f"{written!r} has no {_TOKENIZER_FILE}: name the folder of the model ({folder})")
        return None
    return str(folder)


def _has_template(text: str) -> bool:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and bool(document.get("chat_template"))


def _unique(parse: Callable[[str], object], collect: Callable[[Iterable[object]], T]) -> Reader[T]:
    """Read a list of values, each of which counts once."""
    read_all = one_or_many(scalar(parse))

    def read(node: Node, reading: Reading) -> T | None:
        found = read_all(node, reading)
        return None if found is None else collect(dict.fromkeys(found))

    return read


_with_values = keyed(value_parsers.added_header, read_credential)
_of_activator = keyed(value_parsers.activator_header, read_credential)


def _headers(node: Node, reading: Reading) -> Mapping[str, str | None] | None:
    """Read fields with their values; the client's own of those with `null` do not go on."""
    if not isinstance(node, Map):
        return _with_values(node, reading)
    kept: dict[str, Entry] = {}
    stripped: dict[str, None] = {}
    for key, entry in node.entries.items():
        if isinstance(entry.node, Scalar) and entry.node.is_null:
            name = scalar(value_parsers.stripped_header)(Scalar(key, False, entry.location), reading)
            stripped |= {name: None} if name is not None else {}
        else:
            kept[key] = entry
    headers = _with_values(replace(node, entries=kept), reading)
    return None if headers is None else {**stripped, **headers}


_ENGINE = record_of(
    "an engine",
    EngineSpec,
    preset=("name", "sources"),
    api_key=read_credential,
    headers=_headers,
    endpoints=one_or_many(read_endpoint_or_source),
    dialects=_unique(values.one_of(value_parsers.DIALECTS), tuple),
    chat_template=read_template,
    activator=record_of("an activator", ActivatorSpec, headers=_of_activator),
    prefix=record_of("prefix", PrefixSpec, events=record_of("prefix.events", KvEventsSpec, tokenizer=_read_tokenizer)),
    breaker=record_of("breaker", BreakerSpec, statuses=_unique(value_parsers.status, frozenset)),
)


def read_engine(name: str, location: Location, node: Node, reading: Reading) -> EngineSpec | None:
    """Read one engine; `location` is that of its name. Contradictions are errors, keys without effect are warnings."""
    engine = _ENGINE(node, reading, name=name, location=location)
    if engine is None:
        return None
    assert isinstance(node, Map)
    written: tuple[EndpointSpec | SourceSpec, ...] = engine.endpoints
    endpoints = tuple(each for each in written if isinstance(each, EndpointSpec))
    sources = tuple(dict.fromkeys(each for each in written if isinstance(each, SourceSpec)))
    engine = replace(engine, endpoints=endpoints, sources=sources)
    _check_endpoints(engine, node, location, reading)
    if engine.overload is not None:
        check_overload(engine.overload, f"engine {name!r}", node.entries["overload"].location, reading)
    if engine.hedging is not None and engine.retry.idempotent != "infer":
        what = f"hedging of engine {name!r} sends inferences twice: declare that this does no harm"
        reading.error(node.entries["hedging"].location, f"{what}, by retry: {{idempotent: infer}}")
    if engine.tls.key is not None and engine.tls.cert is None:
        reading.error(location, f"engine {name!r} has a tls key without its cert")
    if engine.tls != TlsSpec() and not engine.is_encrypted:
        reading.warn(location, f"engine {name!r} has tls settings, but no endpoint is https or grpcs")
    for key, why in _idle_keys(engine, node):
        reading.warn(node.entries[key].location, f"{key!r} of engine {name!r} has no effect: {why}")
    return engine


def _check_endpoints(engine: EngineSpec, node: Map, location: Location, reading: Reading) -> None:
    has_grpc = [endpoint.speaks_grpc for endpoint in engine.declared]
    has_rest = [endpoint.speaks_rest for endpoint in engine.declared]
    for has_address, front in ((has_grpc, "gRPC"), (has_rest, "REST")):
        if any(has_address) and not all(has_address):
            what = f"some endpoints of engine {engine.name!r} have an address for {front} and others have none"
            reading.error(location, f"{what}: give it to all, or none")
    for url, times in Counter(endpoint.url for endpoint in engine.endpoints).items():
        if times > 1:
            reading.warn(location, f"engine {engine.name!r} lists endpoint {url} twice: it is one endpoint")
    if any(has_grpc) and not engine.protocol.traits.has_grpc:
        message = f"engine {engine.name!r} speaks {engine.protocol.value}, which has no gRPC: give its http URL alone"
        reading.error(node.entries["endpoints"].location, message)


def _idle_keys(engine: EngineSpec, node: Map) -> list[tuple[str, str]]:
    """Keys without effect, each with the reason."""
    keys, protocol, traits, load = node.entries, engine.protocol, engine.protocol.traits, engine.load
    found = [
        (key, f"it is for protocol {' and '.join(other.value for other in meant_for)}")
        for key in keys
        if (meant_for := protocols_with(key)) and protocol not in meant_for
    ]
    balance = engine.balance.traits
    idle = {key for key, _ in found}
    if "chat_template" in keys and traits.has_dialects and "chat" in engine.dialects:
        found.append(("chat_template", "its 'dialects' have chat, so the engine applies its own"))
    if "load" in keys and "load" not in idle:
        if load.source == "metrics" and not engine.health.interval:
            found.append(("load", "metrics are asked for with the probes, and health.interval is 0"))
        elif load.source != "metrics" and load.path != type(load)().path:
            found.append(("load", f"a path is where metrics are, and its source is {load.source}"))
        elif load.source != "none" and not balance.uses_load:
            found.append(("load", f"balance {engine.balance.value} asks for no load; it is shown only"))
    if "hedging" in keys:
        if not protocol.is_v2:
            found.append(("hedging", f"it is for V2's inferences, and this engine speaks {protocol.value}"))
        elif len(engine.endpoints) < 2 and not engine.sources:
            found.append(("hedging", "there is no second endpoint"))
    if "models" in keys and engine.models.unknown == "refuse" and (why := _why_no_lists(engine)):
        found.append(("models", f"unknown: refuse needs lists of models, and {why}"))
    if engine.models.path is not None and (engine.models.source == "none" or not engine.health.interval):
        found.append(("models", "path is where the probes read lists, and they read none"))
    elif engine.models.path is not None and engine.models.path[0] != ":" and not engine.speaks_rest:
        found.append(("models", "its endpoints have no REST: path needs a port, as :8081/models"))
    metrics = engine.metrics
    if "metrics" in keys and metrics.path is None:
        found.append(("metrics", "metrics.path says where they are, as :8002/metrics, and is missing"))
    elif metrics.path is not None and metrics.path[0] != ":" and not engine.speaks_rest:
        found.append(("metrics", "its endpoints have no REST: metrics.path needs a port, as :8002/metrics"))
    if "affinity" in keys and not balance.by_session:
        found.append(("affinity", f"it is for balance session, and this is {engine.balance.value}"))
    if "prefix" in keys and "prefix" not in idle and not balance.by_prompt:
        found.append(("prefix", f"it is for balance prefix, and this is {engine.balance.value}"))
    zone = engine.locality.zone
    places = {(endpoint.priority, zone is not None and endpoint.zone != zone) for endpoint in engine.endpoints}
    if "locality" in keys and not engine.sources and len(places) < 2:
        found.append(("locality", "no endpoint comes before another, by its priority or its zone"))
    if "slow_start" in keys and (balance.by_session or balance.by_prompt):
        found.append(("slow_start", f"balance {engine.balance.value} places requests by what they share"))
    if engine.prefix.events is None and any(endpoint.kv_events is not None for endpoint in engine.endpoints):
        found.append(("endpoints", "kv_events are the addresses of prefix.events, which is missing"))
    if balance.by_prompt and not traits.generates_text:
        found.append(("balance", f"requests to a {protocol.value} engine have no prompt, so this is least_outstanding"))
    return found


def _why_no_lists(engine: EngineSpec) -> str:
    """Why no endpoint's list of models is read; empty where they are."""
    if not engine.health.interval:
        return "they are read with the probes, and health.interval is 0"
    if engine.models.source == "none":
        return "models.source is none"
    lists = engine.protocol.is_v2 or engine.protocol.traits.models_path is not None or engine.models.path is not None
    return "" if lists else f"protocol {engine.protocol.value} has none"
