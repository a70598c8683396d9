"""The `engines:` section."""

from __future__ import annotations

import pytest

from gateway.config.specs import (
    Balance,
    BreakerSpec,
    ConnectionSpec,
    EndpointSpec,
    EngineProtocol,
    EngineSpec,
    HealthSpec,
    RetrySpec,
    TlsSpec,
)
from gateway.yaml.location import Location
from tests.config.conftest import Load

ROUTES = "routes: [{name: all, engine: e}]\n"

WHOLE = """\
version: 1
engines:
  e:
    protocol: kserve
    endpoints:
      - {url: "https://gpu1", grpc: "gpu1:8001"}
      - {url: "https://gpu2:8443", grpc: "gpu2:8001"}
    balance: least_outstanding
    timeout: 2m
    try_timeout: 500ms
    idle_timeout: 0
    api_key: ${KEY}
    headers: {X-Served-For: acme}
    health: {path: /ready, interval: 1s, timeout: 250ms, unhealthy_after: 2, healthy_after: 4}
    breaker: {failures: 3, open_for: 10s, statuses: [500, 502]}
    retry: {attempts: 1, idempotent: infer, budget: 10%, budget_floor: 3}
    connections:
      {max_connections: 8, max_pending: 0, idle_timeout: 20s, connect_timeout: 1s, max_streams: 4, window_bytes: 1MiB}
    tls: {verify: false, ca: ca.pem, cert: me.pem, key: me.key, server_name: triton}
"""


def test_every_key_of_an_engine_is_read(load: Load) -> None:
    """Each key has its unit: durations become seconds, shares a part of 1, header names lower case."""
    rules = load(WHOLE + ROUTES, KEY="s3cret").rules
    assert rules is not None
    assert rules.engines["e"] == EngineSpec(
        name="e",
        endpoints=(EndpointSpec("https://gpu1", "gpu1:8001"), EndpointSpec("https://gpu2:8443", "gpu2:8001")),
        protocol=EngineProtocol.KSERVE,
        balance=Balance.LEAST_OUTSTANDING,
        timeout=120.0,
        try_timeout=0.5,
        idle_timeout=0.0,
        api_key="s3cret",
        headers={"x-served-for": "acme"},
        health=HealthSpec("/ready", 1.0, 0.25, 2, 4),
        breaker=BreakerSpec(3, 10.0, frozenset({500, 502})),
        retry=RetrySpec(1, "infer", 0.1, 3),
        connections=ConnectionSpec(8, 0, 20.0, 1.0, 4, 1 << 20),
        tls=TlsSpec(False, "ca.pem", "me.pem", "me.key", "triton"),
        location=Location("rules.yaml", 3, 3),
    )


def test_a_server_without_rest(load: Load) -> None:
    """A gRPC URL is the address of both the endpoint and its gRPC."""
    rules = load("version: 1\nengines: {e: {endpoints: ['grpc://a:8001', 'grpcs://b:1']}}\n" + ROUTES).rules
    assert rules is not None
    one, other = rules.engines["e"].endpoints
    assert (one, other) == (EndpointSpec("grpc://a:8001", "a:8001"), EndpointSpec("grpcs://b:1", "b:1"))
    assert one.speaks_grpc and not one.speaks_rest


def test_an_engine_needs_endpoints_alone(load: Load) -> None:
    """All else has the default that the spec states; one endpoint needs no list."""
    rules = load("version: 1\nengines: {e: {endpoints: 'http://a:8000'}}\n" + ROUTES).rules
    assert rules is not None
    assert rules.engines["e"] == EngineSpec(
        "e", (EndpointSpec("http://a:8000"),), location=Location("rules.yaml", 2, 11)
    )


def test_no_repr_shows_a_key() -> None:
    """A log that prints an engine does not print its secret."""
    assert "s3cret" not in repr(EngineSpec("e", (EndpointSpec("http://a"),), api_key="s3cret"))


