"""What a request says that decides which endpoint of its engine gets it."""

from __future__ import annotations

from collections.abc import Collection

from gateway.dataplane.attempts.front import AttemptFront
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.route_target import RouteTarget
from gateway.protocol.advertised_models import ModelName
from gateway.protocol.sequence import AnySession, Sequence, id_of
from gateway.upstream.endpoint import Endpoint


def choose_endpoint(
    front: AttemptFront,
    route_target: RouteTarget,
    session: AnySession | None,
    plane: DataPlane,
    now: float,
    tried: Collection[Endpoint],
) -> Endpoint | None:
    """The endpoint of the next attempt, by session, model and prompt; None where all are down.

    Raises: GatewayError(SEQUENCE_LOST); SequenceDisplacedError.
    """
    engine = route_target.engine
    prompt = front.prompt() if engine.prefixes is not None else None
    reads_model = engine.by_model is not None or engine.knows_adapters
    model = model_at_engine(front, route_target) if reads_model else None
    if session is None:
        return engine.choose(None, now, tried, prompt, model)
    if route_target.sticky_endpoint or (route_target.is_sticky and type(session) is Sequence):
        return plane.affinity.choose(engine, session, now, tried, prompt, model)
    return engine.choose(id_of(session), now, tried, prompt, model)


def model_at_engine(front: AttemptFront, route_target: RouteTarget) -> ModelName | None:
    """The requested model and version, by the name at the engine; None where that is unknown."""
    named, renamed = front.model(), route_target.spec.model
    return named if named is None or renamed is None else (renamed, named[1])
