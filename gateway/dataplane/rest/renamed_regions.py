"""Names of shared memory in the bodies of REST inferences, as engines have them."""

from __future__ import annotations

from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client
from gateway.dataplane.context.region_owner import client_address, region_owner
from gateway.dataplane.context.request_body import RequestBody

_JSON_LENGTH = b"inference-header-content-length"
_FORWARDED_FOR = b"x-forwarded-for"


def has_names(request: Request, body: RequestBody) -> bool:
    """Whether the part of a body that names regions is there."""
    length = request.json_bytes
    return body.is_complete or (length is not None and body.size >= length)


def with_names_at_engine(client: Client, request: Request, body: bytes) -> tuple[Request, bytes]:
    """The request, and what has come of its body, with the names at engines. A compressed body stays as it is, and so
    does one whose JSON has no length that fits it."""
    plan = request.plan
    declared = request.json_length
    end = len(body) if declared is None else request.json_bytes
    if plan.encoding is not None or plan.json_length is not None or end is None or end > len(body):
        return request, body
    names, trusts = client.plane.region_names, client.plane.settings.trust_forwarded
    address = client_address(client.peer, request.value(_FORWARDED_FOR) if trusts else None, trust_forwarded=trusts)
    renamed = names.rename_in_json(region_owner(plan.principal, address), body[:end])
    longer = len(renamed) - end
    if not longer:
        return request, body
    request = request.of(plan, None if request.length is None else request.length + longer)
    if declared is not None:
        request.json_length = length = b"%d" % len(renamed)
        line = b"%b: %b\r\n" % (_JSON_LENGTH, length)
        request.replace_lines(request.lines_without((_JSON_LENGTH,)) + line)
    return request, renamed + body[end:]
