"""What rules ask of requests, by name."""

from __future__ import annotations

from gateway.config.specs import RulesSpec

_PARAMETER = "parameter:"
_HEADER = "header:"


def asked_parameters(rules: RulesSpec) -> frozenset[str]:
    """The parameters of bodies that some rule asks for."""
    asked = {name for route in rules.routes for name in route.match.parameter}
    asked |= {unit.removeprefix(_PARAMETER) for unit in _units(rules) if unit.startswith(_PARAMETER)}
    return frozenset(asked | {*rules.identity.session_parameters})


def asked_headers(rules: RulesSpec) -> frozenset[str]:
    """The names of all request fields that a decision may depend on, but for that of the session."""
    return _headers_of_routes(rules) | _headers_of_units(rules)


def unit_headers(rules: RulesSpec) -> frozenset[str]:
    """Those by which experiments assign, and that nobody else asks for."""
    return _headers_of_units(rules) - _headers_of_routes(rules)


def _headers_of_routes(rules: RulesSpec) -> frozenset[str]:
    names = {name for route in rules.routes for name in route.match.header}
    if any(route.match.tenant or route.session.history is not None for route in rules.routes):
        names.add(rules.identity.tenant_header)
    return frozenset(names)


def _headers_of_units(rules: RulesSpec) -> frozenset[str]:
    return frozenset(unit.removeprefix(_HEADER) for unit in _units(rules) if unit.startswith(_HEADER))


def _units(rules: RulesSpec) -> list[str]:
    return [each.unit for each in rules.experiments.values()] + [each.unit for each in rules.layers.values()]
