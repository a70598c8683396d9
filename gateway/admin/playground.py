"""The playground: a request to the gateway's own inference port, with its reply, route and timing.

Only inferences and descriptions are allowed: what changes engines has audited endpoints of its own.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from gateway.admin.auth import Operator
from gateway.protocol.operations import INFERENCE_OPERATIONS, Operation, read_path
from gateway.supervision.control_plane import ControlPlane
from gateway.supervision.ports import InferencePort

if TYPE_CHECKING:
    import httpx

Json = dict[str, Any]

_FEEDBACK = "/feedback"
_OPERATIONS = INFERENCE_OPERATIONS | {
    *(Operation.MODEL_METADATA, Operation.MODEL_READY, Operation.MODEL_CONFIG, Operation.MODEL_STATS),
    *(Operation.SERVER_METADATA, Operation.SERVER_LIVE, Operation.SERVER_READY, Operation.SERVER_STATS),
    *(Operation.REPOSITORY_INDEX, Operation.MODEL_LIST),
}
# More than a page can show.
MAX_BODY_BYTES = 4 * 1024 * 1024
_SECONDS = 120.0
_CONNECT_SECONDS = 5.0
# Fields of one hop only.
_HOP_FIELDS = frozenset({"host", "content-length", "connection", "transfer-encoding", "te", "upgrade", "expect"})
_TIMING = "x-pointsman-timing"
_FIELD_NAME = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")


class PlaygroundRequest(BaseModel):
    """A request to send."""

    path: Annotated[str, Field(max_length=4096, examples=["/v2/models/text/infer"])]
    method: Literal["GET", "POST"] = "POST"
    headers: dict[str, str] = {}
    body: Annotated[Any, Field(description="JSON, or a text that is sent unchanged")] = None


def add_playground(app: FastAPI, control: ControlPlane) -> None:
    """Add `/playground`."""

    @app.post("/playground", tags=["playground"])
    async def send(wanted: PlaygroundRequest, _: Operator) -> Json:
        """The reply with its route, arm, engine and endpoint, and the duration of each phase."""
        client, response, started = await _send(control.inference, wanted)
        try:
            body = b"".join([piece async for piece in _bounded(response)])
        finally:
            await client.aclose()
        return _route_fields(response) | {
            "status": response.status_code,
            "headers": dict(response.headers),
            "body": _shown(body, response),
            "seconds": monotonic() - started,
        }

    @app.post("/playground/stream", tags=["playground"], response_class=StreamingResponse)
    async def send_streamed(wanted: PlaygroundRequest, _: Operator) -> StreamingResponse:
        """Lines of JSON: the head of the reply, its texts as they arrive, and the end."""
        client, response, started = await _send(control.inference, wanted)
        return StreamingResponse(_lines(client, response, started), media_type="application/x-ndjson")


async def _send(inference: InferencePort, wanted: PlaygroundRequest) -> tuple[httpx.AsyncClient, httpx.Response, float]:
    """The client, which the caller closes, the reply as it begins, and the time of the request.

    Raises: HTTPException.
    """
    import httpx

    if inference.requires_certificates:
        raise HTTPException(503, "the inference port asks its clients for certificates : there is none here")
    _check_path(wanted.path, wanted.method)
    content, headers = _request(wanted)
    timeout = httpx.Timeout(_SECONDS, connect=_CONNECT_SECONDS)
    # The certificate names the host that clients know; this is a connection to the own process.
    client = httpx.AsyncClient(base_url=inference.url, verify=False, timeout=timeout, trust_env=False)
    try:
        request = client.build_request(wanted.method, wanted.path, content=content, headers=headers)
        started = monotonic()
        return client, await client.send(request, stream=True), started
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        await client.aclose()
        reason = str(error) or type(error).__name__
        raise HTTPException(502, f"the gateway's inference port gave no reply: {reason}") from error


def _check_path(path: str, method: str) -> None:
    """Raises: HTTPException."""
    bare = path.partition("?")[0]
    call = read_path(bare)
    if bare == _FEEDBACK and method == "POST":
        return
    if call is None or call.operation not in _OPERATIONS or not path.isascii() or not path.isprintable():
        allowed = "it takes inferences, generations, chats and what describes models and servers, and POST /feedback"
        raise HTTPException(422, f"the playground does not send to {path!r}: {allowed}")
    if method not in call.verbs:
        raise HTTPException(422, f"{bare} is asked by {' or '.join(call.verbs)}, not by {method}")


def _request(wanted: PlaygroundRequest) -> tuple[bytes | None, Mapping[str, str]]:
    """The body and the header fields to send.

    Raises: HTTPException.
    """
    for name, value in wanted.headers.items():
        if not _FIELD_NAME.fullmatch(name) or not value.isascii() or not (value.isprintable() or not value):
            raise HTTPException(422, f"header {name!r}: a name is a token, a value is printable ASCII")
    headers = {name.lower(): value for name, value in wanted.headers.items() if name.lower() not in _HOP_FIELDS}
    headers[_TIMING] = "1"
    if wanted.body is None or wanted.method == "GET":
        return None, headers
    try:
        content = wanted.body.encode() if isinstance(wanted.body, str) else orjson.dumps(wanted.body)
    except (TypeError, ValueError) as error:
        raise HTTPException(422, f"body: {error}") from error
    if len(content) > MAX_BODY_BYTES:
        raise HTTPException(413, f"this body has {len(content)} bytes; the playground sends {MAX_BODY_BYTES} at most")
    headers.setdefault("content-type", "application/json")
    return content, headers


async def _bounded(response: httpx.Response) -> AsyncIterator[bytes]:
    """The reply's bytes.

    Raises: HTTPException.
    """
    import httpx

    total = 0
    try:
        async for piece in response.aiter_bytes():
            total += len(piece)
            if total > MAX_BODY_BYTES:
                raise HTTPException(502, f"the reply is longer than {MAX_BODY_BYTES} bytes: too long for a page")
            yield piece
    except httpx.HTTPError as error:
        raise HTTPException(502, f"the reply broke off: {error or type(error).__name__}") from error


async def _lines(client: httpx.AsyncClient, response: httpx.Response, started: float) -> AsyncIterator[bytes]:
    begun = _route_fields(response) | {"status": response.status_code, "headers": dict(response.headers)}
    yield orjson.dumps(begun | {"seconds": monotonic() - started}) + b"\n"
    try:
        async for piece in _bounded(response):
            yield orjson.dumps({"text": piece.decode(errors="replace"), "seconds": monotonic() - started}) + b"\n"
        yield orjson.dumps({"ended": True, "seconds": monotonic() - started}) + b"\n"
    except HTTPException as error:
        yield orjson.dumps({"error": error.detail, "seconds": monotonic() - started}) + b"\n"
    finally:
        await client.aclose()


def _route_fields(response: httpx.Response) -> Json:
    """Route, engine, arm, endpoint and phases, from the reply's fields."""
    named = {name: response.headers.get(f"x-pointsman-{name}") for name in ("route", "engine", "arm")}
    phases = _phases(response.headers.get("server-timing", ""))
    endpoint = next((phase.pop("description") for phase in phases if "description" in phase), None)
    request_id = response.headers.get("x-request-id")
    return {**named, "endpoint": endpoint, "request_id": request_id, "phases": phases}


def _phases(field: str) -> list[Json]:
    """Server-Timing's metrics, as the gateway writes them. Source: W3C Server Timing, section 3.1."""
    phases = []
    for metric in filter(None, map(str.strip, field.split(","))):
        name, *parameters = metric.split(";")
        values = dict(parameter.strip().partition("=")[::2] for parameter in parameters)
        phase: Json = {"name": name.strip(), "milliseconds": _number(values.get("dur", ""))}
        if "desc" in values:
            phase["description"] = values["desc"].strip('"')
        phases.append(phase)
    return phases


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # an engine's own field
        return 0.0


def _shown(body: bytes, response: httpx.Response) -> Any:
    """Parsed JSON, text, or the length of anything else."""
    if "json" in response.headers.get("content-type", ""):
        try:
            return orjson.loads(body)
        except ValueError:
            pass
    try:
        return body.decode()
    except UnicodeDecodeError:
        return f"({len(body)} bytes that are no text)"
