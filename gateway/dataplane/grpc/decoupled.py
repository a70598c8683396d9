"""Whether a model is decoupled: asked of an engine that has it."""

from __future__ import annotations

from time import monotonic

from gateway.dataplane.grpc.plan import Way
from gateway.protocol.errors import GatewayError
from gateway.protocol.grpc_methods import RPCS
from gateway.protocol.protobuf import message, parse
from gateway.upstream.ask import ask


async def is_decoupled(way: Way, key: tuple[bytes, bytes]) -> bool:
    """Whether a request may have any number of responses; also where the engine does not tell, since then nobody must
    wait for one. `key` is the model and its version, as the client names them."""
    engine = way.lane.engine
    endpoint = engine.choose(None, monotonic())
    if endpoint is None or endpoint.streams is None:
        return True
    model, version = way.model or key[0], key[1]
    try:
        request = message("inference.ModelConfigRequest")(name=model.decode(), version=version.decode())
        answered = await ask(
            endpoint.streams,
            RPCS["ModelConfig"].path,
            request.SerializeToString(),
            authority=endpoint.authority,
            scheme=endpoint.scheme,
            fields=engine.extra_fields,
            timeout=engine.spec.timeout,
        )
        if not answered.is_good:
            return True
        config = parse("inference.ModelConfigResponse", answered.message).config
        return bool(config.model_transaction_policy.decoupled)
    except (GatewayError, ValueError):
        return True
