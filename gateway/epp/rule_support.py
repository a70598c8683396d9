"""Which rules an endpoint picker can follow: it sees a request before it goes on, and its reply, but sends nothing.

What protects engines or callers is refused where the picker cannot enforce it. What only helps is left out, with a
warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

from gateway.config.engine_specs import EngineSpec
from gateway.config.rules import LoadedRules
from gateway.config.specs import RouteSpec, RulesSpec, SessionSpec
from gateway.config.value_parsers import is_address
from gateway.protocol.credentials import is_credential
from gateway.yaml.problems import Location, Problem, Severity

_NO_PLACE = Location("the rules", 1, 1)


def supported(loaded: LoadedRules, *, is_closed: bool = False) -> LoadedRules:
    """The rules without what a picker leaves out, and all that it refuses or leaves out among the problems; no rules
    where it refuses some. `is_closed`: only proxies with a certificate are served, and so may read credentials."""
    if loaded.rules is None:
        return loaded
    problems = [*loaded.problems, *_refused(loaded.rules), *_left_out(loaded.rules)]
    if not is_closed:
        problems += _exposed(loaded.rules)
    is_refused = any(problem.is_error for problem in problems)
    return replace(loaded, rules=None if is_refused else _reduced(loaded.rules), problems=tuple(problems))


def _refused(rules: RulesSpec) -> Iterator[Problem]:
    if rules.auth is not None:
        what = "the endpoint picker identifies no callers: have the proxy authenticate them, and remove auth"
        yield _problem(rules.auth.location, what)
    for limit in rules.limits:
        what = f"the endpoint picker enforces no limits: remove limit '{limit.name}', or have the proxy limit rates"
        yield _problem(limit.location, what)
    for budget in rules.budgets:
        yield _problem(budget.location, f"the endpoint picker counts no budgets: remove budget '{budget.name}'")
    for route in rules.routes:
        if route.session.history is not None:
            what = f"route '{route.name}' stores conversations (history), which needs the gateway in the data path"
            yield _problem(route.location, what)
    for engine in rules.engines.values():
        for address in dict.fromkeys(_names_in_place_of_addresses(engine)):
            host, _, port = address.rpartition(":")
            what = f"engine '{engine.name}': {address!r} is a name, and proxies take addresses: write"
            yield _problem(engine.location, f"{what} {{dns: '{host}:{port}'}}, or host:port with an address")


def _exposed(rules: RulesSpec) -> Iterator[Problem]:
    """A picker answers with the fields that an engine gets."""
    for engine in rules.engines.values():
        named = ["api_key"] if engine.api_key else []
        named += [f"header '{name}'" for name, value in engine.headers.items() if value and is_credential(name)]
        for what in named:
            text = (
                f"engine '{engine.name}': all who reach the gRPC port would read its {what}: let in only proxies with "
                "a certificate (--tls-client-ca), or have the proxy add it"
            )
            yield _problem(engine.location, text)


def _names_in_place_of_addresses(engine: EngineSpec) -> Iterator[str]:
    for endpoint in engine.endpoints:
        for address in (rest_address(endpoint.url), endpoint.grpc):
            if address is not None and not is_address(address.rpartition(":")[0]):
                yield address


def _left_out(rules: RulesSpec) -> Iterator[Problem]:
    for route in rules.routes:
        for what, is_declared in (
            ("fallback: the proxy does not ask again", bool(route.fallback)),
            ("shadow", route.shadow is not None),
            ("resume", route.resume),
            ("session.sequences: replay", route.session.replay is not None),
        ):
            if is_declared:
                yield _warning(route.location, f"route '{route.name}': the endpoint picker leaves out {what}")
    for experiment in rules.experiments.values():
        if experiment.ramp or experiment.guardrails or experiment.bandit:
            what = "splits by the weights of the rules: ramps, guardrails and bandits are the gateway's"
            yield _warning(experiment.location, f"experiment '{experiment.name}': the endpoint picker {what}")
    for engine in rules.engines.values():
        for name, is_declared in (
            ("hedging", engine.hedging is not None),
            ("wait_for_endpoint and activator", bool(engine.wait_for_endpoint) or engine.activator is not None),
            ("prefix.events: it remembers the prompts that it has seen", engine.prefix.events is not None),
            ("always_stream", engine.always_stream),
        ):
            if is_declared:
                yield _warning(engine.location, f"engine '{engine.name}': the endpoint picker leaves out {name}")


def _reduced(rules: RulesSpec) -> RulesSpec:
    engines = {name: _reduced_engine(engine) for name, engine in rules.engines.items()}
    experiments = {
        name: replace(each, arms=tuple(replace(arm, fallback=()) for arm in each.arms))
        for name, each in rules.experiments.items()
    }
    return replace(rules, engines=engines, experiments=experiments, routes=tuple(map(_reduced_route, rules.routes)))


def _reduced_route(route: RouteSpec) -> RouteSpec:
    return replace(route, fallback=(), shadow=None, resume=False, session=SessionSpec())


def _reduced_engine(engine: EngineSpec) -> EngineSpec:
    prefix = replace(engine.prefix, events=None)
    return replace(engine, hedging=None, wait_for_endpoint=0.0, activator=None, always_stream=False, prefix=prefix)


def rest_address(url: str) -> str | None:
    """The host:port of an endpoint's URL; None where that is one of gRPC."""
    parts = urlsplit(url)
    ports = {"http": 80, "https": 443}
    if parts.scheme not in ports:
        return None
    host = parts.hostname or ""
    port = parts.port or ports[parts.scheme]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _problem(location: Location | None, message: str) -> Problem:
    return Problem(location or _NO_PLACE, message)


def _warning(location: Location | None, message: str) -> Problem:
    return Problem(location or _NO_PLACE, message, Severity.WARNING)
