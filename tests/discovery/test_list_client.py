"""Endpoints that a server lists: requests for the list, its answers and its failures."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from gateway.config.source_specs import LISTED, SourceSpec
from gateway.discovery import source_follower
from gateway.discovery.endpoint_list import MAX_BYTES, read_endpoints
from gateway.discovery.list_client import ListClient
from gateway.discovery.source_state import SourceError
from tests.discovery.test_discovery import following, run, until

A, B = "http://10.0.0.1:8000", "http://10.0.0.2:8000"


class Lister:
    """A server that answers each request with `status`, `fields` and `body`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.status, self.body = 200, f'["{A}"]'.encode()
        self.fields: dict[str, str] = {}
        self.requests: list[dict[str, str]] = []
        self.released = threading.Event()
        self.released.set()
        lister = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                lister.requests.append({name.lower(): text for name, text in self.headers.items()})
                lister.released.wait(120)
                self.send_response(lister.status)
                for name, text in lister.fields.items():
                    self.send_header(name, text)
                self.end_headers()
                self.wfile.write(lister.body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._server.server_address[1]}/endpoints"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def lister(tls: ssl.SSLContext | None = None) -> Iterator[Lister]:
    server = Lister(tls)
    try:
        yield server
    finally:
        server.close()


def answer(source: SourceSpec) -> list[str]:
    """The URLs that one request finds. Raises: SourceError."""
    return [each.spec.url for each in asyncio.run(ListClient(source).request())]


def test_a_list_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Endpoints join and leave with the list; a server that fails, or answers nonsense, changes nothing; a list that
    becomes empty keeps its endpoints for a grace time."""
    monkeypatch.setattr(source_follower, "_LEAST_LIST_SECONDS", 0.02)

    async def test() -> None:
        with lister() as server:
            source = SourceSpec(http=server.url, interval=0.05, timeout=120.0, drain=0.0)
            async with following(source) as it:
                assert it.urls() == [A] and it.status.source == f"http:{server.url}"
                server.body = f'[{{"targets": ["10.0.0.2:8000"]}}, "{A}"]'.encode()
                await until(lambda: it.urls() == [A, B])
                failures: list[tuple[int, bytes, str]] = [
                    (503, b"[]", "the server answers 503"),
                    (200, b"<html>", "expected a list of endpoints"),
                    (200, b'["gopher://a"]', "/endpoints:1:2: error: URL 'gopher://a'"),
                ]
                for status, body, error in failures:
                    server.status, server.body = status, body
                    await until(lambda error=error: error in it.status.error)  # type: ignore[misc]
                    assert it.urls() == [A, B]
                server.status, server.body = 200, f'["{B}"]'.encode()
                await until(lambda: it.urls() == [B] and not it.status.error)
                server.body = b"[]"
                await until(lambda: it.status.is_empty)
                assert it.urls() == [B]

    run(test)


def test_a_server_is_asked_again_when_endpoints_are_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe that finds an endpoint down need not wait for the interval."""
    monkeypatch.setattr(source_follower, "_LEAST_LIST_SECONDS", 0.02)

    async def test() -> None:
        with lister() as server:
            async with following(SourceSpec(http=server.url, interval=3600.0, drain=0.0)) as it:
                server.body = f'["{B}"]'.encode()
                await until(lambda: it.discovery.look([("it", A)]) or it.urls() == [B])

    run(test)


def test_credentials(tmp_path: Path) -> None:
    """The token is read for each request, and sent as a bearer's; nothing is compressed; a missing or an unusable token
    is an error that does not quote it."""
    token = tmp_path / "token"
    with lister() as server:
        source = SourceSpec(http=server.url, token=str(token))
        with pytest.raises(SourceError, match="its token cannot be read"):
            answer(source)
        for secret in ("first", "second"):
            token.write_text(f"{secret}\n")
            assert answer(source) == [A]
            assert server.requests[-1]["authorization"] == f"Bearer {secret}"
        assert server.requests[-1]["accept-encoding"] == "identity"
        token.write_text("sec\nret")
        with pytest.raises(SourceError) as caught:
            answer(source)
        assert "ret" not in str(caught.value).replace(str(token), "") and len(server.requests) == 2


def test_what_is_bounded() -> None:
    """Length and time of a reply are bounded; redirects and compressed replies are refused."""
    with lister() as server:

        def fails(error: str, timeout: float = 120.0) -> None:
            with pytest.raises(SourceError, match=error):
                answer(SourceSpec(http=server.url, timeout=timeout))

        server.body = b" " * (MAX_BYTES + 1)
        fails("more than 4194304 bytes")
        server.body, server.fields = b"[]", {"content-encoding": "gzip"}
        fails("compresses its reply")
        server.status, server.fields = 302, {"location": "http://169.254.169.254/"}
        fails("the server answers 302")
        server.status = 401
        fails("answers 401 .*; see 'token'")
        server.released.clear()
        fails("no answer within 0.1 s", timeout=0.1)
        url = server.url
    with pytest.raises(SourceError):  # it is gone
        answer(SourceSpec(http=url))


def test_tls(tmp_path: Path) -> None:
    """The server's certificate is checked against the authorities that the source names."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with lister(context) as server:
        assert answer(SourceSpec(http=server.url, ca=str(tmp_path / "ca.pem"))) == [A]
        with pytest.raises(SourceError, match="CERTIFICATE_VERIFY_FAILED"):
            answer(SourceSpec(http=server.url))


def test_each_entry_may_have_its_own_grpc_address() -> None:
    """With `grpc: listed`, each entry names its address of gRPC; one without is an error. Without `grpc` those
    addresses are for other readers of the list."""
    source = SourceSpec(http="http://lister/endpoints", grpc=LISTED)
    listed = b'[{"url": "http://a:1", "grpc": "a:2"}, {"url": "http://a:3", "grpc": "a:4"}]'
    assert [each.spec.grpc for each in read_endpoints(listed, source)] == ["a:2", "a:4"]
    assert [each.spec.grpc for each in read_endpoints(listed, SourceSpec(http="http://lister"))] == [None, None]
    for entry in (b'["http://a:1"]', b'["a:1"]', b'[{"targets": ["a:1"]}]'):
        with pytest.raises(SourceError, match="without gRPC is not what the source declares"):
            read_endpoints(entry, source)
