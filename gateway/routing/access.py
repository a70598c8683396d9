"""Who may use a route."""

from __future__ import annotations

from collections.abc import Callable

from gateway.config.auth_specs import AccessSpec
from gateway.config.specs import RouteSpec
from gateway.protocol.principal import Principal
from gateway.routing.matchers import text_test


class RouteAccess:
    """The callers whom a route lets in."""

    __slots__ = ("_allowed", "_refused")

    def __init__(self, spec: RouteSpec) -> None:
        self._allowed = [_test(each) for each in spec.allow]
        self._refused = [_test(each) for each in spec.refuse]

    def admits(self, principal: Principal | None) -> bool:
        """Whether a caller may use the route; an anonymous one only where all may."""
        if principal is None:
            return False
        if any(holds(principal) for holds in self._refused):
            return False
        return not self._allowed or any(holds(principal) for holds in self._allowed)


def access_of(spec: RouteSpec) -> RouteAccess | None:
    """None where all callers may use the route."""
    return RouteAccess(spec) if spec.allow or spec.refuse else None


def _test(spec: AccessSpec) -> Callable[[Principal], bool]:
    """Whether all keys of a spec hold for a caller."""
    tenant = text_test(spec.tenant or ("*",))
    key = text_test(spec.key or ("*",))
    claims = [(name, text_test(patterns)) for name, patterns in spec.claim.items()]

    def holds(principal: Principal) -> bool:
        if not (tenant(principal.tenant) and key(principal.key)):
            return False
        return all(any(map(test, principal.claims.get(name, ()))) for name, test in claims)

    return holds
