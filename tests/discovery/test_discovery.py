"""Sources followed: an API server of Kubernetes, DNS and files, as their answers change and fail."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from gateway.config.engine_specs import EndpointSpec, EngineSpec
from gateway.config.source_specs import KubernetesSpec, SourceSpec
from gateway.discovery import source_follower
from gateway.discovery.discovery import Discovery, Endpoints
from gateway.observability.stats import SourceStatus
from tests.support.kubernetes_api import KubernetesApi, endpoint

A, B, C = (f"http://10.0.0.{at}:8000" for at in (1, 2, 3))


class Followed:
    """What a discovery reports."""

    def __init__(self) -> None:
        self.changes: list[Endpoints] = []
        self.discovery = Discovery(self.changes.append)

    def urls(self, engine: str = "it") -> list[str]:
        return [each.url for each in self.discovery.endpoints.get(engine, ())]

    @property
    def leaving(self) -> set[str]:
        return {url for _, url in self.discovery.leaving}

    @property
    def status(self) -> SourceStatus:
        (status,) = self.discovery.statuses()
        return status


@asynccontextmanager
async def following(source: SourceSpec, *endpoints: EndpointSpec) -> AsyncIterator[Followed]:
    followed = Followed()
    followed.discovery.use({"it": EngineSpec("it", endpoints, sources=(source,))})
    try:
        await followed.discovery.first_answers(30.0)
        yield followed
    finally:
        await followed.discovery.close()


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not holds():
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_follower, "_PAUSE_SECONDS", (0.02, 0.05))
    monkeypatch.setattr(source_follower, "_FILE_SECONDS", 0.02)


def service(api: KubernetesApi, **keys: str) -> SourceSpec:
    return SourceSpec(kubernetes=KubernetesSpec("triton", "models", "http", api.url, **keys))


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 120.0))  # type: ignore[arg-type]


def test_a_service_is_listed_and_watched() -> None:
    """Endpoints join, terminate and leave as slices say; pages of a list are one; a bookmark moves the watch on."""

    async def test() -> None:
        with KubernetesApi() as api:
            api.page_size = 1
            api.put("a", [endpoint("10.0.0.1")])
            api.put("b", [endpoint("10.0.0.2")])
            async with following(service(api)) as it:
                assert it.urls() == [A, B]
                api.put("c", [endpoint("10.0.0.3")])
                await until(lambda: it.urls() == [A, B, C])
                api.put("a", [endpoint("10.0.0.1", ready=False, serving=True, terminating=True)])
                await until(lambda: it.leaving == {A})
                assert sorted(it.urls()) == [A, B, C]
                api.delete("a")
                await until(lambda: it.urls() == [B, C] and not it.leaving)
                (follower,) = it.discovery._followers.values()
                answered_at = follower.state.answered_at
                api.bookmark()
                await until(lambda: follower.state.answered_at != answered_at)
                version = str(api.version)
                api.break_watches()
                await until(lambda: ("watch", version, 200) in api.requests)
                assert api.num_of("list") == 2  # the two pages

    run(test)


@pytest.mark.parametrize("by_event", [False, True])
def test_an_expired_version_is_listed_again(by_event: bool) -> None:
    """Where the server has forgotten the version (410, before the watch or in it), the list is read again, and no
    endpoint leaves meanwhile."""

    async def test() -> None:
        with KubernetesApi() as api:
            api.expires_by_event = by_event
            api.put("a", [endpoint("10.0.0.1")])
            async with following(service(api)) as it:
                await until(lambda: api.num_of("watch"))
                api.is_away = True
                api.break_watches()
                await until(lambda: it.status.error)
                api.put("b", [endpoint("10.0.0.2")])
                api.compact()
                assert it.urls() == [A]
                api.is_away = False
                await until(lambda: it.urls() == [A, B])
                assert api.num_of("list") == 2
                assert [[each.url for each in change["it"]] for change in it.changes] == [[], [A], [A, B]]

    run(test)


def test_an_outage_changes_nothing() -> None:
    """While the API server is away the endpoints stay, and operators see since when and why; afterwards the watch goes
    on from where it was."""

    async def test() -> None:
        with KubernetesApi() as api:
            api.put("a", [endpoint("10.0.0.1")])
            async with following(service(api)) as it:
                await until(lambda: api.num_of("watch"))
                answered_at = it.status.answered_at
                api.is_away = True
                api.break_watches()
                await until(lambda: it.status.failures > 2)
                assert it.urls() == [A] and api.url in it.status.error
                assert it.status.answered_at == pytest.approx(answered_at, abs=0.5)
                api.is_away = False
                await until(lambda: not it.status.error)
                assert api.num_of("list") == 1

    run(test)


def test_a_rotated_token_is_read_again(tmp_path: Path) -> None:
    """Each connection has the token that its file has then; TLS is by the CA's file."""

    async def test() -> None:
        ca = trustme.CA()
        ca.cert_pem.write_to_path(tmp_path / "ca.crt")
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert("127.0.0.1").configure_cert(tls)
        token = tmp_path / "token"
        token.write_text("one\n")
        with KubernetesApi(token="one", tls=tls) as api:
            api.put("a", [endpoint("10.0.0.1")])
            async with following(service(api, token=str(token), ca=str(tmp_path / "ca.crt"))) as it:
                assert it.urls() == [A]
                await until(lambda: api.num_of("watch"))
                api.tokens = {"two"}
                api.put("b", [endpoint("10.0.0.2")])
                await until(lambda: it.urls() == [A, B])  # the watch stays
                api.break_watches()
                await until(lambda: "401: Unauthorized; the token is not valid" in it.status.error)
                assert "one" not in it.status.error
                token.write_text("two\n")
                await until(lambda: not it.status.error)
                assert it.urls() == [A, B]

    run(test)