PROBLEMS = [
    ("{}", "2:14: error: an engine needs 'endpoints'"),
    ("", "2:14: error: expected an engine (a map), found nothing"),
    ("[]", "2:14: error: expected an engine (a map), found a list"),
    ("{endpoints: []}", "2:26: error: the list is empty"),
    ("{endpoints: }", "2:26: error: expected one value, found nothing"),
    ("{endpoints: [{grpc: 'a:1'}]}", "2:27: error: an endpoint needs 'url'"),
    ("{endpoint: 'http://a'}", "2:15: error: unknown key 'endpoint' in an engine: did you mean 'endpoints'?"),
    ("{endpoints: 'a:8000'}", "2:26: error: URL 'a:8000' has no scheme: did you mean 'http://a:8000'?"),
    (
        "{protocol: openai, endpoints: 'http://a'}",
        "2:25: error: protocol 'openai' is not available in this version; available: kserve",
    ),
    ("{protocol: kserv, endpoints: 'http://a'}", "2:25: error: unknown protocol 'kserv': did you mean 'kserve'?"),
    (
        "{balance: prefix, endpoints: 'http://a'}",
        "2:24: error: balance 'prefix' is not available in this version; "
        "available: round_robin, least_outstanding, power_of_two, latency, session",
    ),
    (
        "{balance: roundrobin, endpoints: 'http://a'}",
        "2:24: error: unknown balance 'roundrobin': did you mean 'round_robin'?",
    ),
    (
        "{health: {interval: fast}, endpoints: 'http://a'}",
        "2:34: error: 'fast' is not a duration: write 30s, 500ms, 2m, 1h or a number of seconds",
    ),
    ("{health: 2s, endpoints: 'http://a'}", "2:23: error: expected health (a map), found one value"),
    (
        "{health: {intervall: 2s}, endpoints: 'http://a'}",
        "2:24: error: unknown key 'intervall' in health: did you mean 'interval'?",
    ),
    (
        "{breaker: {statuses: [200]}, endpoints: 'http://a'}",
        "2:36: error: 200 is not the status of a failure: 400 to 599",
    ),
    ("{retry: {idempotent: always}, endpoints: 'http://a'}", "2:35: error: unknown value 'always'; known: safe, infer"),
    ("{headers: {a b: c}, endpoints: 'http://a'}", "2:25: error: 'a b' is not a header name"),
    ("{headers: {A: b, a: c}, endpoints: 'http://a'}", "2:31: error: key 'a' is given twice, in different case"),
    (
        "{api_key: \"a\\nb\", endpoints: 'http://a'}",
        "2:24: error: the text has control characters (a line break at its end?)",
    ),
    ("{tls: {key: k.pem}, endpoints: 'https://a'}", "2:11: error: engine 'e' has a tls key without its cert"),
    (
        "{tls: {verify: false}, endpoints: 'http://a'}",
        "2:11: warning: engine 'e' has tls settings, but no endpoint is https or grpcs",
    ),
    (
        "{endpoints: ['http://a', 'http://a/']}",
        "2:11: warning: engine 'e' lists endpoint http://a twice: it is one endpoint",
    ),
]


@pytest.mark.parametrize("engine, expected", PROBLEMS)
def test_a_wrong_engine_is_told_where_and_what(load: Load, engine: str, expected: str) -> None:
    """One sentence for each finding, at the value or key that is wrong."""
    loaded = load(f"version: 1\nengines: {{e: {engine}}}\n{ROUTES}")
    assert [str(problem) for problem in loaded.problems] == [f"rules.yaml:{expected}"]
    assert (loaded.rules is None) == ("error" in expected)


def test_all_that_is_wrong_is_told_at_once(load: Load) -> None:
    """A mistake in one key hides no mistake in another."""
    loaded = load("version: 1\nengines:\n  e: {timeout: x, balance: y, endpoints: [z, 'http://a/b']}\n" + ROUTES)
    places = [(problem.location.line, problem.location.column) for problem in loaded.problems]
    assert places == [(3, 16), (3, 28), (3, 43), (3, 46)]
