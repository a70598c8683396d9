"""Active health checks."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop

from gateway.config.engine_specs import EndpointSpec, EngineSpec, HealthSpec, LoadSpec, TlsSpec
from gateway.protocol.advertised_models import AdvertisedModels
from gateway.protocol.engine_load import Load, Readiness
from gateway.protocol.engine_protocols import EngineProtocol
from gateway.upstream import health as health_module
from gateway.upstream.health import EndpointHealth, Findings, Key, Prober
from tests.support.canned_engine import CannedEngine

READY, UNREADY, DOWN = Readiness.READY, Readiness.UNREADY, Readiness.DOWN
SIGNS = {"+": READY, "o": UNREADY, "-": DOWN}
SPEC = HealthSpec(interval=0.02, timeout=5, unhealthy_after=3, healthy_after=2)


@pytest.mark.parametrize(
    "probes, condition",
    [
        ("+", READY),
        ("-", DOWN),
        ("+--", READY),  # two failures are tolerated
        ("+---", DOWN),
        ("+--+--", READY),  # a good probe resets the count
        ("+---+", DOWN),  # one good probe is not enough
        ("+---++", READY),
        ("+--o", UNREADY),  # the latest result counts once enough probes report trouble
        ("o++", READY),
        ("+oo-", UNREADY),  # one lost reply of a server that loads a model does not mark it down
        ("+oo---", DOWN),
        ("-oo", UNREADY),  # it replies again: up, but not ready
        ("-oo+", UNREADY),
        ("-o+", UNREADY),
        ("-o++", READY),
        ("o-+", UNREADY),
        ("o-+--", UNREADY),  # a good probe resets the count of bad ones
        ("o-+---", DOWN),
    ],
)
def test_health_changes_when_enough_probes_agree(probes: str, condition: Readiness) -> None:
    """The first probe decides; later ones only when enough in a row agree on a change."""
    health = EndpointHealth(SPEC)
    for probe in probes:
        health.observe(SIGNS[probe])
    assert health.condition is condition


def test_observe_tells_of_a_change() -> None:
    """Only the probe that changes the readiness reports a change."""
    health = EndpointHealth(SPEC)
    assert [health.observe(SIGNS[probe]) for probe in "++---"] == [True, False, False, False, True]


class Engine:
    """Answers every request with its status, and records the heads."""

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
    """An engine that reports not ready is unready after enough probes, and ready again when it recovers; probes carry
    the engine's own fields and key."""

    async def scene() -> None:
        changes: asyncio.Queue[Findings] = asyncio.Queue()
        async with running_engine() as engine:
            prober = Prober(changes.put_nowait)
            prober.use({"e": spec(engine.url, api_key="k", headers={"x-a": "b"})})
            await prober.first_round(30)
            assert await changes.get() == Findings({("e", engine.url): READY})
            assert prober.health == {("e", engine.url): READY}
            engine.status = 400
            assert await asyncio.wait_for(changes.get(), 30) == Findings({("e", engine.url): UNREADY})
            engine.status = 200
            assert await asyncio.wait_for(changes.get(), 30) == Findings({("e", engine.url): READY})
            head = engine.heads[0].lower()
            assert head.startswith(b"get /v2/health/ready ")
            assert b"authorization: bearer k\r\n" in head
            assert b"x-a: b\r\n" in head
            await prober.close()

    asyncio.run(scene())


def test_an_endpoint_is_probed_at_once_when_somebody_calls() -> None:
    """A call of `look` probes at once, as often as a verdict needs, and then at the usual interval; an unknown endpoint
    is ignored."""

    async def scene() -> None:
        async with running_engine() as engine:
            seldom = HealthSpec(interval=3600, timeout=5, unhealthy_after=3, healthy_after=2)
            prober = Prober(lambda found: None)
            prober.use({"it": EngineSpec("it", (EndpointSpec(engine.url),), health=seldom)})
            await prober.first_round(30)
            key = ("it", engine.url)
            engine.status = 503
            prober.look(key)
            prober.look(("it", "http://unknown:1"))
            async with asyncio.timeout(30):
                while prober.health[key] is READY:
                    await asyncio.sleep(0.01)
            requested = len(engine.heads)
            await asyncio.sleep(0.12)
            assert len(engine.heads) == requested
            await prober.close()

    asyncio.run(scene())


def test_probes_that_end_at_the_same_moment() -> None:
    """Probes that end in one turn of a busy event loop go on, on uvloop too, whose handle of a call that is due at once
    has no time."""

    async def keep_busy() -> None:
        while True:
            time.sleep(0.02)  # the replies to all probes arrive meanwhile
            await asyncio.sleep(0)

    async def scene(engine: CannedEngine) -> None:
        it = EngineSpec("it", (EndpointSpec(engine.url),), health=HealthSpec(interval=3600, timeout=30))
        prober = Prober(lambda findings: None)
        busy = asyncio.create_task(keep_busy())
        prober.use(dict.fromkeys((f"e{number}" for number in range(40)), it))
        await prober.first_round(30)
        busy.cancel()
        assert set(prober.health.values()) == {READY}
        engine.kill()
        for key in prober.health:
            prober.look(key)
        async with asyncio.timeout(30):
            while set(prober.health.values()) != {DOWN}:
                await asyncio.sleep(0.01)
        await prober.close()

    with CannedEngine("it") as engine:
        uvloop.run(scene(engine))


