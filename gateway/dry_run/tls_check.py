"""The TLS files that rules name, read: rules whose files cannot be used are refused."""

from __future__ import annotations

from dataclasses import replace

from gateway.config.engine_specs import TlsSpec
from gateway.config.rules import LoadedRules
from gateway.net.tls_files import find_problems
from gateway.yaml.problems import Location, Problem, Severity


def with_tls_files(loaded: LoadedRules) -> LoadedRules:
    """The rules with what is wrong with the TLS files of their engines, and which certificates end soon; none where a
    file cannot be used."""
    if loaded.rules is None:
        return loaded
    of_spec: dict[TlsSpec, list[tuple[Severity, str]]] = {}
    found = []
    for name, engine in loaded.rules.engines.items():
        tls = engine.tls
        if tls not in of_spec:
            of_spec[tls] = list(find_problems(tls.ca, tls.cert, tls.key, names=("tls.ca", "tls.cert", "tls.key")))
        place = engine.location or Location("rules", 1, 1)
        found += [Problem(place, f"engine {name!r}: {what}", severity) for severity, what in of_spec[tls]]
    is_usable = not any(problem.is_error for problem in found)
    return replace(loaded, rules=loaded.rules if is_usable else None, problems=(*loaded.problems, *found))
