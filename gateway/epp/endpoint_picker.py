"""Chooses the endpoints of requests, by the rules in force and what is known of the endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.readiness import is_ready
from gateway.epp.grpc_reader import GrpcReader
from gateway.epp.interfaces import RequestReader, Routing
from gateway.epp.pick_metrics import PickMetrics
from gateway.epp.rest_reader import RestReader
from gateway.epp.rule_support import rest_address
from gateway.epp.settings import PickerSettings
from gateway.protocol.advertised_models import ModelName
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.ext_proc import HeaderField
from gateway.protocol.sequence import Sequence as TritonSequence
from gateway.protocol.sequence import id_of
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.engine import Engine
from gateway.wire.http2.fields import GRPC

_rest_address = lru_cache(4096)(rest_address)


class EndpointPicker:
    """What all requests share."""

    def __init__(self, plane: DataPlane, settings: PickerSettings) -> None:
        self.plane = plane
        self.settings = settings
        self.metrics = PickMetrics()

    @property
    def is_ready(self) -> bool:
        return is_ready(self.plane)

    def reader(self, fields: Sequence[HeaderField], named: Mapping[bytes, bytes], *, has_body: bool) -> RequestReader:
        """The reader of a request with these fields, of which `named` has the first of each name.

        Raises: GatewayError.
        """
        if named.get(b"content-type", b"").startswith(GRPC):
            return GrpcReader(self.plane, fields, named)
        return RestReader(self.plane, fields, named, has_body=has_body)

    def choose(self, routing: Routing, subset: frozenset[str] | None, now: float) -> list[Endpoint]:
        """The endpoints of a request, the first choice first; of `subset` alone, where that is not None.

        Raises: GatewayError where there is none, or a sequence cannot go on.
        """
        engine = routing.route_target.engine
        left_out: list[Endpoint] = []
        if subset is not None:
            left_out = [
                each for each in engine.endpoints if address_of(each, over_grpc=routing.over_grpc) not in subset
            ]
            if len(left_out) == len(engine.endpoints):
                text = f"no endpoint of engine '{engine.name}' is in the proxy's subset"
                raise GatewayError(ErrorKind.NO_HEALTHY_ENDPOINT, text)
        model = routing.model if engine.by_model is not None else None
        first = self._choose(routing, model, left_out, now)
        if first is None:
            raise engine.no_endpoint(model, now)
        chosen = [first]
        if isinstance(routing.session, TritonSequence):  # no other endpoint knows it
            return chosen
        while len(chosen) < self.settings.endpoints:
            further = engine.choose(None, now, [*left_out, *chosen], None, model)
            if further is None:
                break
            chosen.append(further)
        return chosen

    def _choose(
        self, routing: Routing, model: ModelName | None, left_out: list[Endpoint], now: float
    ) -> Endpoint | None:
        target, session = routing.route_target, routing.session
        if session is None:
            return target.engine.choose(None, now, left_out, routing.prompt, model)
        if target.sticky_endpoint or (target.is_sticky and isinstance(session, TritonSequence)):
            return self.plane.affinity.choose(target.engine, session, now, left_out, routing.prompt, model)
        return target.engine.choose(id_of(session), now, left_out, routing.prompt, model)


def address_of(endpoint: Endpoint, *, over_grpc: bool) -> str:
    """The host:port of an endpoint for a protocol that its engine speaks."""
    address = endpoint.grpc if over_grpc else _rest_address(endpoint.url)
    assert address is not None
    return address


def at_address(engine: Engine, address: str, *, over_grpc: bool) -> Endpoint | None:
    """The endpoint of an engine at this host:port."""
    found = (each for each in engine.endpoints if address_of(each, over_grpc=over_grpc) == address)
    return next(found, None)
