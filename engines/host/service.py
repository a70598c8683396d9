"""The service behind the fronts: inferences and control RPCs of either protocol."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import cast

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, ErrorCode, unavailable
from engines.host.control_rpcs import RPCS, Context, model_metadata
from engines.host.model import HostedModel
from engines.host.restricted_apis import RestrictedApis, Restrictions
from engines.host.shared_memory import SharedMemoryRegions
from gateway.protocol.protobuf import Message, message

_log = logging.getLogger(__name__)

# Answered before the models are loaded, and while the host stops.
_ALWAYS_ANSWERED = frozenset({"ServerLive", "ServerReady", "ServerMetadata", "LogSettings", "TraceSetting"})


class Service:
    """The host as its clients see it. `infer` is a `Submit`; instances use it for requests between models too."""

    def __init__(self, context: Context, *, http: Restrictions | None = None, grpc: Restrictions | None = None) -> None:
        self._context = context
        # The host's Loader creates everything that the repository loads.
        self._get = cast("Callable[[str, str], HostedModel]", context.models.get)
        self.restrictions = {"rest": RestrictedApis(http or {}), "grpc": RestrictedApis(grpc or {})}

    def __repr__(self) -> str:
        return f"<Service {self._context.name}: {'ready' if self._context.is_ready else 'not ready'}>"

    @property
    def regions(self) -> SharedMemoryRegions:
        """The shared memory that clients have registered."""
        return self._context.regions

    def model(self, name: str, version: str) -> HostedModel:
        """The version for a request; "" leaves the choice to the model's version policy.

        Raises: EngineError with Triton's text where there is none.
        """
        return self._get(name, version)

    def ready_models(self) -> Sequence[HostedModel]:
        """All ready versions, by name and version."""
        return self._context.ready_models()

    def infer(self, call: InferenceCall) -> None:
        """Take a call. It may end at once with an error: then it was never queued. Never raises."""
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
            if name not in _ALWAYS_ANSWERED:
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