def test_a_file_is_followed(tmp_path: Path) -> None:
    """A changed file changes the endpoints; one with an error changes nothing; what it drops is drained."""

    async def test() -> None:
        path = tmp_path / "endpoints.json"
        path.write_text(f'["{A}"]')
        async with following(SourceSpec(file=str(path)), EndpointSpec(C)) as it:
            assert it.urls() == [C, A]
            path.write_text("[")
            await until(lambda: "not YAML" in it.status.error)
            assert it.urls() == [C, A]
            path.write_text(f'["{B}"]')
            await until(lambda: it.urls() == [C, B, A])
            assert it.leaving == {A} and not it.status.error

    run(test)


def test_rules_that_change(tmp_path: Path) -> None:
    """A reload with the same source keeps its endpoints and asks nobody; with another source, those of the old one
    serve until the new one has answered."""

    async def test() -> None:
        with KubernetesApi() as api:
            api.put("a", [endpoint("10.0.0.1")])
            source, later = service(api), tmp_path / "later.yaml"
            async with following(source) as it:
                await until(lambda: api.num_of("watch"))
                it.discovery.use({"it": EngineSpec("it", (EndpointSpec(C),), sources=(source,))})
                assert it.urls() == [C, A] and api.num_of("list") == 1
                it.discovery.use({"it": EngineSpec("it", (), sources=(SourceSpec(file=str(later)),))})
                await until(lambda: it.status.error)
                assert it.urls() == [A]
                later.write_text(f"- {B}")
                await until(lambda: it.urls() == [B])
                it.discovery.use({})
                assert it.discovery.endpoints == {}

    run(test)


GARBAGE = [
    b"",
    b"<html>",
    b"[]",
    b'{"items": 5}',
    b'{"items": {"a": 1}}',
    b'{"items": [], "metadata": [1]}',
    b'{"items": [null]}',
    b'{"items": [{"metadata": {"name": "a"}, "endpoints": "none"}]}',
    b'{"items": [{"metadata": {"name": "a"}, "ports": [{"port": 99999}]}]}',
]


@pytest.mark.parametrize("body", GARBAGE)
def test_an_api_server_that_answers_nonsense(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A list of another shape is an error that operators see; the log has no traceback, and endpoints stay."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % len(body) + body)
        writer.close()

    async def test() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        api = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        source = SourceSpec(kubernetes=KubernetesSpec("triton", "models", "http", api))
        async with following(source, EndpointSpec(A)) as it:
            await until(lambda: it.status.failures > 1)
            assert it.status.error
        server.close()

    run(test)
    assert not [record for record in caplog.records if record.exc_info]
