"""An engine's endpoints, and which of them a request may use."""

import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.config.engine_specs import (
    ActivatorSpec,
    Balance,
    BreakerSpec,
    EndpointSpec,
    EngineSpec,
    HealthSpec,
    LoadSpec,
    PrefixSpec,
    TlsSpec,
)
from gateway.protocol.advertised_models import AdvertisedModels
from gateway.protocol.engine_load import Load, Readiness
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.engine import Engine
from gateway.upstream.tls import endpoint_tls
from tests.dataplane.stage import run, until
from tests.net.stage import Caller, engine

READY, UNREADY, DOWN = Readiness.READY, Readiness.UNREADY, Readiness.DOWN


def made(num_endpoints: int = 3, **options: object) -> Engine:
    urls = tuple(EndpointSpec(f"http://e{number}:80") for number in range(num_endpoints))
    return Engine(EngineSpec("it", urls, **options))  # type: ignore[arg-type]


def listing(*names: str) -> AdvertisedModels:
    return AdvertisedModels(frozenset(names))


@pytest.mark.parametrize(
    "endpoints, tried, chosen",
    [
        # each endpoint: ? not probed yet, + ready, o unready, - down;  ! its breaker is open;  d it is drained
        ("? ? ?", "", "012"),
        ("+ + +", "", "012"),
        ("+ ? -", "", "01"),
        ("+ + +", "0", "12"),
        ("+ + +", "02", "1"),
        ("+ + +", "012", ""),
        ("+ o o", "", "0"),  # an unready endpoint is used only where no other is left
        ("+ o o", "0", "12"),
        ("- o o", "", "12"),
        ("- o o", "1", "2"),
        ("- - -", "", ""),
        ("- - -", "0", ""),
        ("+! + +", "", "12"),
        ("+! + -", "1", "0"),  # an endpoint whose requests failed is better than none
        ("+! +! +!", "", "012"),  # all breakers open: trying is better than an outage caused by the gateway
        ("+! ?! -!", "", "01"),
        ("+! o o", "", "0"),  # a probe outweighs requests that failed earlier
        ("o! o -", "", "1"),
        ("+!", "", "0"),
        ("?", "", "0"),
        ("o", "", "0"),
        ("-", "", ""),
        ("+", "0", ""),
        ("+d + ?", "", "12"),  # a drained endpoint gets no new work
        ("+d + ?", "12", "0"),  # while another endpoint can serve
        ("+d +d", "", "01"),
        ("+d o -", "", "0"),  # a drained endpoint is better than an unready one
        ("+d +! -", "", "0"),  # or one whose requests fail
        ("+d! +! -", "", "1"),
        ("-d o", "", "1"),
        ("+d", "", "0"),
    ],
)
def test_who_may_be_chosen(endpoints: str, tried: str, chosen: str) -> None:
    """Endpoints that are down or were tried are never chosen; ready ones come before unready, open breakers last."""
    conditions = {"?": None, "+": READY, "o": UNREADY, "-": DOWN}
    it = made(len(endpoints.split()), balance=Balance.POWER_OF_TWO, breaker=BreakerSpec(failures=1, open_for=5.0))
    for endpoint, signs in zip(it.endpoints, endpoints.split(), strict=True):
        endpoint.condition = conditions[signs[0]]
        endpoint.is_draining = "d" in signs
        assert endpoint.takes_new == (signs[0] in "?+" and "d" not in signs)
        if "!" in signs:
            endpoint.breaker.failed(100.0)
    excluded = [it.endpoints[int(index)] for index in tried]
    found: set[Endpoint | None] = {it.choose(None, 101.0, excluded) for _ in range(100)}
    expected: set[Endpoint | None] = {it.endpoints[int(index)] for index in chosen}
    assert found == (expected or {None})


def test_a_breaker_whose_pause_is_over() -> None:
    """After its pause a broken endpoint gets one trial request; during the trial it gets no second one."""
    it = made(2, balance=Balance.ROUND_ROBIN, breaker=BreakerSpec(failures=1, open_for=5.0))
    broken, sound = it.endpoints
    broken.breaker.failed(100.0)
    assert {it.choose(None, 104.0) for _ in range(10)} == {sound}
    assert {it.choose(None, 105.0) for _ in range(10)} == {broken, sound}
    broken.breaker.sent(105.0)
    assert {it.choose(None, 105.0) for _ in range(10)} == {sound}