def test_a_replica_that_may_have_missed_changes_probes_all() -> None:
    """`look_at_all` probes endpoints whose next probe is far away."""

    async def scene() -> None:
        async with running_engine() as engine:
            seldom = HealthSpec(interval=3600, timeout=5, unhealthy_after=3, healthy_after=1)
            prober = Prober(lambda found: None)
            prober.use({"it": EngineSpec("it", (EndpointSpec(engine.url),), health=seldom)})
            await prober.first_round(30)
            engine.status = 503
            prober.look_at_all()
            async with asyncio.timeout(30):
                while prober.health["it", engine.url] is READY:
                    await asyncio.sleep(0.01)
            await prober.close()

    asyncio.run(scene())


def test_a_dead_endpoint_and_a_missing_certificate_are_unhealthy() -> None:
    """An endpoint that refuses connections is down at the first probe, as is one whose certificate file is missing."""

    async def scene() -> None:
        prober = Prober(lambda found: None)
        missing = spec("https://127.0.0.1:1", tls=TlsSpec(ca="/nowhere.pem"))
        prober.use({"e": spec("http://127.0.0.1:1"), "tls": missing})
        await prober.first_round(30)
        assert prober.health == {("e", "http://127.0.0.1:1"): DOWN, ("tls", "https://127.0.0.1:1"): DOWN}
        await prober.close()

    asyncio.run(scene())


def test_what_cannot_be_asked_is_down() -> None:
    """A probe path too long for a URL marks the endpoint down."""

    async def scene() -> None:
        async with running_engine() as engine:
            prober = Prober(lambda found: None)
            prober.use({"e": EngineSpec("e", (EndpointSpec(engine.url),), health=HealthSpec(path="/" + 70_000 * "x"))})
            await prober.first_round(30)
            assert prober.health == {("e", engine.url): DOWN}
            await prober.close()

    asyncio.run(scene())


def test_a_certificate_may_come_later(tmp_path: Path) -> None:
    """An engine whose CA file is missing is down, and ready once the file exists."""
    authority, tls = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)

    async def scene() -> None:
        changes: asyncio.Queue[Findings] = asyncio.Queue()
        async with running_engine(tls) as engine:
            prober = Prober(changes.put_nowait)
            prober.use({"e": spec(engine.url, tls=TlsSpec(ca=str(tmp_path / "ca.pem")))})
            assert await asyncio.wait_for(changes.get(), 30) == Findings({("e", engine.url): DOWN})
            authority.cert_pem.write_to_path(tmp_path / "ca.pem.partial")
            (tmp_path / "ca.pem.partial").rename(tmp_path / "ca.pem")
            assert await asyncio.wait_for(changes.get(), 30) == Findings({("e", engine.url): READY})
            await prober.close()

    asyncio.run(scene())


