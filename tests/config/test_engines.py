"""The `engines:` section."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.config.engine_specs import (
    ActivatorSpec,
    Balance,
    BreakerSpec,
    ConnectionSpec,
    EndpointSpec,
    EngineSpec,
    HealthSpec,
    LoadSpec,
    MetricsSpec,
    PrefixSpec,
    RetrySpec,
    TlsSpec,
)
from gateway.protocol.engine_protocols import EngineProtocol
from gateway.yaml.problems import Location
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
    wait_for_endpoint: 90s
    activator:
      {url: "https://k8s/scale?a=b", method: PATCH, headers: {Authorization: "Bearer ${KEY}"}, body: "{}", timeout: 2s,
       interval: 5m, tls: {ca: k8s.pem}}
    api_key: ${KEY}
    headers: {X-Served-For: acme}
    health: {path: /ready, interval: 1s, timeout: 250ms, unhealthy_after: 2, healthy_after: 4}
    breaker: {failures: 3, open_for: 10s, statuses: [500, 502]}
    retry: {attempts: 1, idempotent: infer, budget: 10%, budget_floor: 3}
    connections:
      {max_connections: 8, max_pending: 0, idle_timeout: 20s, connect_timeout: 1s, max_streams: 4, window_bytes: 1MiB,
       max_client_share: 25%, keepalive_interval: 30s, keepalive_timeout: 5s, max_pings_without_data: 0, max_age: 1h}
    tls: {verify: false, ca: ca.pem, cert: me.pem, key: me.key, server_name: triton}
    metrics: {path: ":8002/metrics", names: [nv_*, my_*], timeout: 500ms, max_bytes: 1MiB}
"""


def test_every_key_of_an_engine_is_read(load: Load) -> None:
    """Each key has its unit: durations become seconds, shares fractions of 1, header names lower case."""
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
        wait_for_endpoint=90.0,
        activator=ActivatorSpec(
            "https://k8s/scale?a=b",
            "PATCH",
            {"authorization": "Bearer s3cret"},
            "{}",
            TlsSpec(ca="k8s.pem"),
            timeout=2.0,
            interval=300.0,
        ),
        api_key="s3cret",
        headers={"x-served-for": "acme"},
        health=HealthSpec("/ready", 1.0, 0.25, 2, 4),
        breaker=BreakerSpec(3, 10.0, frozenset({500, 502})),
        retry=RetrySpec(1, "infer", 0.1, 3),
        connections=ConnectionSpec(8, 0, 20.0, 1.0, 4, 1 << 20, 0.25, 30.0, 5.0, 0, 3600.0),
        tls=TlsSpec(False, "ca.pem", "me.pem", "me.key", "triton"),
        metrics=MetricsSpec(":8002/metrics", ("nv_*", "my_*"), 0.5, 1 << 20),
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
    """All other keys have defaults; a single endpoint needs no list."""
    rules = load("version: 1\nengines: {e: {endpoints: 'http://a:8000'}}\n" + ROUTES).rules
    assert rules is not None
    assert rules.engines["e"] == EngineSpec(
        "e", (EndpointSpec("http://a:8000"),), location=Location("rules.yaml", 2, 11)
    )


OPENAI = "protocol: openai, endpoints: 'http://a'"

LANGUAGE_MODELS = """\
version: 1
engines:
  e:
    protocol: openai
    endpoints: "http://gpu1:8000"
    balance: prefix
    base_path: /api/v1
    dialects: [completions, completions, messages]
    unsupported: drop
    chat_template: templates/chat.jinja
    load: {source: metrics, path: ":9000/metrics"}
    prefix: {block_bytes: 128, max_blocks: 64, max_entries: 1000, ttl: 1m, imbalance: 4, imbalance_ratio: 2}
"""


