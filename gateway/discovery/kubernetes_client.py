"""Follows the EndpointSlices of a Service: a list, then a watch from where the list ended.

As client-go's reflector does it: a watch ends after some minutes and goes on from the last version; where that is gone
(410) the list is read again; failures pause with backoff and jitter. Token and authorities are read for each
connection, since both rotate.
"""

from __future__ import annotations

import os
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import orjson

from gateway.config.source_specs import SourceSpec
from gateway.discovery.endpoint_slices import MAX_SLICES, EndpointSlices, WatchExpiredError
from gateway.discovery.source_state import FoundEndpoint, SourceError

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CONNECT_SECONDS = 5.0
_LIST_SECONDS = 30.0
_PAGE_SIZE = 500
_MAX_PAGES = MAX_SLICES // _PAGE_SIZE
# A watch ends after so long, so that a server behind a load balancer is chosen again.
_WATCH_SECONDS = (240, 300)
# How much longer than that it may take.
_LATE_SECONDS = 30.0
_MAX_BYTES = 64 * 1024 * 1024  # of one page
_MAX_EVENT_BYTES = 4 * 1024 * 1024
# A connection that has fallen silent is found by the kernel within 45 s.
_KEEPALIVE = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
]


@dataclass(frozen=True, slots=True)
class ApiServer:
    """Where the API is, and how to call it; the files are read for each connection."""

    url: str
    token: Path | None
    ca: Path | None

    @classmethod
    def of(cls, source: SourceSpec) -> ApiServer:
        """The one that the source names, or that of the cluster.

        Raises: SourceError.
        """
        spec = source.kubernetes
        assert spec is not None
        if spec.api is not None:
            return cls(spec.api, Path(spec.token) if spec.token else None, Path(spec.ca) if spec.ca else None)
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise SourceError("the gateway does not run in a cluster: write 'api', the URL of the API server")
        host = f"[{host}]" if ":" in host else host
        return cls(f"https://{host}:{port}", _ACCOUNT / "token", _ACCOUNT / "ca.crt")

    @asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """Raises: SourceError where a file cannot be read."""
        headers = {"accept": "application/json", "user-agent": "pointsman"}
        verify: ssl.SSLContext | bool = False  # of plain HTTP, as `kubectl proxy` serves it
        try:
            if self.token is not None:
                headers["authorization"] = f"Bearer {self.token.read_text('ascii').strip()}"
            if self.url.startswith("https:"):
                verify = ssl.create_default_context(cafile=self.ca)
        except (OSError, ValueError) as error:
            raise SourceError(f"{getattr(error, 'filename', None) or self.token or self.ca}: {error}") from None
        timeout = httpx.Timeout(_LIST_SECONDS, connect=_CONNECT_SECONDS)
        transport = httpx.AsyncHTTPTransport(verify=verify, socket_options=_KEEPALIVE)
        try:
            async with httpx.AsyncClient(
                base_url=self.url, headers=headers, timeout=timeout, transport=transport, trust_env=False
            ) as client:
                yield client
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeEncodeError) as error:
            raise SourceError(f"{self.url}: {str(error) or type(error).__name__}") from None


