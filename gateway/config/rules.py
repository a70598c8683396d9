"""Reads rule files as a whole: all files and findings, and the specs of all of them, or none.

Engines, experiments and routes of several files form one set; routes keep the file order. Top-level keys that begin
with `x-` are ignored: they are a place for anchors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from gateway.config.auth import (
    check_access,
    check_cache_salts,
    check_conversations,
    check_credentials,
    check_forwarded_certificates,
    check_identity,
    check_keys,
    read_auth,
)
from gateway.config.budgets import check_budgets, read_budget, read_price
from gateway.config.engines import read_engine
from gateway.config.experiments import check_layers, read_experiment, read_forcing, read_layer
from gateway.config.fallbacks import check_fallbacks
from gateway.config.hooks import check_hooks
from gateway.config.host_access import Environment, HostNames, may_name
from gateway.config.overload import read_classes
from gateway.config.reachability import find_unreachable
from gateway.config.routes import check_tests, read_identity, read_limit, read_route, read_test
from gateway.config.rule_files import RuleFile, digest_of, files_of, read_files
from gateway.config.sessions import check_sessions
from gateway.config.specs import RulesSpec
from gateway.yaml.nodes import Items, Map, Node, Scalar, ValueCount, read_yaml
from gateway.yaml.problems import Location, Problem, Severity, suggest
from gateway.yaml.readers import Reading, expected
from gateway.yaml.values import name as parse_name

T = TypeVar("T")

_SECTIONS = (
    *("version", "engines", "routes", "experiments", "layers", "forcing", "auth", "identity", "limits", "budgets"),
    *("prices", "classes", "tests"),
)
_VERSION = "1"
# Unknown names with a suggestion: each is compared with all that are declared, which may be thousands.
_MAX_SUGGESTED = 20


@dataclass(frozen=True, slots=True)
class LoadedRules:
    """The outcome of a load: rules where no problem is an error, and each problem in the order of the files."""

    rules: RulesSpec | None
    problems: tuple[Problem, ...]
    files: tuple[Path, ...]
    texts: Mapping[str, str] = field(default_factory=dict)  # file contents by name; without files that are not text
    host_names: HostNames = field(default_factory=HostNames)  # that the files name
    followed_files: tuple[Path, ...] = ()  # keys and credentials, which may change without the rule files

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.severity is Severity.ERROR)


def load_rules(paths: Sequence[Path], environment: Mapping[str, str] | None = None) -> LoadedRules:
    """Read rule files: files, or directories with *.yaml and *.yml in name order.

    `environment` fills `${VAR}`; None means the process's own. Never raises for file contents.
    """
    files, problems = read_files(paths)
    return _load(files, problems, environment, paths)


def load_texts(
    texts: Mapping[str, str], environment: Mapping[str, str] | None = None, allowed: HostNames | None = None
) -> LoadedRules:
    """Read texts as rule files of these names, in this order; files that they refer to, such as chat templates, are
    read from disk. `allowed` are the only names of this host that they may have."""
    return _load(files_of(texts), [], environment, [Path(name) for name in texts], allowed)


def _load(
    files: list[RuleFile],
    problems: list[Problem],
    values: Mapping[str, str] | None,
    paths: Sequence[Path],
    allowed: HostNames | None = None,
) -> LoadedRules:
    environment = Environment(os.environ if values is None else values, allowed)
    allowed_files = allowed.files if allowed is not None else None
    reading = Reading(problems, allowed_files=allowed_files, is_partial=bool(problems), environment=environment)
    reading.allowed_hooks = allowed.hooks if allowed is not None else None
    sections: dict[str, Any] = {"engines": {}, "routes": ()}
    count = ValueCount()
    for file in files:
        _read_file(file, environment, sections, reading, count)
    rules = RulesSpec(**sections, digest=digest_of(file.content for file in files))
    _check_together(rules, paths, reading)
    _check_tls_files(rules, reading)
    names = {str(file.path): order for order, file in enumerate(files)}
    cleared = [replace(problem, message=environment.without_values(problem.message)) for problem in problems]
    found = dict.fromkeys(cleared)  # findings behind an anchor repeat at each use
    ordered = tuple(sorted(found, key=lambda problem: _order(problem, names)))
    texts = {str(file.path): file.content.decode("utf-8", "replace") for file in files}
    host_names = HostNames(frozenset(environment.read), frozenset(reading.named_files), frozenset(reading.named_hooks))
    return LoadedRules(
        None if reading.num_errors else rules,
        ordered,
        tuple(file.path for file in files),
        texts,
        host_names,
        tuple(map(Path, reading.followed_files)),
    )


def _check_tls_files(rules: RulesSpec, reading: Reading) -> None:
    for engine in rules.engines.values():
        for tls in (engine.tls, *([engine.activator.tls] if engine.activator is not None else [])):
            for written in filter(None, (tls.ca, tls.cert, tls.key)):
                assert engine.location is not None
                may_name(Path(written), written, engine.location, reading)


def _order(problem: Problem, files: Mapping[str, int]) -> tuple[int, int, int]:
    location = problem.location
    return files.get(location.file, -1), location.line, location.column


def _read_file(
    file: RuleFile, environment: Mapping[str, str], sections: dict[str, Any], reading: Reading, count: ValueCount
) -> None:
    start = Location(str(file.path), 1, 1)
    try:
        text = file.content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = file.content.count(b"\n", 0, error.start) + 1
        reading.error(Location(str(file.path), line, 1), f"not UTF-8: byte {file.content[error.start]:#04x}")
        reading.is_partial = True
        return
    root = read_yaml(text, str(file.path), environment, reading.problems, count)
    if isinstance(root, Map):
        _read_sections(root, sections, reading)
        return
    reading.is_partial = True
    if isinstance(root, Scalar) and root.is_null:
        reading.error(start, "the file is empty: a rule file begins with 'version: 1'")
    else:
        expected(root, f"a map with {', '.join(_SECTIONS)}", reading)


_NAMED: Mapping[str, Callable[[str, Location, Node, Reading], Any]] = {
    "engines": read_engine,
    "experiments": read_experiment,
    "layers": read_layer,
}
_LISTED: Mapping[str, Callable[[Node, Reading], Any]] = {
    "routes": read_route,
    "limits": read_limit,
    "budgets": read_budget,
    "prices": read_price,
    "tests": read_test,
}
_SINGLE: Mapping[str, Callable[[Node, Reading], Any]] = {
    "auth": read_auth,
    "classes": read_classes,
    "forcing": read_forcing,
    "identity": read_identity,
}


def _read_sections(root: Map, sections: dict[str, Any], reading: Reading) -> None:
    """Add the file's sections to those of earlier files, by the fields of `RulesSpec`."""
    if "version" not in root.entries:
        reading.error(root.location, "the file has no 'version': write 'version: 1'")
    for key, entry in root.entries.items():
        if key == "version":
            _check_version(entry.node, reading)
        elif key in _NAMED:
            named = _read_named(key.removesuffix("s"), entry.node, _NAMED[key], reading)
            sections[key] = sections.get(key, {}) | named
        elif key in _LISTED:
            listed = _read_listed(key.removesuffix("s"), entry.node, _LISTED[key], reading)
            sections[key] = (*sections.get(key, ()), *listed)
        elif key in _SINGLE:
            reading.declare("section", key, entry.location)
            single = _SINGLE[key](entry.node, reading)
            sections |= {key: single} if single is not None else {}
        elif not key.startswith("x-"):
            reading.error(entry.location, f"unknown key {key!r} in a rule file{suggest(key, _SECTIONS)}")


