"""Which session a request is of, once its body is there."""

from __future__ import annotations

from gateway.dataplane.context.head_reader import Request
from gateway.protocol.translator import RestBody
from gateway.protocol.v2_facts import read_body_facts
from gateway.routing.decision import Decision


def session_of(request: Request, body: RestBody) -> str | None:
    """The session that the rules find in a V2 request; None where it has none.

    Raises: GatewayError(BAD_REQUEST).
    """
    plan = request.plan
    data = body.data if body.head_bytes is None else body.data[: body.head_bytes]
    decision = plan.decide(read_body_facts(plan.call.operation, data), request.session, request.units)
    return decision.session if isinstance(decision, Decision) else None