def test_sessions_come_back() -> None:
    """While an endpoint is down only its sessions move elsewhere; afterwards they return."""
    it = made(3, balance=Balance.SESSION)
    sessions = [f"s{number}" for number in range(100)]

    def assignment() -> list[Endpoint | None]:
        return [it.choose(session, 0.0) for session in sessions]

    before = assignment()
    it.endpoints[1].condition = DOWN
    during = assignment()
    assert it.endpoints[1] not in during
    assert all(now is then for now, then in zip(during, before, strict=True) if then is not it.endpoints[1])
    it.endpoints[1].condition = READY
    assert assignment() == before


PROMPT = b"You are a helpful assistant. " * 100


def test_prompts_come_back() -> None:
    """`balance: prefix` sends a prompt to the endpoint that served its beginning, while that one is up; requests
    without a prompt go to the least busy endpoint, and other balances ignore prompts."""
    it = made(3, balance=Balance.PREFIX)
    first = it.choose(None, 0.0, (), PROMPT)
    assert first is not None
    first.in_flight = 2
    assert it.choose(None, 0.0, (), PROMPT + b"And more.") is first
    assert it.choose(None, 0.0, (), memoryview(PROMPT)) is first
    assert all(it.choose(None, 0.0, (), prompt) is not first for prompt in (None, b"") for _ in range(50))
    assert it.choose(None, 0.0, (first,), PROMPT) is not first
    first.condition = DOWN
    assert it.choose(None, 0.0, (), PROMPT) is not first
    plain = made(3, balance=Balance.LEAST_OUTSTANDING)
    assert plain.prefixes is None
    assert len({plain.choose(None, 0.0, (), PROMPT) for _ in range(100)}) == 3


def test_what_is_known_of_prompts_lives_on() -> None:
    """New rules keep the prefix index, without removed endpoints; another block size starts an empty index."""
    before = made(3, balance=Balance.PREFIX)
    first = before.choose(None, 0.0, (), PROMPT)
    assert first is not None
    known = {endpoint.url: endpoint for endpoint in before.endpoints}
    same = Engine(replace(before.spec, timeout=5.0), known, before.prefixes)
    assert same.prefixes is before.prefixes is not None
    assert len(before.prefixes) == len(PROMPT) // 256
    others = tuple(endpoint for endpoint in before.spec.endpoints if endpoint.url != first.url)
    fewer = Engine(replace(before.spec, endpoints=others), known, before.prefixes)
    assert fewer.prefixes is before.prefixes and len(before.prefixes) == 0
    changed = Engine(replace(before.spec, prefix=PrefixSpec(block_bytes=64)), known, before.prefixes)
    assert changed.prefixes is not before.prefixes


def test_an_engine_asks_for_its_load() -> None:
    """With `load.source: orca` each request carries the ORCA field, unless the rules set it themselves."""
    assert (b"endpoint-load-metrics-format", b"text") in made(load=LoadSpec("orca")).extra_fields
    own = made(load=LoadSpec("orca"), headers={"endpoint-load-metrics-format": "json"}).extra_fields
    assert own == [(b"endpoint-load-metrics-format", b"json")]
    assert made(load=LoadSpec("metrics")).extra_fields == []


def test_its_models_are_those_of_all_endpoints() -> None:
    """An engine's models are those of all its endpoints."""
    it = made(3)
    assert it.models == frozenset()
    it.endpoints[0].models, it.endpoints[1].models = listing("a"), listing("a", "b")
    it.lists_changed(it.endpoints)
    assert it.models == {"a", "b"}


