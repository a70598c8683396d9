"""Names the session in requests for engines that hold conversations themselves.

The session's header always has it. V2's engines read it as a parameter too (`session_id`), others where the rules say
(`session_field`). With a tenant or `auth:`, or where a header cannot hold the session's name, the engine gets the
conversation's id, and a name that looks like an id is replaced by one, too: nobody names another's session.
"""

from __future__ import annotations

import re
from copy import copy
from typing import Any

import orjson

from gateway.conversations.store import conversation_id
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.prepared_head import PreparedHead
from gateway.dataplane.context.request_body import declared_json_bytes
from gateway.dataplane.context.route_target import RouteTarget
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.operations import OF_V2
from gateway.protocol.sequence import AnySession, may_stand_in_a_field
from gateway.protocol.translator import RestBody
from gateway.protocol.v2_facts import read_body_facts
from gateway.routing.decision import Decision

_PARAMETER = "session_id"  # V2's
_PARAMETERS = "parameters"
_JSON_LENGTH = b"inference-header-content-length"
_ENCODING = b"content-encoding"
# Of a conversation, in whatever case an engine compares them.
_ID = re.compile(r"[0-9a-fA-F]{32}")


def held_by_engine(
    request: Request, body: bytes, route_target: RouteTarget, session: str, field: str | None
) -> tuple[Request, bytes]:
    """The request that names the session, and its body; `body` is without its Content-Encoding.

    Raises: GatewayError(BAD_REQUEST) where the body is no JSON object.
    """
    identity = request.plan.snapshot.table.identity
    tenant = request.plan.facts.headers.get(identity.tenant_header, "")
    is_shared = not tenant and request.plan.snapshot.identification is None
    session_id = session if is_shared and _may_stay(session) else conversation_id(session, tenant)
    length = declared_json_bytes(request.json_length, len(body))
    head, tensors = (body, b"") if length is None else (body[:length], body[length:])
    written = _written(_fields(head), request, route_target, session_id, field, {*identity.session_parameters})
    header = identity.session_header.encode("ascii")
    forwarded = request.of(_with_header(request.plan, route_target, header, session_id), len(written) + len(tensors))
    lines = forwarded.lines_without((header, _JSON_LENGTH))
    if length is not None:
        forwarded.json_length = b"%d" % len(written)
        lines += b"inference-header-content-length: %b\r\n" % forwarded.json_length
    forwarded.replace_lines(lines)
    return forwarded, written + tensors


def _may_stay(session: str) -> bool:
    return may_stand_in_a_field(session) and _ID.fullmatch(session) is None


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise GatewayError(ErrorKind.BAD_REQUEST, f"the body is not JSON: {error}") from error
    if not isinstance(fields, dict) or not isinstance(fields.get(_PARAMETERS, {}), dict):
        raise GatewayError(ErrorKind.BAD_REQUEST, "the body must be a JSON object, and its 'parameters' another")
    return fields


def _written(
    fields: dict[str, Any],
    request: Request,
    route_target: RouteTarget,
    session_id: str,
    field: str | None,
    names: set[str],
) -> bytes:
    """The body with the session only where this engine reads it; a translated request has no such place."""
    api = request.plan.call.api
    fields = {name: value for name, value in fields.items() if name not in names}
    parameters = {name: value for name, value in fields.get(_PARAMETERS, {}).items() if name not in names}
    if route_target.engine.passes(request.plan.call):
        if api in OF_V2:
            parameters[field or _PARAMETER] = session_id
        elif field is not None:
            fields[field] = session_id
    if parameters or fields.get(_PARAMETERS):
        fields[_PARAMETERS] = parameters
    return orjson.dumps(fields)


def _with_header(plan: PreparedHead, route_target: RouteTarget, field: bytes, session_id: str) -> PreparedHead:
    """The plan of the same request whose session stands in its header."""
    prepared = plan.uncached_copy()
    prepared.head = head = copy(plan.head)
    head.fields = [entry for entry in head.fields if entry[0] not in (field, _ENCODING)]
    head.fields.append((field, session_id.encode("utf-8", "replace")))
    prepared.encoding = None
    prepared.route_target = route_target
    prepared.lines = prepared.lines_for(route_target.engine)
    prepared.opening = prepared.opening_for(route_target)
    return prepared


def session_of(request: Request, body: RestBody) -> AnySession | None:
    """The session that the rules find in a V2 request; None where it has none.

    Raises: GatewayError(BAD_REQUEST).
    """
    plan = request.plan
    data = body.data if body.head_bytes is None else body.data[: body.head_bytes]
    decision = plan.decide(read_body_facts(plan.call.operation, data), request.session, request.units)
    return decision.session if isinstance(decision, Decision) else None