def test_every_key_of_language_models_is_read(load: Load, tmp_path: Path) -> None:
    """The path of a template is relative to the rule file's folder, and the rules store the template's text."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "chat.jinja").write_text("{{ messages }}")
    loaded = load(LANGUAGE_MODELS + ROUTES)
    assert loaded.rules is not None and not loaded.problems
    assert loaded.rules.engines["e"] == EngineSpec(
        name="e",
        endpoints=(EndpointSpec("http://gpu1:8000"),),
        protocol=EngineProtocol.OPENAI,
        balance=Balance.PREFIX,
        base_path="/api/v1",
        dialects=("completions", "messages"),
        unsupported="drop",
        chat_template="{{ messages }}",
        load=LoadSpec("metrics", ":9000/metrics"),
        prefix=PrefixSpec(128, 64, 1000, 60.0, 4, 2.0),
        location=Location("rules.yaml", 3, 3),
    )


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("t.jinja", b"{{ x }}", None),
        ("tokenizer_config.json", b'{"chat_template": "{{ x }}"}', None),
        ("tokenizer_config.json", b'{"bos_token": "<s>"}', "name a tokenizer_config.json, or a Jinja file"),
        ("t.json", b"{{ x }}", "name a tokenizer_config.json, or a Jinja file"),
        ("t.jinja", b"{% for x %}", "cannot be used"),
        ("t.jinja", b"\xff", "it is no text in UTF-8"),
        (".", b"", "Is a directory"),
    ],
)
def test_a_chat_template_is_a_file_with_a_template(
    load: Load, tmp_path: Path, name: str, text: bytes, message: str | None
) -> None:
    """An invalid template is rejected when the rules are loaded, not when a request uses it."""
    if name != ".":
        (tmp_path / name).write_bytes(text)
    loaded = load(f"version: 1\nengines: {{e: {{chat_template: {name}, endpoints: 'http://a'}}}}\n{ROUTES}")
    assert [message in str(problem) for problem in loaded.problems] == ([True] if message else [])


def test_the_tokenizer_beside_a_template_tells_its_special_tokens(load: Load, tmp_path: Path) -> None:
    """A Jinja file is combined with the tokenizer_config.json in its folder."""
    (tmp_path / "t.jinja").write_text("{{ bos_token }}")
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<s>", "chat_template": "another"}')
    loaded = load(f"version: 1\nengines: {{e: {{chat_template: t.jinja, endpoints: 'http://a'}}}}\n{ROUTES}")
    assert loaded.rules is not None
    template = loaded.rules.engines["e"].chat_template
    assert template is not None and json.loads(template) == {"bos_token": "<s>", "chat_template": "{{ bos_token }}"}


@pytest.mark.parametrize("protocol", ["kserve", "tfserving", "torchserve"])
def test_protocols_with_grpc(load: Load, protocol: str) -> None:
    """Engines of this protocol may have a gRPC address in addition to REST, or alone."""
    for endpoints in ("{url: 'http://a', grpc: 'a:1'}", "grpc://a:1"):
        engine = f"{{protocol: {protocol}, endpoints: {endpoints}}}"
        loaded = load(f"version: 1\nengines: {{e: {engine}}}\n{ROUTES}")
        assert loaded.rules is not None and not loaded.problems
        assert loaded.rules.engines["e"].endpoints[0].speaks_grpc


def test_an_envelope(load: Load) -> None:
    """An envelope names one of the four input forms of TorchServe's handlers."""
    engine = "{protocol: torchserve, envelope: kservev2, endpoints: 'http://a'}"
    loaded = load(f"version: 1\nengines: {{e: {engine}}}\n{ROUTES}")
    assert loaded.rules is not None and not loaded.problems
    assert loaded.rules.engines["e"].envelope == "kservev2"


def test_an_api_at_the_root(load: Load) -> None:
    """A base path of `/` is the empty path."""
    rules = load(f"version: 1\nengines: {{e: {{base_path: /, {OPENAI}}}}}\n{ROUTES}").rules
    assert rules is not None and rules.engines["e"].base_path == ""


def test_no_repr_shows_a_key() -> None:
    """An engine's repr does not show its API key."""
    assert "s3cret" not in repr(EngineSpec("e", (EndpointSpec("http://a"),), api_key="s3cret"))