@pytest.mark.parametrize(
    "interval, conditions, ready",
    [
        (2.0, (READY, DOWN), True),
        (2.0, (UNREADY, DOWN), False),
        (2.0, (None, None), False),  # readiness is unknown yet
        (0.0, (None, None), True),  # no probes, and no request has failed
    ],
)
def test_is_ready(interval: float, conditions: tuple[Readiness | None, ...], ready: bool) -> None:
    """An engine is ready when one of its endpoints is, or, without probes, while requests do not fail."""
    it = made(2, health=HealthSpec(interval=interval), breaker=BreakerSpec(failures=1))
    for endpoint, condition in zip(it.endpoints, conditions, strict=True):
        endpoint.condition = condition
    assert it.is_ready is ready
    if not interval:
        for endpoint in it.endpoints:
            endpoint.breaker.failed(0.0)
        assert not it.is_ready


def test_one_that_requests_start_is_ready() -> None:
    """An engine that is down, and that requests wait for and start, is ready for them: a balancer in front of the
    gateway must send them."""
    activator = ActivatorSpec("http://a/start")
    for options, ready in (({"wait_for_endpoint": 60.0}, True), ({}, False)):
        it = made(1, activator=activator, **options)
        it.endpoints[0].condition = DOWN
        assert it.is_ready is ready


def test_an_endpoint_that_starts_gets_no_requests() -> None:
    """Where requests wait, an endpoint that was down and is not ready yet stays down; no longer than they wait, since
    Triton is not ready for good once a model has failed to load. Where they do not wait, it serves."""
    it = made(1, wait_for_endpoint=60.0)
    (only,) = it.endpoints
    for before, condition, now, found in (
        (None, UNREADY, 0.0, UNREADY),  # it was there before the gateway
        (DOWN, UNREADY, 10.0, DOWN),
        (DOWN, UNREADY, 69.0, DOWN),
        (DOWN, READY, 69.5, READY),
        (READY, UNREADY, 69.6, UNREADY),
    ):
        only.condition = before
        it.observe(only, condition, now)
        assert only.condition is found, (before, condition, now)
    it.observe(only, DOWN, 100.0)
    it.observe(only, UNREADY, 110.0)
    it.sweep(169.0)
    assert (only.condition, it.choose(None, 169.0)) == (DOWN, None)
    it.sweep(170.0)
    assert (only.condition, it.choose(None, 170.0)) == (UNREADY, only)
    it = made(1)
    (only,) = it.endpoints
    only.condition = DOWN
    it.observe(only, UNREADY, 0.0)
    assert only.condition is UNREADY


def test_an_endpoint_with_a_ready_model_has_started() -> None:
    """A V2 server that is not ready, since a model has failed, serves its other models at once."""
    it = made(1, wait_for_endpoint=60.0)
    (only,) = it.endpoints
    only.condition = DOWN
    only.models = AdvertisedModels()
    it.observe(only, UNREADY, 0.0)
    assert only.condition is DOWN
    only.models = AdvertisedModels(frozenset({"m"}))
    it.observe(only, UNREADY, 1.0)
    assert only.condition is UNREADY


def test_its_repr_tells_its_state() -> None:
    """An engine's repr shows its endpoints, the available ones and the requests in flight."""
    it = made(3, breaker=BreakerSpec(failures=1))
    it.endpoints[0].condition = DOWN
    it.endpoints[1].breaker.failed(0.0)
    it.endpoints[2].in_flight = 5
    assert repr(it) == "<Engine it: 3 endpoints, 1 available, 5 in flight>"


def test_fields_of_its_own() -> None:
    """The declared fields and key are ready to be sent, and their names are known."""
    it = made(headers={"X-Team": "vision", "x-lang": "fr\xe9"}, api_key="secret")
    assert it.extra_lines == b"x-team: vision\r\nx-lang: fr\xe9\r\nauthorization: Bearer secret\r\n"
    assert it.extra_names == {b"x-team", b"x-lang", b"authorization"}
    assert (made().extra_lines, made().extra_names) == (b"", frozenset())
    assert "secret" not in repr(it) + repr(it.spec)


