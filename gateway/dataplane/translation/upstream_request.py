"""A translated request as the handler of the engine's protocol gets it."""

from __future__ import annotations

from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.prepared_head import PreparedHead
from gateway.dataplane.context.snapshot import Lane
from gateway.protocol.translator import EngineRequest
from gateway.wire.http1.head import Field

_LENGTH = b"content-length"
_API_KEY = b"x-api-key"
_REQUEST_ID = b"x-request-id"
_AUTHORIZATION = b"authorization"
# What tells of the body, or of the reply, as the client has it.
_OF_THE_CLIENT = frozenset(
    {
        *(_LENGTH, _API_KEY, b"accept", b"accept-encoding", b"content-encoding", b"content-type", b"expect"),
        *(b"inference-header-content-length", b"anthropic-version", b"anthropic-beta"),
        _REQUEST_ID,
    }
)
_MAX_REMEMBERED = 1024


def request_towards(request: Request, lane: Lane, engine_request: EngineRequest) -> Request:
    """What the lane's engine is asked for a client's request, with the client's own fields as far as they still hold.

    Anthropic's clients tell their key in a field of its own: engines read it where all others do.
    """
    volatile = [field for field in request.volatile if field[0] not in _OF_THE_CLIENT]
    head = request.plan.head
    key = next((value for name, value in request.volatile if name == _API_KEY), None) or head.value(_API_KEY)
    if key and head.value(_AUTHORIZATION) is None and all(name != _AUTHORIZATION for name, _ in volatile):
        volatile.append((_AUTHORIZATION, b"Bearer " + key))
    volatile.append((_LENGTH, b"%d" % len(engine_request.body)))
    if request.id is not None:
        volatile.append((_REQUEST_ID, request.id))
    made = Request(_plan_towards(request.plan, lane, engine_request), volatile)
    made.timing = request.timing
    return made


def _plan_towards(plan: PreparedHead, lane: Lane, engine_request: EngineRequest) -> PreparedHead:
    known = plan.translated
    key = (id(lane), engine_request.method, engine_request.path, engine_request.content_type, engine_request.fields)
    found = known.get(key)
    if found is None:
        fields: list[Field] = [field for field in plan.head.fields if field[0] not in _OF_THE_CLIENT]
        if engine_request.body or engine_request.method == "POST":
            fields.append((b"content-type", engine_request.content_type.encode("latin-1")))
        fields += engine_request.fields
        if len(known) >= _MAX_REMEMBERED:
            known.clear()
        found = known[key] = plan.towards(lane, engine_request.method, engine_request.path, fields, engine_request.api)
    return found
