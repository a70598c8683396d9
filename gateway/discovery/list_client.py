"""Endpoints that a server lists by HTTP, in the form of a file's list; requested at an interval."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import httpx

from gateway.config.source_specs import SourceSpec
from gateway.discovery.endpoint_list import MAX_BYTES, read_endpoints
from gateway.discovery.source_state import FoundEndpoint, SourceError

_MAX_TOKEN_BYTES = 64 * 1024


class ListClient:
    """Requests the list of one source."""

    def __init__(self, source: SourceSpec) -> None:
        assert source.http is not None
        self._source = source
        self._url = source.http
        self._latest: tuple[bytes, list[FoundEndpoint]] = b"", []  # the last good list, and what it says

    async def request(self) -> list[FoundEndpoint]:
        """Its endpoints. Raises: SourceError."""
        try:
            async with asyncio.timeout(self._source.timeout):
                content = await self._request()
        except TimeoutError:
            raise SourceError(f"no answer within {self._source.timeout:g} s") from None
        if content != self._latest[0]:
            self._latest = content, await asyncio.to_thread(read_endpoints, content, self._source)
        return self._latest[1]

    async def _request(self) -> bytes:
        """Raises: SourceError."""
        # Compressed, a list could be of any length; a connection for each request goes to a server that is there
        headers = {"accept": "application/json, application/yaml", "accept-encoding": "identity"}
        headers |= {"connection": "close", "user-agent": "pointsman"}
        if self._source.token is not None:
            headers["authorization"] = f"Bearer {await asyncio.to_thread(_read_token, Path(self._source.token))}"
        try:
            verify = await asyncio.to_thread(_tls, self._url, self._source.ca)
            async with (
                httpx.AsyncClient(verify=verify, timeout=None, trust_env=False) as client,
                client.stream("GET", self._url, headers=headers) as response,
            ):
                if response.status_code != 200:
                    cure = "; see 'token'" if response.status_code in (401, 403) else ""
                    raise SourceError(f"the server answers {response.status_code} {response.reason_phrase}{cure}")
                if response.headers.get("content-encoding", "identity") != "identity":
                    raise SourceError("the server compresses its reply, which was not requested")
                return await _body(response)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise SourceError(str(error) or type(error).__name__) from None


def _tls(url: str, authorities: str | None) -> ssl.SSLContext | bool:
    """Raises: OSError where the file cannot be used."""
    return ssl.create_default_context(cafile=authorities) if url.startswith("https:") else False


def _read_token(path: Path) -> str:
    """Raises: SourceError."""
    try:
        with path.open("rb") as file:
            token = file.read(_MAX_TOKEN_BYTES).decode("ascii").strip()
    except OSError as error:
        raise SourceError(f"its token cannot be read: {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        token = ""
    if not token.isprintable() or not token:
        raise SourceError(f"its token cannot be used: {path} has no line of ASCII")
    return token


async def _body(response: httpx.Response) -> bytes:
    """Raises: SourceError, httpx.HTTPError."""
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > MAX_BYTES:
            raise SourceError(f"it has more than {MAX_BYTES} bytes")
    return bytes(body)
