"""Why a request is refused before an engine gets it."""

from __future__ import annotations

from gateway.auth.identity import unauthenticated
from gateway.config.settings import Settings
from gateway.dataplane.context.local_replies import OF_ROUTE, body_too_long
from gateway.dataplane.context.route_target import RouteTarget
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.operations import (
    ambiguous_path,
)
from gateway.routing.decision import Facts, Undecided


def check_size(route_target: RouteTarget, size: int) -> None:
    """Check the size of a body by its route. Raises: GatewayError(BODY_TOO_LARGE)."""
    most = route_target.spec.max_body_bytes
    if most is not None and size > most:
        raise body_too_long(most, OF_ROUTE)


def check_path(path: str, route_target: RouteTarget, settings: Settings) -> None:
    """Check a path that has a client's name of a model, unless the rules give the name at the engine.

    Raises: GatewayError(BAD_REQUEST) where the engine could read another name, or another path.
    """
    if route_target.spec.model is None and not settings.encoded_slashes:
        refused = ambiguous_path(path)
        if refused is not None:
            raise refused


def undecided(decision: Undecided, facts: Facts) -> GatewayError:
    """No route takes this request of this caller."""
    if decision is not Undecided.FORBIDDEN:
        return no_route(facts)
    if facts.principal is None:
        return unauthenticated(f"model '{facts.model}' needs an API key")
    return GatewayError(ErrorKind.FORBIDDEN, f"this caller may not use model '{facts.model}'")


def no_route(facts: Facts) -> GatewayError:
    """No rule takes this request: the text is Triton's for an unknown model."""
    version = f" version {facts.version}" if facts.version else ""
    return GatewayError(ErrorKind.NO_ROUTE, f"Request for unknown model: '{facts.model}'{version} is not found")
