"""The fields of requests that rules use."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.config.specs import RulesSpec
from gateway.routing.steps import Steps, run_now

_HEADER = "header:"
_PARAMETER = "parameter:"


@dataclass(frozen=True, slots=True)
class UsedFields:
    """Names of body parameters, and of all header fields that a decision may depend on, except the session's.
    `unit_headers` are those of the headers that only experiments use, as units."""

    parameters: frozenset[str]
    headers: frozenset[str]
    unit_headers: frozenset[str]


def used_fields(rules: RulesSpec) -> UsedFields:
    return run_now(find_used_fields(rules))


def find_used_fields(rules: RulesSpec) -> Steps[UsedFields]:
    """The same, in steps."""
    headers: set[str] = set()
    parameters = {*rules.identity.session_parameters}
    for route in rules.routes:
        headers.update(route.match.header)
        parameters.update(route.match.parameter)
        if route.match.tenant or route.session.history is not None:
            headers.add(rules.identity.tenant_header)
        yield
    units = [each.unit for each in rules.experiments.values()] + [each.unit for each in rules.layers.values()]
    unit_headers = {unit.removeprefix(_HEADER) for unit in units if unit.startswith(_HEADER)}
    if rules.auth is not None and rules.identity.tenant_header in unit_headers:
        headers.add(rules.identity.tenant_header)  # the verified caller's, which all requests of a head have
    parameters |= {unit.removeprefix(_PARAMETER) for unit in units if unit.startswith(_PARAMETER)}
    return UsedFields(frozenset(parameters), frozenset(headers | unit_headers), frozenset(unit_headers - headers))