def test_a_new_declaration_keeps_what_fits() -> None:
    """An unchanged endpoint keeps its state; one whose limits or TLS changed is replaced."""
    before = made(balance=Balance.ROUND_ROBIN)
    before.endpoints[0].in_flight = 7
    known = {endpoint.url: endpoint for endpoint in before.endpoints}
    urls = before.spec.endpoints
    same = Engine(EngineSpec("it", urls, timeout=5.0, balance=Balance.SESSION, api_key="new"), known)
    assert same.endpoints == before.endpoints
    fewer = Engine(EngineSpec("it", (*urls[1:], EndpointSpec("http://e9:80"))), known)
    assert fewer.endpoints[:2] == before.endpoints[1:]
    assert fewer.endpoints[2].url == "http://e9:80"
    for changed in (
        EngineSpec("it", urls, breaker=BreakerSpec(failures=1)),
        EngineSpec("it", urls, tls=TlsSpec(verify=False)),
    ):
        other = Engine(changed, known)
        assert not set(other.endpoints) & set(before.endpoints)


def test_idle_connections_can_be_closed() -> None:
    """Closing idle connections leaves none open."""

    async def scene() -> None:
        async with engine() as serving:
            it = Engine(EngineSpec("it", (EndpointSpec(f"http://127.0.0.1:{serving.port}"),)))
            await Caller().ask(it.endpoints[0].pool).over()
            it.close_idle_connections()
            await until(lambda: serving.num_open == 0)

    run(scene())


def test_tls_to_engines(tmp_path: Path) -> None:
    """Plain endpoints use no TLS; others are verified unless the rules disable it; a missing file raises OSError."""
    assert endpoint_tls(TlsSpec(), "http://a") is None
    strict = endpoint_tls(TlsSpec(), "https://a")
    assert strict is not None
    assert (strict.verify_mode, strict.check_hostname) == (ssl.CERT_REQUIRED, True)
    lax = endpoint_tls(TlsSpec(verify=False), "https://a")
    assert lax is not None
    assert (lax.verify_mode, lax.check_hostname) == (ssl.CERT_NONE, False)
    (tmp_path / "empty.pem").write_bytes(b"")
    for missing in (TlsSpec(ca="/nowhere.pem"), TlsSpec(cert=str(tmp_path / "empty.pem"))):
        with pytest.raises(OSError):
            endpoint_tls(missing, "https://a")


@pytest.mark.parametrize("balance", [Balance.POWER_OF_TWO, Balance.LEAST_OUTSTANDING, Balance.PREFIX])
def test_an_adapter_goes_where_it_is_loaded(balance: Balance) -> None:
    """A server with a request of a LoRA adapter gets the next one, unless it is much busier than others; models that
    none reports go anywhere. A reload keeps what is known."""
    it = made(balance=balance, load=LoadSpec(source="metrics"))
    assert (it.knows_adapters, it.is_plain) == (False, balance is not Balance.PREFIX)
    it.observe_load(it.endpoints[1], Load(1, 0, adapters=frozenset({"sql"})))
    for each in (it, Engine(it.spec, {endpoint.url: endpoint for endpoint in it.endpoints})):
        assert (each.knows_adapters, each.is_plain) == (True, False)
        each.endpoints[1].in_flight = 0
        chosen = {each.choose(None, 0.0, model=("sql", ""), prompt=b"x" * number) for number in range(20)}
        assert chosen == {each.endpoints[1]}
        assert each.choose(None, 0.0, [each.endpoints[1]], model=("sql", "")) is not each.endpoints[1]
        others = {each.choose(None, 0.0, model=("llama", ""), prompt=b"%d" % number * 300) for number in range(50)}
        assert len(others) >= 2
        each.endpoints[1].in_flight = 20
        assert each.choose(None, 0.0, model=("sql", "")) is not each.endpoints[1]


def test_a_session_stays_though_its_adapter_is_elsewhere() -> None:
    """With `balance: session` an adapter moves nobody."""
    it = made(balance=Balance.SESSION, load=LoadSpec(source="metrics"))
    homes = [it.choose(f"s{number}", 0.0, model=("sql", "")) for number in range(20)]
    it.observe_load(it.endpoints[1], Load(1, 0, adapters=frozenset({"sql"})))
    assert [it.choose(f"s{number}", 0.0, model=("sql", "")) for number in range(20)] == homes
    assert {it.choose(None, 0.0, model=("sql", "")) for _ in range(20)} == {it.endpoints[1]}
