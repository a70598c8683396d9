"""What the fronts speak to: inferences and control RPCs, whichever protocol they came by."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, ErrorCode, unavailable
from engines.host.restricted_apis import Restrictions
from engines.host.rpcs.context import Context
from engines.host.rpcs.metadata import model_metadata
from engines.host.rpcs.table import RPCS
from engines.host.shared_memory import SharedMemoryRegions
from gateway.protocol.protobuf import Message, message

if TYPE_CHECKING:
    from engines.host.model import HostedModel

_log = logging.getLogger(__name__)

# Told by a host that has not loaded its models yet, or that ends.
_LOADING_ALLOWS = frozenset({"ServerLive", "ServerReady", "ServerMetadata", "LogSettings", "TraceSetting"})


class Service:
    """The host as its clients see it. `infer` is a `Submit`; instances use it for requests between models too."""

    def __init__(self, context: Context, *, http: Restrictions | None = None, grpc: Restrictions | None = None) -> None:
        self._context = context
        # Everything that the repository loads, the host's Loader has made.
        self._get = cast("Callable[[str, str], HostedModel]", context.models.get)
        self._restrictions: Mapping[str, Restrictions] = {"rest": http or {}, "grpc": grpc or {}}

    def __repr__(self) -> str:
        return f"<Service {self._context.name}: {'ready' if self._context.is_ready else 'not ready'}>"

    @property
    def regions(self) -> SharedMemoryRegions:
        """The shared memory that clients have registered."""
        return self._context.regions

    def model(self, name: str, version: str) -> HostedModel:
        """The version that a request goes to; "" leaves the choice to the model's policy.

        Raises: EngineError, as Triton tells that there is none.
        """
        return self._get(name, version)

    def ready_models(self) -> Sequence[HostedModel]:
        """All versions that serve, by name and version."""
        return cast("Sequence[HostedModel]", self._context.served())

    def infer(self, call: InferenceCall) -> None:
        """Take a call; it may end at once, with an error. Never raises."""
        request = call.request
        if self._context.logs.log_verbose_level:
            _log.debug("inference of %s %s, request %r", request.model, request.version or "(any)", request.id)
        try:
            self._get(request.model, request.version).submit(call)
        except EngineError as error:
            call.fail(error)

    async def rpc(self, name: str, request: Message) -> Message:
        """Answer a control RPC: from its request message its response message.

        Raises: EngineError.
        """
        context = self._context
        _log.debug("%s: %s", name, request)
        if not context.is_serving:
            if name == "ServerReady":
                raise unavailable("Server exiting")
            if name not in _LOADING_ALLOWS:
                raise unavailable("Server not ready")
        rpc = RPCS.get(name)
        if rpc is None:
            raise EngineError(ErrorCode.UNSUPPORTED, f"there is no RPC {name}")
        response = rpc(context, request)
        return await response if inspect.isawaitable(response) else response

    def metadata(self, name: str, version: str) -> Message:
        """A ModelMetadataResponse.

        Raises: EngineError.
        """
        return model_metadata(self._context, message("inference.ModelMetadataRequest")(name=name, version=version))

    def restriction(self, front: str, category: str) -> tuple[str, str] | None:
        """The header that guards a category of APIs on "rest" or "grpc", and its value; None where nothing does."""
        return self._restrictions[front].get(category)
