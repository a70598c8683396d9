"""One request for an engine that speaks otherwise: what it is asked, and what the client reads of its answer.

A translator is made for one request and is pure; `dataplane.translation` carries its bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.operations import LlmApi, Operation

Field = tuple[bytes, bytes]

JSON = "application/json"
BINARY = "application/octet-stream"
GRPC = "application/grpc"


@dataclass(frozen=True, slots=True)
class RestBody:
    """A body of Triton's REST protocol. `head_bytes` is what `Inference-Header-Content-Length` tells: how much of it is
    JSON, with raw tensors behind; None where all of it is."""

    data: bytes
    head_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class RestRequest:
    """A request of Triton's REST protocol: `GET /v2/models/m/config`, say."""

    method: str
    target: str
    body: RestBody = RestBody(b"")


@dataclass(frozen=True, slots=True)
class V2Request:
    """A V2 REST request for an engine that speaks otherwise. `model` is the name at the engine, `head_bytes` as of
    `RestBody`; `drop`: parameters that the engine has no place for are dropped, not refused."""

    operation: Operation
    body: bytes = b""
    head_bytes: int | None = None
    model: str = ""
    version: str = ""
    drop: bool = False


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """What an engine is asked over HTTP. `path` begins with a slash, `fields` are further ones, names in lower case;
    `api` is what a language model is asked in, `dropped` names what of the client's the engine has no place for.
    `streams_any_type`: a reply with status 200 is a stream, whatever content type it tells."""

    path: str
    body: bytes = b""
    content_type: str = JSON
    method: str = "POST"
    fields: tuple[Field, ...] = ()
    api: LlmApi | None = None
    dropped: tuple[str, ...] = ()
    streams_any_type: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole HTTP reply. `head_bytes`: where the JSON of a V2 body ends and tensors begin, None where all is JSON."""

    status: int
    body: bytes = b""
    content_type: str = JSON
    head_bytes: int | None = None


class Translator(Protocol):
    """The translation of one request. An engine that answers with status 200 and an event stream to a client that wants
    one is translated piece by piece (`feed`, then `end` or `failed`), every other reply whole."""

    streams: bool  # whether the client wants a stream of events

    def request(self) -> EngineRequest:
        """What the engine is asked. Raises: GatewayError where the request is malformed (BAD_REQUEST) or the engine has
        no place for what it says (UNSUPPORTED)."""
        ...

    def whole(self, reply: Reply) -> Reply:
        """The client's reply for a whole reply of the engine's, an error too. Raises: GatewayError(UPSTREAM_PROTOCOL)
        where it cannot be understood."""
        ...

    def feed(self, data: bytes) -> bytes:
        """What the client gets for these bytes of the engine's stream; nothing where they complete no event. Raises:
        GatewayError(UPSTREAM_PROTOCOL)."""
        ...

    def end(self) -> bytes:
        """What the client gets once the engine's stream has ended as it should."""
        ...


class WholeTranslator:
    """What translators have in common whose replies are whole: nothing streams."""

    streams = False

    def feed(self, data: bytes) -> bytes:
        """Raises: GatewayError(UPSTREAM_PROTOCOL)."""
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "the engine streams its answer to a request for one")

    def end(self) -> bytes:
        """Nothing."""
        return b""


def in_rest(body: RestBody) -> Reply:
    """The reply that a V2 REST client reads, with its tensors where they stand."""
    return Reply(200, body.data, JSON if body.head_bytes is None else BINARY, body.head_bytes)
