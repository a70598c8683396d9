"""Active health checks."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from gateway.config.specs import EndpointSpec, EngineSpec, HealthSpec, TlsSpec
from gateway.protocol.condition import Condition
from gateway.upstream.health import EndpointHealth, Prober

READY, UNREADY, DOWN = Condition.READY, Condition.UNREADY, Condition.DOWN
SIGNS = {"+": READY, "o": UNREADY, "-": DOWN}
SPEC = HealthSpec(interval=0.02, timeout=0.5, unhealthy_after=3, healthy_after=2)


@pytest.mark.parametrize(
    "probes, condition",
    [
        ("+", READY),
        ("-", DOWN),
        ("+--", READY),  # two failures ride out
        ("+---", DOWN),
        ("+--+--", READY),  # a good probe between starts the count anew
        ("+---+", DOWN),  # one good probe is not enough
        ("+---++", READY),
        ("+--o", UNREADY),  # what is said last counts, when enough say that all is not well
        ("o++", READY),
        ("+oo-", UNREADY),  # one lost answer of a server that loads a model does not make it gone
        ("+oo---", DOWN),
        ("-oo", UNREADY),  # it answers again: there, though not ready
        ("-oo+", UNREADY),
        ("-o+", UNREADY),
        ("-o++", READY),
        ("o-+", UNREADY),
        ("o-+--", UNREADY),  # nor does a good one help the bad ones to three
        ("o-+---", DOWN),
    ],
)
def test_health_changes_when_enough_probes_agree(probes: str, condition: Condition) -> None:
    """The first probe decides; later ones only when so many in a row say that it is worse, or better."""
    health = EndpointHealth(SPEC)
    for probe in probes:
        health.observe(SIGNS[probe])
    assert health.condition is condition


def test_observe_tells_of_a_change() -> None:
    """Only the probe that turns the verdict reports a change."""
    health = EndpointHealth(SPEC)
    assert [health.observe(SIGNS[probe]) for probe in "++---"] == [True, False, False, False, True]


class Engine:
    """Answers every request with its status, and keeps the heads."""

    def __init__(self) -> None:
        self.status = 200
        self.heads: list[bytes] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % self.status)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


@asynccontextmanager
async def running_engine(tls: ssl.SSLContext | None = None) -> AsyncIterator[Engine]:
    engine = Engine()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, ssl=tls)
    engine.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield engine
    finally:
        server.close()


def spec(url: str, **options: object) -> EngineSpec:
    return EngineSpec("e", (EndpointSpec(url),), health=SPEC, **options)  # type: ignore[arg-type]


def test_probes_follow_the_engine() -> None:
    """An engine that says it is not ready is taken so after enough probes, and ready again when it recovers; probes
    carry the engine's own fields and key."""

    async def scene() -> None:
        changes: asyncio.Queue[dict[tuple[str, str], Condition]] = asyncio.Queue()
        async with running_engine() as engine:
            prober = Prober(changes.put_nowait)
            prober.use({"e": spec(engine.url, api_key="k", headers={"x-a": "b"})})
            assert await changes.get() == {}
            await prober.first_round(5)
            assert await changes.get() == {("e", engine.url): READY} == prober.health
            engine.status = 400
            assert await asyncio.wait_for(changes.get(), 5) == {("e", engine.url): UNREADY}
            engine.status = 200
            assert await asyncio.wait_for(changes.get(), 5) == {("e", engine.url): READY}
            head = engine.heads[0].lower()
            assert head.startswith(b"get /v2/health/ready ")
            assert b"authorization: bearer k\r\n" in head
            assert b"x-a: b\r\n" in head
            await prober.close()

    asyncio.run(scene())


def test_a_dead_endpoint_and_a_missing_certificate_are_unhealthy() -> None:
    """What cannot be connected to is down at the first probe; so is what cannot be probed for a missing file."""

    async def scene() -> None:
        prober = Prober(lambda health: None)
        missing = spec("https://127.0.0.1:1", tls=TlsSpec(ca="/nowhere.pem"))
        prober.use({"e": spec("http://127.0.0.1:1"), "tls": missing})
        await prober.first_round(5)
        assert prober.health == {("e", "http://127.0.0.1:1"): DOWN, ("tls", "https://127.0.0.1:1"): DOWN}
        await prober.close()

    asyncio.run(scene())


def test_what_cannot_be_asked_is_down() -> None:
    """A path that is too long for a URL makes an endpoint down, as no answer would."""

    async def scene() -> None:
        async with running_engine() as engine:
            prober = Prober(lambda health: None)
            prober.use({"e": EngineSpec("e", (EndpointSpec(engine.url),), health=HealthSpec(path="/" + 70_000 * "x"))})
            await prober.first_round(5)
            assert prober.health == {("e", engine.url): DOWN}
            await prober.close()

    asyncio.run(scene())


def test_a_certificate_may_come_later(tmp_path: Path) -> None:
    """An engine whose authority's file is missing is down, and ready once the file is there."""
    authority, tls = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)

    async def scene() -> None:
        changes: asyncio.Queue[dict[tuple[str, str], Condition]] = asyncio.Queue()
        async with running_engine(tls) as engine:
            prober = Prober(changes.put_nowait)
            prober.use({"e": spec(engine.url, tls=TlsSpec(ca=str(tmp_path / "ca.pem")))})
            assert await changes.get() == {}
            assert await asyncio.wait_for(changes.get(), 5) == {("e", engine.url): DOWN}
            authority.cert_pem.write_to_path(tmp_path / "ca.pem.partial")
            (tmp_path / "ca.pem.partial").rename(tmp_path / "ca.pem")
            assert await asyncio.wait_for(changes.get(), 5) == {("e", engine.url): READY}
            await prober.close()

    asyncio.run(scene())


@pytest.mark.parametrize("server_name, condition", [("engine.internal", READY), (None, DOWN)])
def test_probes_check_the_certificate_as_requests_do(
    server_name: str | None, condition: Condition, tmp_path: Path
) -> None:
    """An https engine whose certificate names another host is ready with `server_name`, and down without it."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("engine.internal").configure_cert(tls)

    async def scene() -> None:
        async with running_engine(tls) as engine:
            prober = Prober(lambda health: None)
            prober.use({"e": spec(engine.url, tls=TlsSpec(ca=str(tmp_path / "ca.pem"), server_name=server_name))})
            await prober.first_round(5)
            assert prober.health == {("e", engine.url): condition}
            await prober.close()

    asyncio.run(scene())


def test_new_rules_keep_what_is_known() -> None:
    """Endpoints that stay keep their health, those that go are forgotten, and interval 0 is not probed."""

    async def scene() -> None:
        async with running_engine() as engine:
            prober = Prober(lambda health: None)
            prober.use({"e": spec(engine.url)})
            await prober.first_round(5)
            prober.use(
                {
                    "e": spec(engine.url),
                    "off": EngineSpec("off", spec(engine.url).endpoints, health=HealthSpec(interval=0)),
                }
            )
            assert prober.health == {("e", engine.url): READY}
            prober.use({})
            assert prober.health == {}
            await prober.close()

    asyncio.run(scene())