class KubernetesClient:
    """Lists and watches the slices of one source; `answered` gets its endpoints."""

    def __init__(self, source: SourceSpec, answered: Callable[[list[FoundEndpoint]], None]) -> None:
        assert source.kubernetes is not None
        if source.kubernetes.namespace is None:
            source = replace(source, kubernetes=replace(source.kubernetes, namespace=_own_namespace()))
        assert source.kubernetes is not None
        self._source = source
        self._slices = EndpointSlices(source)
        self._answered = answered
        self._path = f"/apis/discovery.k8s.io/v1/namespaces/{source.kubernetes.namespace}/endpointslices"
        self._selector = {"labelSelector": f"kubernetes.io/service-name={source.kubernetes.service}"}

    async def follow(self) -> None:
        """List where no version is known, and watch until the server ends that.

        Raises: SourceError.
        """
        async with ApiServer.of(self._source).client() as client:
            if not self._slices.version:
                await self._list(client)
            try:
                await self._watch(client)
            except WatchExpiredError:
                self._slices.version = ""

    async def _list(self, client: httpx.AsyncClient) -> None:
        """Raises: SourceError, httpx.HTTPError."""
        items: list[Any] = []
        query: dict[str, Any] = self._selector | {"limit": _PAGE_SIZE}
        for _ in range(_MAX_PAGES):
            async with client.stream("GET", self._path, params=query) as response:
                page = _object(await _body(response, _MAX_BYTES), "its list")
                if response.status_code == 410 and "continue" in query:  # the list took too long
                    raise SourceError("the list has expired while it was read")
                self._check(response, page)
            listed, metadata = page.get("items") or [], page.get("metadata") or {}
            if not isinstance(listed, list) or not isinstance(metadata, dict):
                raise SourceError("its list is no list of EndpointSlices")
            items += listed
            if not metadata.get("continue"):
                self._slices.replace(items, str(metadata.get("resourceVersion") or ""))
                self._answer()
                return
            query["continue"] = metadata["continue"]
        raise SourceError(f"the list has more than {MAX_SLICES} slices")

    async def _watch(self, client: httpx.AsyncClient) -> None:
        """Raises: WatchExpiredError, SourceError, httpx.HTTPError."""
        seconds = random.randint(*_WATCH_SECONDS)
        query = self._selector | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._slices.version,
            "timeoutSeconds": str(seconds),
        }
        timeout = httpx.Timeout(seconds + _LATE_SECONDS, connect=_CONNECT_SECONDS)
        async with client.stream("GET", self._path, params=query, timeout=timeout) as response:
            if response.status_code == 410:
                raise WatchExpiredError
            if response.status_code != 200:
                self._check(response, _object(await _body(response, _MAX_EVENT_BYTES), "its refusal"))
            self._answer()  # the server answers again, whether slices have changed or not
            async for lines in _lines(response):
                for line in lines:
                    self._slices.apply(_object(line, "an event of the watch"))
                self._answer()

    def _answer(self) -> None:
        """Raises: SourceError."""
        self._answered(self._slices.endpoints())

    def _check(self, response: httpx.Response, content: dict[str, Any]) -> None:
        """Raises: SourceError where it is no success."""
        status = response.status_code
        if status == 200:
            return
        message = str(content.get("message") or response.reason_phrase)[:500]
        cure = {
            401: "; the token is not valid",
            403: "; a Role needs the verbs list and watch of endpointslices in discovery.k8s.io",
        }.get(status, "")
        raise SourceError(f"the API server answers {status}: {message}{cure}")


def _own_namespace() -> str:
    """That of the gateway's pod."""
    try:
        return (_ACCOUNT / "namespace").read_text("ascii").strip() or "default"
    except (OSError, ValueError):
        return "default"


async def _body(response: httpx.Response, limit: int) -> bytes:
    """Raises: SourceError, httpx.HTTPError."""
    body = bytearray()
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > limit:
            raise SourceError(f"the API server's reply has more than {limit} bytes")
    return bytes(body)


async def _lines(response: httpx.Response) -> AsyncIterator[list[bytes]]:
    """The lines of a watch, as they come: those that come together at once.

    Raises: SourceError, httpx.HTTPError.
    """
    rest = b""
    async for piece in response.aiter_bytes():
        if b"\n" in piece:
            *lines, rest = (rest + piece).split(b"\n")
            if whole := [line for line in lines if line.strip()]:
                yield whole
        else:
            rest += piece
        if len(rest) > _MAX_EVENT_BYTES:
            raise SourceError(f"an event of the watch has more than {_MAX_EVENT_BYTES} bytes")


def _object(content: bytes, what: str) -> dict[str, Any]:
    """Raises: SourceError where it is no JSON object."""
    try:
        parsed = orjson.loads(content)
    except ValueError:
        parsed = None
    if not isinstance(parsed, dict):
        raise SourceError(f"{what} is no JSON object: {content[:100].decode('utf-8', 'replace')!r}")
    return parsed
