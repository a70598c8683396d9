"""The playground: a request to the gateway's own inference port, as a client would send it, and what became of it.

It asks for inferences and descriptions alone: what changes engines has endpoints of its own, which say so in the audit.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Annotated, Any, Literal, Protocol

import httpx
import orjson
from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from gateway.admin.auth import Operator
from gateway.config.settings import Settings
from gateway.protocol.operations import INFERENCE_OPERATIONS, Operation, read_path

Json = dict[str, Any]

_FEEDBACK = "/feedback"
_OPERATIONS = INFERENCE_OPERATIONS | {
    *(Operation.MODEL_METADATA, Operation.MODEL_READY, Operation.MODEL_CONFIG, Operation.MODEL_STATS),
    *(Operation.SERVER_METADATA, Operation.SERVER_LIVE, Operation.SERVER_READY, Operation.SERVER_STATS),
    *(Operation.REPOSITORY_INDEX, Operation.MODEL_LIST),
}
# What a page can show; a longer request or reply is for a program.
MAX_BODY_BYTES = 4 * 1024 * 1024
_SECONDS = 120.0
_CONNECT_SECONDS = 5.0
# Written anew for the hop to the gateway.
_OF_THE_HOP = frozenset({"host", "content-length", "connection", "transfer-encoding", "te", "upgrade", "expect"})
_TIMING = "x-pointsman-timing"
_FIELD_NAME = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
# Who listens on every address is asked on this host's own.
_LOOPBACKS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class InferencePort:
    """Where this gateway's own inference port is, as its host sees it."""

    url: str
    asks_certificates: bool = False  # of its clients

    @classmethod
    def of(cls, settings: Settings, port: int) -> InferencePort:
        """The port that is open by these settings."""
        host = _LOOPBACKS.get(settings.host, settings.host)
        scheme = "http" if settings.tls is None else "https"
        shown = f"[{host}]" if ":" in host else host
        return cls(f"{scheme}://{shown}:{port}", settings.tls is not None and settings.tls.client_ca is not None)


class PlaygroundState(Protocol):
    """Whoever knows where requests go in."""

    @property
    def inference(self) -> InferencePort: ...


class Try(BaseModel):
    """A request to try."""

    path: Annotated[str, Field(max_length=4096, examples=["/v2/models/text/infer"])]
    method: Literal["GET", "POST"] = "POST"
    headers: dict[str, str] = {}
    body: Annotated[Any, Field(description="JSON, or a text that is sent as it is")] = None


def add_playground(app: FastAPI, state: PlaygroundState) -> None:
    """Answer for `/playground`."""

    @app.post("/playground", tags=["playground"])
    async def tried(wanted: Try, _: Operator) -> Json:
        """The whole reply, which route, arm, engine and endpoint it came by, and how long each phase took."""
        client, response, started = await _send(state.inference, wanted)
        try:
            body = b"".join([piece async for piece in _bounded(response)])
        finally:
            await client.aclose()
        return _whereabouts(response) | {
            "status": response.status_code,
            "headers": dict(response.headers),
            "body": _shown(body, response),
            "seconds": monotonic() - started,
        }

    @app.post("/playground/stream", tags=["playground"], response_class=StreamingResponse)
    async def streamed(wanted: Try, _: Operator) -> StreamingResponse:
        """Lines of JSON: first what is known when the reply begins, then its texts as they come, then the end."""
        client, response, started = await _send(state.inference, wanted)
        return StreamingResponse(_lines(client, response, started), media_type="application/x-ndjson")


