"""Who answers a request whose way is known, where its engine is asked over HTTP, or by a service of its own."""

from __future__ import annotations

from functools import partial

from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client, Handler
from gateway.dataplane.context.snapshot import Lane
from gateway.dataplane.dispatch.conversation_choice import is_of_conversation, talking
from gateway.dataplane.rest.exchange import Exchange
from gateway.dataplane.rest.generation_proxy import GenerationExchange
from gateway.dataplane.translation.grpc_backend import Calling
from gateway.dataplane.translation.model_description import Described
from gateway.dataplane.translation.translation import Ask, Translation
from gateway.dataplane.translation.translator_factory import turn_generation
from gateway.dataplane.translation.translators import translator_for
from gateway.protocol.operations import INFERENCE_OPERATIONS, OF_V2, LlmApi

# What engines are asked in for tensors.
_OF_INFERENCES = (None, LlmApi.INFER, LlmApi.INFER_STREAM)


def by_http(client: Client, request: Request, lane: Lane, session: str | None) -> Handler:
    """The handler of a request for this lane."""
    if session and is_of_conversation(request, lane, session):
        return talking(client, request, lane, session, _asking, partial(_plain, client, lane, session))
    return _plain(client, lane, session, request)


def _plain(client: Client, lane: Lane, session: str | None, request: Request) -> Handler:
    """The handler of a request by itself."""
    call = request.plan.call
    if not lane.engine.speaks_rest:  # nor V2's gRPC, or nobody would ask here
        return translated(client, request, lane, session, Calling)
    is_read = call.operation in INFERENCE_OPERATIONS and (lane.target.resume or lane.engine.spec.always_stream)
    is_binary = request.json_length is not None and not lane.engine.spec.protocol.traits.takes_binary_tensors
    if is_binary:  # it knows no tensors behind the JSON
        return translated(client, request, lane, session, Exchange)
    if lane.engine.adapter.passes(call) and (not is_read or call.api is LlmApi.EMBEDDINGS):
        if call.api is None or call.api in OF_V2:
            return Exchange(client, request, (lane, session))
        return GenerationExchange(client, request, (lane, session))
    return translated(client, request, lane, session, _asking)


def translated(client: Client, request: Request, lane: Lane, session: str | None, ask: Ask) -> Handler:
    """The handler of a request that the lane's engine does not understand as it is; `ask` asks it in its protocol."""
    if request.plan.call.operation not in INFERENCE_OPERATIONS:
        return Described(client, request, lane)
    return Translation(client, request, lane, session, translator_for(request.plan.call, lane), ask, turn_generation)


def _asking(client: Client, request: Request, decided: tuple[Lane, str | None]) -> Handler:
    """The handler that asks the engine: what it is asked for twice does no harm where that is text, or where a client
    of OpenAI's API wants vectors, and may do harm where a client of V2 wants an inference."""
    plan = request.plan
    is_inference = plan.call.api in _OF_INFERENCES and plan.api in (None, *OF_V2)
    return (Exchange if is_inference else GenerationExchange)(client, request, decided)