@pytest.mark.parametrize("server_name, condition", [("engine.internal", READY), (None, DOWN)])
def test_probes_check_the_certificate_as_requests_do(
    server_name: str | None, condition: Readiness, tmp_path: Path
) -> None:
    """An https engine whose certificate names another host is ready with `server_name`, and down without it."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("engine.internal").configure_cert(tls)

    async def scene() -> None:
        async with running_engine(tls) as engine:
            prober = Prober(lambda found: None)
            prober.use({"e": spec(engine.url, tls=TlsSpec(ca=str(tmp_path / "ca.pem"), server_name=server_name))})
            await prober.first_round(30)
            assert prober.health == {("e", engine.url): condition}
            await prober.close()

    asyncio.run(scene())


def test_new_rules_keep_what_is_known() -> None:
    """Remaining endpoints keep their health, removed ones are dropped, and interval 0 disables probes."""

    async def scene() -> None:
        async with running_engine() as engine:
            prober = Prober(lambda found: None)
            prober.use({"e": spec(engine.url)})
            await prober.first_round(30)
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


class LanguageEngine:
    """Reports its models and its load while it runs."""

    def __init__(self) -> None:
        self.models: list[str] = ["llama"]
        self.running = 0
        self.requested: list[str] = []
        self.url = ""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        port = int(self.url.rpartition(":")[2] or 0)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        self.requested.append(path)
        bodies = {
            "/v1/models": json.dumps({"data": [{"id": model} for model in self.models]}),
            "/metrics": f"vllm:num_requests_running {self.running}\nvllm:num_requests_waiting 0\n",
        }
        body = bodies.get(path, "").encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()


def openai(url: str, **options: Any) -> EngineSpec:
    return spec(url, protocol=EngineProtocol.OPENAI, **options)


async def heard(changes: asyncio.Queue[Findings], is_so: Callable[[Findings], bool]) -> Findings:
    """The next findings that match."""
    async with asyncio.timeout(30):
        while not is_so(found := await changes.get()):
            pass
        return found


def names_of(models: Mapping[Key, AdvertisedModels | None]) -> dict[Key, frozenset[str]]:
    return {key: listed.names for key, listed in models.items() if listed is not None}


def test_models_are_discovered() -> None:
    """The models of an OpenAI endpoint are requested with its first probe, periodically, and when it comes back; they
    stay known while it is down."""

    async def scene() -> None:
        engine = LanguageEngine()
        await engine.start()
        changes: asyncio.Queue[Findings] = asyncio.Queue()
        prober = Prober(changes.put_nowait)
        prober.use({"e": openai(engine.url)})
        key = ("e", engine.url)
        await prober.first_round(30)
        assert names_of(prober.models) == {key: {"llama"}}
        assert engine.requested == ["/health", "/v1/models"]
        engine.models = ["llama", "qwen"]
        found = await heard(changes, lambda found: names_of(found.models).get(key) == {"llama", "qwen"})
        assert found.conditions == {}
        assert engine.requested[2:8] == [*5 * ["/health"], "/v1/models"]
        engine.stop()
        found = await heard(changes, lambda found: found.conditions.get(key) is DOWN)
        assert found.models == {}
        assert names_of(prober.models) == {key: {"llama", "qwen"}}
        engine.models = ["gemma"]
        await engine.start()
        await heard(changes, lambda found: names_of(found.models).get(key) == {"gemma"})
        await prober.close()
        engine.stop()

    asyncio.run(scene())


def test_loads_are_told_with_each_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy endpoint's load is reported with each probe, an idle one's once; a load that is no longer available is
    reported too."""
    monkeypatch.setattr(health_module, "_GATHER_SECONDS", 0.001)

    async def scene() -> None:
        engine = LanguageEngine()
        await engine.start()
        changes: asyncio.Queue[Findings] = asyncio.Queue()
        prober = Prober(changes.put_nowait)
        key = ("e", engine.url)
        prober.use({"e": openai(engine.url, load=LoadSpec("metrics"))})
        await heard(changes, lambda found: found.loads == {key: Load(0)})
        num_probes = engine.requested.count("/metrics")
        while engine.requested.count("/metrics") < num_probes + 3:
            await asyncio.sleep(0.01)
        assert changes.empty()
        engine.running = 3
        for _ in range(3):
            assert await asyncio.wait_for(changes.get(), 30) == Findings(loads={key: Load(3)})
        assert prober.loads == {key: Load(3)}
        engine.stop()
        await heard(changes, lambda found: found.loads == {key: None})
        assert prober.loads == {}
        await prober.close()

    asyncio.run(scene())


def test_loads_travel_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loads of several endpoints within a short interval are one message."""
    monkeypatch.setattr(health_module, "_GATHER_SECONDS", 0.5)

    async def scene() -> None:
        engines = [LanguageEngine(), LanguageEngine()]
        for number, engine in enumerate(engines):
            engine.running = number + 1
            await engine.start()
        keys = [("e", engine.url) for engine in engines]
        changes: asyncio.Queue[Findings] = asyncio.Queue()
        prober = Prober(changes.put_nowait)
        urls = tuple(EndpointSpec(engine.url) for engine in engines)
        slow = HealthSpec(interval=60)
        prober.use({"e": EngineSpec("e", urls, load=LoadSpec("metrics"), health=slow)})
        found = await heard(changes, lambda found: bool(found.loads))
        assert found.loads == {keys[0]: Load(1), keys[1]: Load(2)}
        assert changes.empty()
        prober.use({})
        assert prober.loads == {}
        assert await changes.get() == Findings(dict.fromkeys(keys), dict.fromkeys(keys))
        await prober.close()
        for engine in engines:
            engine.stop()

    asyncio.run(scene())


def test_a_fault_of_ours_does_not_end_the_probing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An internal error counts as a failed probe, and probing continues."""

    async def scene() -> None:
        async with running_engine() as engine:
            changes: asyncio.Queue[Findings] = asyncio.Queue()
            prober = Prober(changes.put_nowait)
            make = health_module.EndpointProbe
            monkeypatch.setattr(health_module, "EndpointProbe", lambda engine, url: 1 / 0)
            prober.use({"e": spec(engine.url)})
            await heard(changes, lambda found: found.conditions == {("e", engine.url): DOWN})
            monkeypatch.setattr(health_module, "EndpointProbe", make)
            await heard(changes, lambda found: found.conditions == {("e", engine.url): READY})
            await prober.close()

    asyncio.run(scene())