async def _send(inference: InferencePort, wanted: Try) -> tuple[httpx.AsyncClient, httpx.Response, float]:
    """The reply as it begins, and when it was asked for; whoever gets it closes the client.

    Raises: HTTPException.
    """
    if inference.asks_certificates:
        raise HTTPException(503, "the inference port asks its clients for certificates : there is none here")
    _check_path(wanted.path, wanted.method)
    content, headers = _request(wanted)
    timeout = httpx.Timeout(_SECONDS, connect=_CONNECT_SECONDS)
    # Its certificate is for the name that clients know; whoever asks from here knows whom it asks.
    client = httpx.AsyncClient(base_url=inference.url, verify=False, timeout=timeout, trust_env=False)
    try:
        request = client.build_request(wanted.method, wanted.path, content=content, headers=headers)
        started = monotonic()
        return client, await client.send(request, stream=True), started
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        await client.aclose()
        what = str(error) or type(error).__name__
        raise HTTPException(502, f"the gateway's inference port gave no reply: {what}") from error


def _check_path(path: str, method: str) -> None:
    """Raises: HTTPException."""
    bare = path.partition("?")[0]
    call = read_path(bare)
    if bare == _FEEDBACK and method == "POST":
        return
    if call is None or call.operation not in _OPERATIONS or not path.isascii() or not path.isprintable():
        what = "it takes inferences, generations, chats and what describes models and servers, and POST /feedback"
        raise HTTPException(422, f"the playground does not send to {path!r}: {what}")
    if method not in call.verbs:
        raise HTTPException(422, f"{bare} is asked by {' or '.join(call.verbs)}, not by {method}")


def _request(wanted: Try) -> tuple[bytes | None, Mapping[str, str]]:
    """The body and the fields as the gateway gets them.

    Raises: HTTPException.
    """
    for name, value in wanted.headers.items():
        if not _FIELD_NAME.fullmatch(name) or not value.isascii() or not (value.isprintable() or not value):
            raise HTTPException(422, f"header {name!r}: a name is a token, a value is printable ASCII")
    headers = {name.lower(): value for name, value in wanted.headers.items() if name.lower() not in _OF_THE_HOP}
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
    """A reply as lines of JSON."""
    begun = _whereabouts(response) | {"status": response.status_code, "headers": dict(response.headers)}
    yield orjson.dumps(begun | {"seconds": monotonic() - started}) + b"\n"
    try:
        async for piece in _bounded(response):
            yield orjson.dumps({"text": piece.decode(errors="replace"), "seconds": monotonic() - started}) + b"\n"
        yield orjson.dumps({"ended": True, "seconds": monotonic() - started}) + b"\n"
    except HTTPException as error:
        yield orjson.dumps({"error": error.detail, "seconds": monotonic() - started}) + b"\n"
    finally:
        await client.aclose()


def _whereabouts(response: httpx.Response) -> Json:
    """What the reply's fields say of its way."""
    named = {name: response.headers.get(f"x-pointsman-{name}") for name in ("route", "engine", "arm")}
    phases = _phases(response.headers.get("server-timing", ""))
    endpoint = next((phase.pop("description") for phase in phases if "description" in phase), None)
    request_id = response.headers.get("x-request-id")
    return {**named, "endpoint": endpoint, "request_id": request_id, "phases": phases}


def _phases(field: str) -> list[Json]:
    """Server-Timing's metrics, as the gateway writes them. Source: W3C Server Timing, section 3.1."""
    found = []
    for metric in filter(None, map(str.strip, field.split(","))):
        name, *parameters = metric.split(";")
        told = dict(parameter.strip().partition("=")[::2] for parameter in parameters)
        phase: Json = {"name": name.strip(), "milliseconds": _number(told.get("dur", ""))}
        if "desc" in told:
            phase["description"] = told["desc"].strip('"')
        found.append(phase)
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # an engine's own
        return 0.0


def _shown(body: bytes, response: httpx.Response) -> Any:
    """JSON as what it says, texts as they are, and of anything else how long it is."""
    if "json" in response.headers.get("content-type", ""):
        try:
            return orjson.loads(body)
        except ValueError:
            pass
    try:
        return body.decode()
    except UnicodeDecodeError:
        return f"({len(body)} bytes that are no text)"