def _check_version(node: Node, reading: Reading) -> None:
    if not isinstance(node, Scalar):
        expected(node, "version 1", reading)
    elif node.text != _VERSION:
        reading.error(node.location, f"version {node.text!r} is not known: this gateway reads version 1")


def _read_named(
    kind: str, section: Node, read: Callable[[str, Location, Node, Reading], T | None], reading: Reading
) -> dict[str, T]:
    """Read a section that maps names to specs."""
    if not isinstance(section, Map):
        expected(section, f"a map from {kind} names to {kind}s", reading)
        reading.is_partial = True
        return {}
    specs: dict[str, T] = {}
    for name, entry in section.entries.items():
        reading.declare(kind, name, entry.location)
        try:
            parse_name(name)
        except ValueError as error:
            reading.error(entry.location, str(error))
        spec = read(name, entry.location, entry.node, reading)
        if spec is not None:
            specs[name] = spec
    return specs


def _read_listed(kind: str, section: Node, read: Callable[[Node, Reading], T | None], reading: Reading) -> list[T]:
    """Read a section that is a list of specs, which have their names in them."""
    if not isinstance(section, Items):
        expected(section, f"a list of {kind}s", reading)
        reading.is_partial = True
        return []
    specs = []
    for node in section.nodes:
        if isinstance(node, Map) and "name" in node.entries:
            name = node.entries["name"].node
            if isinstance(name, Scalar) and not name.is_null:
                reading.declare(kind, name.text, node.location)
        spec = read(node, reading)
        if spec is not None:
            specs.append(spec)
    return specs


def _check_together(rules: RulesSpec, paths: Sequence[Path], reading: Reading) -> None:
    """Check what depends on all files together."""
    for route, earlier in find_unreachable(rules.routes):
        assert route.location is not None
        by = f"{earlier.name!r} ({earlier.location}) takes all that it matches"
        reading.warn(route.location, f"route {route.name!r} is never reached: {by}")
    check_sessions(rules, reading)
    check_access(rules, reading)
    check_credentials(rules, reading)
    check_budgets(rules, reading)
    check_identity(rules, reading)
    check_forwarded_certificates(rules, reading)
    check_keys(rules, reading)
    check_cache_salts(rules, reading)
    check_layers(rules.experiments, rules.layers, reading)
    check_hooks(rules, reading)
    if reading.is_partial:
        return
    _check_names("engine", reading)
    _check_names("experiment", reading)
    _check_names("route", reading, is_used=True)
    _check_names("layer", reading, by="experiment")
    check_tests(rules.tests, reading)
    if not reading.num_errors:
        check_conversations(rules, reading)
        check_fallbacks(rules, reading)
    if not reading.num_errors and not rules.routes:
        place = Location(str(paths[0]) if paths else "rules", 1, 1)
        reading.error(place, "there are no routes: no request can go anywhere")


def _check_names(kind: str, reading: Reading, *, is_used: bool = False, by: str = "route") -> None:
    """Every name that is referred to is declared, and every one that is declared is referred to; `is_used`: that is of
    use without."""
    declared = reading.declared.get(kind, {})
    references = [reference for reference in reading.references if reference.kind == kind]
    unknown = [reference for reference in references if reference.name not in declared]
    for number, reference in enumerate(unknown):
        likely = suggest(reference.name, declared) if number < _MAX_SUGGESTED else ""
        reading.error(reference.location, f"unknown {kind} {reference.name!r}{likely}")
    for name in () if is_used else declared.keys() - {reference.name for reference in references}:
        reading.warn(declared[name], f"{kind} {name!r} is not used by any {by}")
