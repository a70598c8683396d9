"""The TLS files that rules name, read: rules whose files cannot be used are refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gateway.config.engine_specs import EngineSpec, TlsSpec
from gateway.config.rules import LoadedRules
from gateway.net.tls_files import find_problems
from gateway.yaml.problems import Location, Problem, Severity


def with_tls_files(loaded: LoadedRules) -> LoadedRules:
    """The rules with what is wrong with the TLS files of their engines, activators and sources, and which certificates
    end soon; none where a file cannot be used."""
    if loaded.rules is None:
        return loaded
    of_files: dict[tuple[str, TlsSpec], list[tuple[Severity, str]]] = {}
    found = []
    for name, engine in loaded.rules.engines.items():
        place = engine.location or Location("rules", 1, 1)
        for prefix, tls in _contexts(engine):
            if (prefix, tls) not in of_files:
                names = f"{prefix}ca", f"{prefix}cert", f"{prefix}key"
                of_files[prefix, tls] = list(find_problems(tls.ca, tls.cert, tls.key, names=names))
            found += [Problem(place, f"engine {name!r}: {what}", severity) for severity, what in of_files[prefix, tls]]
    is_usable = not any(problem.is_error for problem in found)
    return replace(loaded, rules=loaded.rules if is_usable else None, problems=(*loaded.problems, *found))


def _contexts(engine: EngineSpec) -> Iterator[tuple[str, TlsSpec]]:
    """The files of each kind of connection, behind the key that they have in rules."""
    yield "tls.", engine.tls
    if engine.activator is not None:
        yield "activator.tls.", engine.activator.tls
    for source in engine.sources:
        if source.kubernetes is not None:
            yield "endpoints.kubernetes.", TlsSpec(ca=source.kubernetes.ca)
        if source.http is not None:
            yield "endpoints.", TlsSpec(ca=source.ca)
