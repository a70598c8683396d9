"""Asking all endpoints of engines about their models at the same time: which are ready, and to load or unload one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any
from urllib.parse import quote

import orjson

from gateway.config.specs import EndpointSpec, EngineSpec
from gateway.protocol.errors import GatewayError
from gateway.upstream.endpoint import Endpoint, endpoint_tls
from gateway.upstream.endpoint_client import HttpReply, fetch
from gateway.upstream.engine import extra_fields

Json = dict[str, Any]

# Answers at a time, so that a large fleet does not take all file descriptors.
_AT_ONCE = 64
_LIST_SECONDS = 5.0
# Loading a model can take minutes.
_CONTROL_SECONDS = 600.0
_MAX_DETAIL = 500


@dataclass(frozen=True, slots=True)
class Place:
    """An endpoint, and what a model is called there."""

    engine: EngineSpec
    endpoint: EndpointSpec
    model: str = ""


@dataclass(frozen=True, slots=True)
class EndpointOutcome:
    """What became of a question at an endpoint: its answer, or `why` there is none."""

    place: Place
    seconds: float
    status: int = 0
    body: bytes = b""
    why: str = ""

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    @property
    def detail(self) -> str:
        """What the endpoint, or the way to it, says of a failure."""
        if self.is_good or self.why:
            return self.why
        try:
            told = orjson.loads(self.body)
            said = str(told["error"]) if isinstance(told, dict) and "error" in told else self.body.decode()
        except ValueError:
            said = self.body.decode("utf-8", "replace")
        return said[:_MAX_DETAIL] or f"it answered {self.status}"


def places_of(engines: Iterable[EngineSpec], model: str = "") -> list[Place]:
    """All their endpoints."""
    return [Place(engine, endpoint, model) for engine in engines for endpoint in engine.endpoints]


async def list_models(places: Sequence[Place]) -> list[EndpointOutcome]:
    """The repository index of each."""
    return await _ask_all(places, [b"/v2/repository/index"] * len(places), b"{}", _LIST_SECONDS)


async def control_model(places: Sequence[Place], verb: str, parameters: Json | None) -> list[EndpointOutcome]:
    """Have all load or unload what the model is called there."""
    targets = [f"/v2/repository/models/{quote(place.model, safe='')}/{verb}".encode("ascii") for place in places]
    body = orjson.dumps({"parameters": parameters}) if parameters else b"{}"
    return await _ask_all(places, targets, body, _CONTROL_SECONDS)


async def _ask_all(
    places: Sequence[Place], targets: Sequence[bytes], body: bytes, seconds: float
) -> list[EndpointOutcome]:
    turns = asyncio.Semaphore(_AT_ONCE)

    async def ask(place: Place, target: bytes) -> EndpointOutcome:
        async with turns:
            return await _ask(place, target, body, seconds)

    return list(await asyncio.gather(*[ask(place, target) for place, target in zip(places, targets, strict=True)]))


async def _ask(place: Place, target: bytes, body: bytes, seconds: float) -> EndpointOutcome:
    since = monotonic()
    try:
        answered = await _fetch(place, target, body, seconds)
    except (GatewayError, OSError) as error:  # OSError: of a certificate's file
        return EndpointOutcome(place, monotonic() - since, why=str(error))
    return EndpointOutcome(place, monotonic() - since, answered.status, answered.body)


async def _fetch(place: Place, target: bytes, body: bytes, seconds: float) -> HttpReply:
    engine = place.engine
    endpoint = Endpoint(engine, place.endpoint, endpoint_tls(engine.tls, place.endpoint.url))
    fields = [*extra_fields(engine), (b"content-type", b"application/json")]
    try:
        return await fetch(endpoint, "POST", target, body, fields=fields, timeout=seconds)
    finally:
        endpoint.retire()