PROBLEMS = [
    ("{}", "2:14: error: an engine needs 'endpoints'"),
    ("", "2:14: error: expected an engine (a map), found nothing"),
    ("[]", "2:14: error: expected an engine (a map), found a list"),
    ("{endpoints: []}", "2:26: error: the list is empty"),
    ("{endpoints: }", "2:26: error: expected one value, found nothing"),
    ("{endpoints: [{grpc: 'a:1'}]}", "2:27: error: an endpoint needs 'url'"),
    ("{endpoints: [{url: 'http://a', weight: -1}]}", "2:53: error: -1 is out of range: 0 to 1000000"),
    ("{endpoints: [{url: 'http://a', weight: much}]}", "2:53: error: 'much' is not a number"),
    (
        "{endpoints: 'http://a', activator: {url: 'ftp://a'}}",
        "2:55: error: the URL must begin with http:// or https://",
    ),
    ("{endpoints: 'http://a', activator: {method: GET}}", "2:49: error: an activator needs 'url'"),
    (
        "{endpoints: 'http://a', activator: {url: 'http://a b/c'}}",
        "2:55: error: the URL's host is not a host with an optional port",
    ),
    (
        "{endpoints: 'http://a', activator: {url: 'http://a/', method: DELETE}}",
        "2:76: error: unknown value 'DELETE'; known: POST, PUT, PATCH, GET",
    ),
    ("{endpoint: 'http://a'}", "2:15: error: unknown key 'endpoint' in an engine: did you mean 'endpoints'?"),
    ("{endpoints: 'a:8000'}", "2:26: error: URL 'a:8000' has no scheme: did you mean 'http://a:8000'?"),
    ("{protocol: kserv, endpoints: 'http://a'}", "2:25: error: unknown protocol 'kserv': did you mean 'kserve'?"),
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
    (
        "{headers: {Content-Length: '7'}, endpoints: 'http://a'}",
        "2:25: error: the field 'content-length' is about the message or its connection: the gateway writes it itself",
    ),
    (
        "{activator: {url: 'http://a', headers: {Host: b}}, endpoints: 'http://a'}",
        "2:54: error: the field 'host' is that of the URL",
    ),
    ("{headers: {a b: c}, endpoints: 'http://a'}", "2:25: error: 'a b' is not a header name"),
    (
        "{strip: [te], endpoints: 'http://a'}",
        "2:23: error: the field 'te' says how to read the request: an engine needs it",
    ),
    (
        "{headers: {Content-Type: null}, endpoints: 'http://a'}",
        "2:25: error: the field 'content-type' says how to read the request: an engine needs it",
    ),
    ("{headers: {a b: null}, endpoints: 'http://a'}", "2:25: error: 'a b' is not a header name"),
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


OF_LANGUAGE_MODELS = [
    (
        "{protocol: openai, endpoints: 'http://a/v1'}",
        "2:44: error: URL 'http://a/v1' has a path: did you mean 'http://a'? "
        "Of an openai engine, write 'base_path: /v1' beside it",
    ),
    (
        "{protocol: openai, endpoints: {url: 'http://a', grpc: 'a:1'}}",
        "2:33: error: engine 'e' speaks openai, which has no gRPC: give its http URL alone",
    ),
    (
        "{protocol: openai, endpoints: 'grpc://a:1'}",
        "2:33: error: engine 'e' speaks openai, which has no gRPC: give its http URL alone",
    ),
    ("{base_path: v1, ~}", "2:26: error: 'v1' is not a path: it begins with '/' and has no spaces"),
    ("{base_path: /v1/, ~}", "2:26: error: '/v1/' ends with '/': did you mean '/v1'?"),
    ("{base_path: '/v1?x', ~}", "2:26: error: '/v1?x' is not a path alone"),
    ("{dialects: [chat, message], ~}", "2:32: error: unknown value 'message': did you mean 'messages'?"),
    ("{dialects: [], ~}", "2:25: error: the list is empty"),
    ("{unsupported: ignore, ~}", "2:28: error: unknown value 'ignore'; known: refuse, drop"),
    (
        "{chat_template: no.jinja, dialects: completions, ~}",
        "2:30: error: chat template 'no.jinja' cannot be read: No such file",
    ),
    ("{envelope: kserve2, protocol: torchserve, endpoints: 'http://a'}", "2:25: error: unknown value 'kserve2'"),
    (
        "{envelope: json, ~}",
        "2:15: warning: 'envelope' of engine 'e' has no effect: it is for protocol torchserve",
    ),
    ("{load: {source: metric}, ~}", "2:30: error: unknown value 'metric': did you mean 'metrics'?"),
    (
        "{load: {source: metrics, path: ':0/metrics'}, ~}",
        "2:45: error: ':0/metrics' is not a path with a port: write :8002/metrics",
    ),
    (
        "{load: {source: metrics, path: metrics}, ~}",
        "2:45: error: 'metrics' is not a path: it begins with '/' and has no spaces",
    ),
    ("{prefix: {block_bytes: 8}, balance: prefix, ~}", "2:37: error: 8 is too small: at least 16"),
    ("{prefix: {imbalance_ratio: 0.5}, balance: prefix, ~}", "2:41: error: 0.5 is too small: at least 1"),
    ("{prefix: {max_entries: 0}, balance: prefix, ~}", "2:37: error: 0 is too small: at least 1"),
    ("{prefix: {events: {}}, balance: prefix, ~}", "2:32: error: prefix.events needs 'tokenizer'"),
    (
        "{prefix: {events: {tokenizer: nowhere}}, balance: prefix, ~}",
        "2:44: error: 'nowhere' has no tokenizer.json: name the folder of the model (",
    ),
    (
        "{balance: prefix, protocol: openai, endpoints: {url: 'http://a', kv_events: 'a:1'}}",
        "2:50: warning: 'endpoints' of engine 'e' has no effect: kv_events are the addresses of prefix.events",
    ),
    (
        "{prefix: {}, ~}",
        "2:15: warning: 'prefix' of engine 'e' has no effect: it is for balance prefix, and this is power_of_two",
    ),
    (
        "{load: {path: /m}, ~}",
        "2:15: warning: 'load' of engine 'e' has no effect: a path is where metrics are, and its source is none",
    ),
    (
        "{load: {source: metrics}, health: {interval: 0}, ~}",
        "2:15: warning: 'load' of engine 'e' has no effect: "
        "metrics are asked for with the probes, and health.interval is 0",
    ),
    ("{models: {unknown: no}, ~}", "2:33: error: unknown value 'no'; known: forward, refuse"),
    (
        "{models: {unknown: refuse}, health: {interval: 0}, ~}",
        "2:15: warning: 'models' of engine 'e' has no effect: "
        "unknown: refuse needs lists of models, and they are read with the probes, and health.interval is 0",
    ),
    (
        "{models: {unknown: refuse, source: none}, ~}",
        "2:15: warning: 'models' of engine 'e' has no effect: unknown: refuse needs lists of models, and models.source "
        "is none",
    ),
    (
        "{load: {source: orca}, balance: round_robin, ~}",
        "2:15: warning: 'load' of engine 'e' has no effect: balance round_robin asks for no load; it is shown only",
    ),
    (
        "{metrics: {names: my_*}, ~}",
        "2:15: warning: 'metrics' of engine 'e' has no effect: "
        "metrics.path says where they are, as :8002/metrics, and is missing",
    ),
    (
        "{metrics: {path: /metrics}, endpoints: 'grpc://a:1'}",
        "2:15: warning: 'metrics' of engine 'e' has no effect: "
        "its endpoints have no REST: metrics.path needs a port, as :8002/metrics",
    ),
    ("{metrics: {path: ':8002'}, ~}", "2:31: error: ':8002' is not a path with a port: write :8002/metrics"),
    (
        "{chat_template: rules.yaml, ~}",
        "2:15: warning: 'chat_template' of engine 'e' has no effect: "
        "its 'dialects' have chat, so the engine applies its own",
    ),
    (
        "{base_path: /v1, endpoints: 'http://a'}",
        "2:15: warning: 'base_path' of engine 'e' has no effect: it is for protocol openai",
    ),
    (
        "{load: {source: metrics}, protocol: tfserving, endpoints: 'http://a'}",
        "2:15: warning: 'load' of engine 'e' has no effect: it is for protocol kserve and mlserver and openai",
    ),
    (
        "{balance: prefix, protocol: torchserve, endpoints: 'http://a'}",
        "2:15: warning: 'balance' of engine 'e' has no effect: "
        "requests to a torchserve engine have no prompt, so this is least_outstanding",
    ),
]


@pytest.mark.parametrize("engine, expected", OF_LANGUAGE_MODELS)
def test_a_wrong_engine_of_language_models(load: Load, engine: str, expected: str) -> None:
    """The keys for language models are checked alike; a key without effect is a warning at that key."""
    loaded = load(f"version: 1\nengines: {{e: {engine.replace('~', OPENAI)}}}\n{ROUTES}")
    (problem,) = loaded.problems
    assert str(problem).startswith(f"rules.yaml:{expected}")
    assert (loaded.rules is None) == ("error" in expected)


@pytest.mark.parametrize("engine, expected", PROBLEMS)
def test_a_wrong_engine_is_told_where_and_what(load: Load, engine: str, expected: str) -> None:
    """Each finding is one sentence, at the wrong value or key."""
    loaded = load(f"version: 1\nengines: {{e: {engine}}}\n{ROUTES}")
    assert [str(problem) for problem in loaded.problems] == [f"rules.yaml:{expected}"]
    assert (loaded.rules is None) == ("error" in expected)


def test_all_that_is_wrong_is_told_at_once(load: Load) -> None:
    """Every mistake is reported, each at its own place."""
    loaded = load("version: 1\nengines:\n  e: {timeout: x, balance: y, endpoints: [z, 'http://a/b']}\n" + ROUTES)
    places = [(problem.location.line, problem.location.column) for problem in loaded.problems]
    assert places == [(3, 16), (3, 28), (3, 43), (3, 46)]
