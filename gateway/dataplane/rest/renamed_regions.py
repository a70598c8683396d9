"""Names of shared memory in the bodies of REST inferences, as engines have them."""

from __future__ import annotations

from gateway.config.settings import Limits
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client
from gateway.dataplane.context.region_owner import client_address, region_owner
from gateway.dataplane.context.request_body import RequestBody
from gateway.wire.content_codec import deflated, inflated

_JSON_LENGTH = b"inference-header-content-length"
_FORWARDED_FOR = b"x-forwarded-for"
# A compressed body that is longer, inflated, stays as it is: it has tensors of its own.
_MAX_INFLATED_BYTES = 1024 * 1024


def has_names(request: Request, body: RequestBody) -> bool:
    """Whether the part of a body that names regions is there."""
    length = request.json_bytes if request.plan.encoding is None else None
    return body.is_complete or (length is not None and body.size >= length)


def with_names_at_engine(client: Client, request: Request, body: bytes) -> tuple[Request, bytes]:
    """The request, and what has come of its body, with the names at engines. A body whose JSON has no length that fits
    it stays as it is, and so does a compressed one that is long, or of a coding that Triton does not read: what it
    names is nobody's region."""
    plan = request.plan
    declared = request.json_length
    plain = body if plan.encoding is None else _plain(plan.encoding, body, client.plane.settings.limits)
    end = len(plain) if declared is None else request.json_bytes
    if plan.json_length is not None or end is None or end > len(plain):
        return request, body
    names, trusts = client.plane.region_names, client.plane.settings.trust_forwarded
    address = client_address(client.peer, request.value(_FORWARDED_FOR) if trusts else None, trust_forwarded=trusts)
    renamed = names.rename_in_json(region_owner(plan.principal, address), plain[:end])
    if len(renamed) == end:
        return request, body
    whole = renamed + plain[end:]
    if plan.encoding is not None:
        whole = deflated(plan.encoding, whole)
    request = request.of(plan, None if request.length is None else request.length + len(whole) - len(body))
    if declared is not None:
        request.json_length = length = b"%d" % len(renamed)
        line = b"%b: %b\r\n" % (_JSON_LENGTH, length)
        request.replace_lines(request.lines_without((_JSON_LENGTH,)) + line)
    return request, whole


def _plain(coding: bytes, body: bytes, limits: Limits) -> bytes:
    """A body without its coding; empty where it is to stay as it is."""
    most = min(limits.most_inflated(len(body)), _MAX_INFLATED_BYTES)
    try:
        deflated(coding, b"")
        plain = inflated(coding, body, most)
    except (LookupError, ValueError):
        return b""
    return plain if len(plain) <= most else b""
