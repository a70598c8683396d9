"""Reads rule files as a whole: all files and findings, and the specs of all of them, or none.

Engines, experiments and routes of several files form one set; routes keep the file order. Top-level keys that begin
with `x-` are ignored: they are a place for anchors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from gateway.config.engines import read_engine
from gateway.config.experiment_specs import ExperimentSpec, ForcingSpec, LayerSpec
from gateway.config.experiments import check_layers, read_experiment, read_forcing, read_layer
from gateway.config.limits import read_limits
from gateway.config.reachability import find_unreachable
from gateway.config.routes import read_identity, read_route
from gateway.config.rule_files import RuleFile, digest_of, files_of, read_files
from gateway.config.rule_test_specs import RuleTestSpec
from gateway.config.rule_tests import check_tests, read_tests
from gateway.config.sessions import check_history, check_replay
from gateway.config.specs import EngineSpec, IdentitySpec, LimitSpec, RouteSpec, RulesSpec
from gateway.yaml.nodes import Items, Map, Node, Scalar, read_yaml
from gateway.yaml.problems import Location, Problem, Severity, suggest
from gateway.yaml.readers import Reading, expected
from gateway.yaml.values import name as parse_name

T = TypeVar("T")

_SECTIONS = ("version", "engines", "routes", "experiments", "layers", "forcing", "identity", "limits", "tests")
_VERSION = "1"


@dataclass(frozen=True, slots=True)
class LoadedRules:
    """The outcome of a load: rules where no problem is an error, and each problem in the order of the files."""

    rules: RulesSpec | None
    problems: tuple[Problem, ...]
    files: tuple[Path, ...]
    texts: Mapping[str, str] = field(default_factory=dict)  # file contents by name; without files that are not text

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.severity is Severity.ERROR)


@dataclass(slots=True)
class _Gathered:
    """The specs read so far; each is sound in itself."""

    reading: Reading
    engines: dict[str, EngineSpec] = field(default_factory=dict)
    experiments: dict[str, ExperimentSpec] = field(default_factory=dict)
    routes: list[RouteSpec] = field(default_factory=list)
    identity: IdentitySpec = field(default_factory=IdentitySpec)
    limits: list[LimitSpec] = field(default_factory=list)
    layers: dict[str, LayerSpec] = field(default_factory=dict)
    forcing: ForcingSpec = field(default_factory=ForcingSpec)
    tests: list[RuleTestSpec] = field(default_factory=list)


def load_rules(paths: Sequence[Path], environment: Mapping[str, str] | None = None) -> LoadedRules:
    """Read rule files: files, or directories with *.yaml and *.yml in name order.

    `environment` fills `${VAR}`; None means the process's own. Never raises for file contents.
    """
    files, problems = read_files(paths)
    return _load(files, problems, environment, paths)


def load_texts(texts: Mapping[str, str], environment: Mapping[str, str] | None = None) -> LoadedRules:
    """Read texts as rule files of these names, in this order; files that they refer to, such as chat templates, are
    read from disk."""
    return _load(files_of(texts), [], environment, [Path(name) for name in texts])


def _load(
    files: list[RuleFile], problems: list[Problem], environment: Mapping[str, str] | None, paths: Sequence[Path]
) -> LoadedRules:
    gathered = _Gathered(Reading(problems, is_partial=bool(problems)))
    for file in files:
        _read_file(file, os.environ if environment is None else environment, gathered)
    _check_together(gathered, paths)
    names = {str(file.path): order for order, file in enumerate(files)}
    found = dict.fromkeys(gathered.reading.problems)  # findings behind an anchor repeat at each use
    ordered = tuple(sorted(found, key=lambda problem: _order(problem, names)))
    texts = {str(file.path): file.content.decode("utf-8", "replace") for file in files}
    return LoadedRules(_rules(gathered, files), ordered, tuple(file.path for file in files), texts)


def _rules(gathered: _Gathered, files: list[RuleFile]) -> RulesSpec | None:
    if gathered.reading.num_errors:
        return None
    digest = digest_of(file.content for file in files)
    routes, limits = tuple(gathered.routes), tuple(gathered.limits)
    return RulesSpec(
        gathered.engines,
        routes,
        gathered.experiments,
        gathered.identity,
        digest,
        limits,
        layers=gathered.layers,
        forcing=gathered.forcing,
        tests=tuple(gathered.tests),
    )


def _order(problem: Problem, files: Mapping[str, int]) -> tuple[int, int, int]:
    location = problem.location
    return files.get(location.file, -1), location.line, location.column


def _read_file(file: RuleFile, environment: Mapping[str, str], gathered: _Gathered) -> None:
    reading, start = gathered.reading, Location(str(file.path), 1, 1)
    try:
        text = file.content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = file.content.count(b"\n", 0, error.start) + 1
        reading.error(Location(str(file.path), line, 1), f"not UTF-8: byte {file.content[error.start]:#04x}")
        reading.is_partial = True
        return
    root = read_yaml(text, str(file.path), environment, reading.problems)
    if isinstance(root, Map):
        _read_sections(root, gathered)
        return
    reading.is_partial = True
    if isinstance(root, Scalar) and root.is_null:
        reading.error(start, "the file is empty: a rule file begins with 'version: 1'")
    else:
        expected(root, f"a map with {', '.join(_SECTIONS)}", reading)


def _read_sections(root: Map, gathered: _Gathered) -> None:
    reading = gathered.reading
    if "version" not in root.entries:
        reading.error(root.location, "the file has no 'version': write 'version: 1'")
    for key, entry in root.entries.items():
        match key:
            case "version":
                _check_version(entry.node, reading)
            case "engines":
                gathered.engines |= _read_named("engine", entry.node, read_engine, reading)
            case "experiments":
                gathered.experiments |= _read_named("experiment", entry.node, read_experiment, reading)
            case "layers":
                gathered.layers |= _read_named("layer", entry.node, read_layer, reading)
            case "forcing":
                reading.declare("section", "forcing", entry.location)
                gathered.forcing = read_forcing(entry.node, reading) or gathered.forcing
            case "routes":
                gathered.routes += _read_routes(entry.node, reading)
            case "identity":
                reading.declare("section", "identity", entry.location)
                gathered.identity = read_identity(entry.node, reading) or gathered.identity
            case "limits":
                gathered.limits += read_limits(entry.node, reading)
            case "tests":
                gathered.tests += read_tests(entry.node, reading)
            case _ if not key.startswith("x-"):
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


def _read_routes(section: Node, reading: Reading) -> list[RouteSpec]:
    if not isinstance(section, Items):
        expected(section, "a list of routes", reading)
        reading.is_partial = True
        return []
    routes = [read_route(node, reading) for node in section.nodes]
    return [route for route in routes if route is not None]


def _check_together(gathered: _Gathered, paths: Sequence[Path]) -> None:
    """Check what depends on all files together."""
    reading = gathered.reading
    for route, earlier in find_unreachable(gathered.routes):
        assert route.location is not None
        by = f"{earlier.name!r} ({earlier.location}) takes all that it matches"
        reading.warn(route.location, f"route {route.name!r} is never reached: {by}")
    check_history(gathered.routes, gathered.engines, gathered.experiments, reading)
    check_replay(gathered.routes, gathered.engines, gathered.experiments, gathered.identity, reading)
    check_layers(gathered.experiments, gathered.layers, reading)
    if reading.is_partial:
        return
    _check_names("engine", reading)
    _check_names("experiment", reading)
    _check_names("route", reading, is_used=True)
    _check_names("layer", reading, by="experiment")
    check_tests(gathered.tests, reading)
    if not reading.num_errors and not gathered.routes:
        place = Location(str(paths[0]) if paths else "rules", 1, 1)
        reading.error(place, "there are no routes: no request can go anywhere")


def _check_names(kind: str, reading: Reading, *, is_used: bool = False, by: str = "route") -> None:
    """Every name that is referred to is declared, and every one that is declared is referred to; `is_used`: that is of
    use without."""
    declared = reading.declared.get(kind, {})
    references = [reference for reference in reading.references if reference.kind == kind]
    for name, location in ((reference.name, reference.location) for reference in references):
        if name not in declared:
            reading.error(location, f"unknown {kind} {name!r}{suggest(name, declared)}")
    for name in () if is_used else declared.keys() - {reference.name for reference in references}:
        reading.warn(declared[name], f"{kind} {name!r} is not used by any {by}")
