"""Where the rules send a request that a proxy asks about, and what of it a picker goes by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.context.snapshot import Snapshot
from gateway.protocol.advertised_models import ModelName
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.operations import LlmApi, Operation
from gateway.protocol.request_urgency import Urgency
from gateway.protocol.sequence import AnySession

# Operations about a whole server that any server may answer; those that change one would have to reach all.
OF_ANY_SERVER = frozenset(
    {
        *(Operation.SERVER_METADATA, Operation.SERVER_LIVE, Operation.SERVER_READY, Operation.SERVER_STATS),
        *(Operation.REPOSITORY_INDEX, Operation.MODEL_LIST, Operation.MODEL_STATS),
    }
)


@dataclass(slots=True)
class Routing:
    """The decision of the rules for one request. `model` is its name and version at the engine, None where that is
    unknown; `prompt` are bytes by which prompts are compared; `path` is the request's at the engine, None where it is
    the client's; `is_rewritten`: so is the body, which loses the fields `removed`."""

    route_target: RouteTarget
    session: AnySession | None = None
    model: ModelName | None = None
    prompt: bytes | memoryview | None = None
    is_inference: bool = True
    over_grpc: bool = False
    path: bytes | None = None
    is_rewritten: bool = False
    removed: tuple[bytes, ...] = ()


class RequestReader(Protocol):
    """Reads a request from its head on, as far as the rules need it, and holds what has come until it goes on."""

    @property
    def api(self) -> LlmApi | None:
        """That of error replies."""
        ...

    @property
    def over_grpc(self) -> bool: ...

    @property
    def size(self) -> int:
        """What has come of the body, in bytes."""
        ...

    @property
    def passes_unseen(self) -> bool:
        """Whether the rest of the body may go on without this reader, once it is routed."""
        ...

    def add(self, data: bytes, ended: bool) -> None:
        """Some more of the body has come. Raises: GatewayError."""
        ...

    def route(self) -> Routing | None:
        """The decision; None while more of the body must come. Raises: GatewayError."""
        ...

    def take(self) -> bytes:
        """What has come of the body, as it goes on; called once, after `route`."""
        ...

    def pass_on(self, data: bytes, ended: bool) -> bytes:
        """A further piece as it goes on. Raises: GatewayError where it contradicts what was decided on."""
        ...

    def field(self, name: bytes) -> bytes | None:
        """The first field of the head with this name, in lower case."""
        ...

    def urgency(self) -> Urgency: ...


def any_server(snapshot: Snapshot, operation: Operation, *, is_v2: bool, over_grpc: bool) -> RouteTarget:
    """The target of an operation about a whole server: the first that speaks its protocol, of those that are ready.

    Raises: GatewayError where there is none, or the operation is about all servers.
    """
    if operation not in OF_ANY_SERVER:
        what = f"operation '{operation.value}' is about all servers, and a picker chooses one: use the engines' own API"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)
    found: RouteTarget | None = None
    for target in snapshot.table.targets:
        engine = snapshot.engines[target.engine]
        speaks = engine.speaks_grpc if over_grpc else engine.speaks_rest
        if engine.spec.protocol.is_v2 == is_v2 and speaks and (found is None or engine.is_ready):
            found = snapshot.route_target(target)
            if engine.is_ready:
                break
    if found is None:
        raise GatewayError(ErrorKind.NO_ROUTE, f"no engine answers operation '{operation.value}' in this protocol")
    return found


def not_passed(route_target: RouteTarget, what: str) -> GatewayError:
    """An engine would have to get a request translated."""
    text = f"engine '{route_target.engine.name}' does not speak {what}, and an endpoint picker translates nothing"
    return GatewayError(ErrorKind.UNSUPPORTED, text)
