"""A route's target for gRPC calls, with their fields as each endpoint gets them."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.dataplane.context.local_replies import OF_ROUTE
from gateway.dataplane.context.route_target import RouteTarget
from gateway.upstream.endpoint import Endpoint
from gateway.wire.grpc import PREFIX_BYTES, too_long
from gateway.wire.http2.fields import Field
from gateway.wire.http2.hpack import CachedHeaders

# Of endpoints that serve other models than the rest of their engine: endpoints come and go.
_MAX_SETS = 64


class CallTarget:
    """A route's target for calls with one plan: the fields as each endpoint gets them."""

    def __init__(
        self, path: bytes, fields: list[Field], route_target: RouteTarget, endpoint: Endpoint | None = None
    ) -> None:
        """`fields` are the plan's; `endpoint` is the only one, where a session has chosen it."""
        self._path = path
        self._fields = fields
        self._at: dict[Endpoint, CallTarget] = {}
        self._among: dict[tuple[Endpoint, ...], CallTarget] = {}
        self.route_target = route_target
        self.endpoint = endpoint
        self.max_body_bytes = route_target.spec.max_body_bytes
        self.model = route_target.spec.model.encode() if route_target.spec.model is not None else None
        self.heads: dict[Endpoint, CachedHeaders] = {}

    def check_size(self, size: int) -> None:
        """Check the size of a message with its prefix. Raises: GatewayError(BODY_TOO_LARGE)."""
        if self.max_body_bytes is not None and size - PREFIX_BYTES > self.max_body_bytes:
            raise too_long(size - PREFIX_BYTES, self.max_body_bytes, OF_ROUTE)

    def at(self, endpoint: Endpoint) -> CallTarget:
        """The same at one of the target's endpoints."""
        target = self._at.get(endpoint)
        if target is None:
            target = self._at[endpoint] = CallTarget(self._path, self._fields, self.route_target, endpoint)
        return target

    def among(self, endpoints: Sequence[Endpoint]) -> CallTarget:
        """The same for the models that these endpoints serve: a stream of its own, since a stream has one endpoint."""
        key = tuple(endpoints)
        target = self._among.get(key)
        if target is None:
            if len(self._among) >= _MAX_SETS:
                self._among.clear()
            target = self._among[key] = CallTarget(self._path, self._fields, self.route_target)
            target.heads = self.heads
        return target

    def head(self, endpoint: Endpoint) -> CachedHeaders:
        head = self.heads.get(endpoint)
        if head is None:
            head = self.heads[endpoint] = CachedHeaders(self._fields_for(endpoint))
        return head

    def _fields_for(self, endpoint: Endpoint) -> list[Field]:
        """The fields as an endpoint gets them; those that its engine declares replace the caller's."""
        engine = self.route_target.engine
        fields = [
            (b":method", b"POST"),
            (b":scheme", endpoint.scheme),
            (b":path", self._path),
            (b":authority", endpoint.authority),
            (b"te", b"trailers"),
        ]
        fields += [field for field in self._fields if field[0] not in engine.extra_names]
        return fields + engine.extra_fields
