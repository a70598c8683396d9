"""`pointsman explain`."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from gateway.cli.explain import explain, parse_operation
from gateway.protocol.conversion.control import rest_request
from gateway.protocol.operations import read_path
from gateway.protocol.protobuf import message

RULES = """\
version: 1
engines:
  cpu: {endpoints: "http://cpu:8000"}
  gpu: {endpoints: ["http://gpu1:8000", "http://gpu2:8000"], balance: session}
routes:
  - {name: images, match: {input: {datatype: FP32, rank: 4}}, engine: gpu}
  - {name: gold, match: {model: "chat*", header: {x-tier: gold}, parameter: {priority: 1}}, engine: gpu, model: big}
  - {name: split, match: {model: split}, experiment: canary}
  - {name: acme, match: {tenant: acme, version: 2, operation: load, protocol: grpc}, engine: cpu}
experiments:
  canary:
    arms: [{name: control, engine: cpu, weight: 90}, {name: candidate, engine: gpu, weight: 10}]
"""

FALLBACKS = """\
version: 1
engines:
  a: {endpoints: "http://a:8000"}
  b: {endpoints: "http://b:8000"}
routes:
  - {name: all, engine: a, fallback: [b, {engine: a, model: wide, on: context_length}]}
"""

CASES = [
    (
        ["--model", "chat", "--header", "X-Tier: gold", "--parameter", "priority=1", "--session", "s1"],
        0,
        [
            "✗ images  input is missing, wanted datatype FP32, rank 4",
            "✓ gold    model chat matches chat*; header x-tier is gold; parameter priority is 1",
            "· split   not asked: a route before it matches",
            "· acme    not asked: a route before it matches",
            "",
            "model chat goes by route gold to engine gpu as big "
            "(session over http://gpu1:8000, http://gpu2:8000, session s1)",
        ],
    ),
    (
        ["--model", "m", "--input", "serving:0:FP32:1,3,2,2"],
        0,
        [
            "✓ images  input serving:0 FP32[1, 3, 2, 2] of 48 bytes matches datatype FP32, rank 4",
            "· gold    not asked: a route before it matches",
            "· split   not asked: a route before it matches",
            "· acme    not asked: a route before it matches",
            "",
            "model m goes by route images to engine gpu (session over http://gpu1:8000, http://gpu2:8000)",
        ],
    ),
    (
        ["--model", "split", "--session", "user-1"],
        0,
        [
            "✗ images  input is missing, wanted datatype FP32, rank 4",
            "✗ gold    model is split, wanted chat*; header x-tier is missing, wanted gold; "
            "parameter priority is missing, wanted 1",
            "✓ split   model is split",
            "· acme    not asked: a route before it matches",
            "",
            "experiment canary: arm control has session user-1, at 0.486394",
            "  ✓ control    90.0%: 0.100000 to 1.000000",
            "  ✗ candidate  10.0%: 0.000000 to 0.100000",
            "",
            "model split goes by route split, arm control to engine cpu (power_of_two over http://cpu:8000, "
            "session user-1)",
        ],
    ),
    (
        ["--model", "m", "--tenant", "acme", "--version", "2", "--operation", "load", "--protocol", "grpc"],
        0,
        [
            "✗ images  input is missing, wanted datatype FP32, rank 4",
            "✗ gold    model is m, wanted chat*; header x-tier is missing, wanted gold; "
            "parameter priority is missing, wanted 1",
            "✗ split   model is m, wanted split",
            "✓ acme    version is 2; protocol is grpc; operation is load; tenant is acme",
            "",
            "load of model m goes to every endpoint that its requests may reach:",
            "  engine gpu (http://gpu1:8000, http://gpu2:8000)",
            "  engine cpu (http://cpu:8000)",
        ],
    ),
    (
        ["--model", "m"],
        1,
        [
            "✗ images  input is missing, wanted datatype FP32, rank 4",
            "✗ gold    model is m, wanted chat*; header x-tier is missing, wanted gold; "
            "parameter priority is missing, wanted 1",
            "✗ split   model is m, wanted split",
            "✗ acme    version is missing, wanted 2; protocol is rest, wanted grpc; "
            "operation is infer, wanted load; tenant is missing, wanted acme",
            "",
            "no route takes model m: the caller is answered 404, no_route",
        ],
    ),
]


# The last lines for engines that speak gRPC too, gRPC alone, or no gRPC.
GRPC_RULES = """\
version: 1
engines:
  both: {endpoints: [{url: "http://b1:8000", grpc: "b1:8001"}, {url: "http://b2:8000", grpc: "b2:8001"}]}
  safe: {endpoints: [{url: "https://s:8000", grpc: "s:8001"}]}
  bare: {endpoints: "grpc://g:8001"}
  rest: {endpoints: "http://r:8000"}
routes:
  - {name: tokens, match: {model: both, protocol: grpc, operation: stream, header: {x-tier: gold}}, engine: bare}
  - {name: both, match: {model: both}, experiment: half}
  - {name: safe, match: {model: safe}, engine: safe}
  - {name: bare, match: {model: bare}, engine: bare, model: b}
  - {name: rest, match: {model: rest}, engine: rest}
experiments:
  half: {arms: [{name: a, engine: both, weight: 1}, {name: b, engine: rest, model: r, weight: 0}]}
"""

BOTH = "model both goes by route both, arm a to engine both (power_of_two over "
EVERYWHERE = "model both goes to every endpoint that its requests may reach:"
PLACES = ["  engine both (http://b1:8000, http://b2:8000)", "  engine rest as r (http://r:8000)"]

GRPC_CASES = [
    (["--model", "both"], 0, [BOTH + "http://b1:8000, http://b2:8000)"]),
    (["--model", "both", "--rpc", "ModelInfer"], 0, [BOTH + "grpc://b1:8001, grpc://b2:8001)"]),
    (
        ["--model", "both", "--rpc", "ModelStreamInfer", "--header", "x-tier:gold"],
        0,
        ["model both goes by route tokens to engine bare (power_of_two over grpc://g:8001)"],
    ),
    (["--model", "both", "--rpc", "RepositoryModelLoad"], 0, [f"load of {EVERYWHERE}", *PLACES]),
    (["--model", "both", "--rpc", "TraceSetting"], 0, [f"trace of {EVERYWHERE}", *PLACES]),
    (["--model", "both", "--operation", "stats"], 0, [f"stats of {EVERYWHERE}", *PLACES]),
    (
        ["--model", "safe", "--protocol", "grpc", "--operation", "metadata"],
        0,
        ["model safe goes by route safe to engine safe (power_of_two over grpcs://s:8001)"],
    ),
    (
        ["--model", "bare", "--operation", "generate"],
        0,
        ["model bare goes by route bare to engine bare as b (power_of_two over grpc://g:8001, converted to gRPC)"],
    ),
    (
        ["--model", "rest", "--rpc", "ModelStreamInfer"],
        0,
        ["model rest goes by route rest to engine rest (power_of_two over http://r:8000, converted to REST)"],
    ),
    (
        ["--model", "none", "--rpc", "ModelInfer"],
        1,
        ["no route takes model none: the caller is answered NOT_FOUND, no_route"],
    ),
    (
        ["--model", "none", "--rpc", "ModelStreamInfer"],
        1,
        [
            "no route takes model none: the message is answered by an error_message, "
            "or ends the stream by NOT_FOUND with triton_grpc_error"
        ],
    ),
    (
        ["--model", "none", "--rpc", "RepositoryModelUnload"],
        1,
        ["no route takes model none: the caller is answered NOT_FOUND, no_route"],
    ),
]


LANGUAGE_RULES = """\
version: 1
engines:
  vision: {endpoints: "http://v:8000", protocol: openai, balance: prefix}
  triton: {endpoints: "http://t:8000"}
routes:
  - {name: seeing, match: {has_image: true}, engine: vision}
  - {name: reading, match: {model: text, has_image: false}, engine: triton}
  - {name: rest, engine: vision}
"""

LANGUAGE_CASES = [
    (
        ["--model", "text", "--protocol", "openai", "--operation", "chat", "--has-image"],
        [
            "✓ seeing   has_image is true",
            "· reading  not asked: a route before it matches",
            "· rest     not asked: a route before it matches",
            "",
            "model text goes by route seeing to engine vision (prefix over http://v:8000)",
        ],
    ),
    (
        ["--model", "text", "--protocol", "openai", "--operation", "chat"],
        [
            "✗ seeing   has_image is false, wanted true",
            "✓ reading  model is text; has_image is false",
            "· rest     not asked: a route before it matches",
            "",
            "model text goes by route reading to engine triton (power_of_two over http://t:8000, translated to kserve)",
        ],
    ),
    (
        ["--model", "text", "--operation", "metadata"],
        [
            "✗ seeing   has_image is missing, wanted true",
            "✗ reading  has_image is missing, wanted false",
            "✓ rest     matches every request",
            "",
            "model text goes by route rest to engine vision (prefix over http://v:8000, translated to openai)",
        ],
    ),
]


@pytest.mark.parametrize("options, lines", LANGUAGE_CASES)
def test_language_models_are_explained(options: list[str], lines: list[str], tmp_path: Path, app: typer.Typer) -> None:
    """An image is a fact like any other of the body; a request in another dialect is shown as translated."""
    (tmp_path / "rules.yaml").write_text(LANGUAGE_RULES)
    result = CliRunner().invoke(app, [str(tmp_path / "rules.yaml"), *options], standalone_mode=False)
    assert result.output.splitlines() == lines


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """The rules above as a file, the command's first argument."""
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return [str(path)]


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(explain)
    return app


@pytest.mark.parametrize("options, code, lines", CASES)
def test_explain_says_which_route_and_why_not_the_others(
    options: list[str], code: int, lines: list[str], arguments: list[str], app: typer.Typer
) -> None:
    """Explain prints each route in order, the arms' intervals and the target, as plain text without a terminal."""
    result = CliRunner().invoke(app, arguments + options, standalone_mode=False)
    assert without_notes(result.output) == lines
    assert result.return_value == code


def without_notes(output: str) -> list[str]:
    """What explain prints, but for how models decide on the endpoint."""
    return [line for line in output.splitlines() if not line.startswith(("models: ", "not known here: "))]


@pytest.mark.parametrize("options, code, lines", GRPC_CASES)
def test_grpc_is_explained_as_it_is_served(
    options: list[str], code: int, lines: list[str], tmp_path: Path, app: typer.Typer
) -> None:
    """Explain prints a call's target, the address, and whether the call is converted."""
    (tmp_path / "rules.yaml").write_text(GRPC_RULES)
    options = [str(tmp_path / "rules.yaml"), "--session", "s1", *options]
    result = CliRunner().invoke(app, options, standalone_mode=False)
    output = [line.replace(", session s1)", ")") for line in without_notes(result.output)]
    assert output[-len(lines) :] == lines
    assert result.return_value == code


# Operations that name a model and go to all of its engines: the data plane treats them as the corresponding REST
# requests.
OF_ALL_THAT_HAVE_A_MODEL = [
    ("ModelStatistics", "name"),
    ("RepositoryModelLoad", "model_name"),
    ("RepositoryModelUnload", "model_name"),
    ("TraceSetting", "model_name"),
]


@pytest.mark.parametrize("rpc, field", OF_ALL_THAT_HAVE_A_MODEL)
def test_an_rpc_is_the_operation_that_the_data_plane_takes_it_for(rpc: str, field: str) -> None:
    """Explain maps an RPC to the same operation as the data plane."""
    request = rest_request(rpc, message(f"inference.{rpc}Request")(**{field: "m"}).SerializeToString())
    call = read_path(request.target)
    assert call is not None
    assert parse_operation(None, None, rpc) == ("grpc", call.operation)


def test_an_arm_by_chance_is_told_as_such(arguments: list[str], app: typer.Typer) -> None:
    """Without a session the arm is random, and a line gives the reason."""
    output = CliRunner().invoke(app, [*arguments, "--model", "split"], standalone_mode=False).output
    assert "by chance, the request has no session" in output


def test_refused_rules_are_told_as_check_tells_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rules that the gateway would refuse are not explained; the output is that of `pointsman check`."""
    (tmp_path / "rules.yaml").write_text("version: 2\n")
    assert explain([tmp_path / "rules.yaml"], "m") == 1
    assert "version '2' is not known" in capsys.readouterr().out


WRONG = [
    (["--protocol", "http"], "unknown value 'http'; known: rest, grpc, openai"),
    (["--operation", "infre"], "unknown value 'infre': did you mean 'infer'?"),
    (["--rpc", "ModelInfre"], "unknown value 'ModelInfre': did you mean 'ModelInfer'?"),
    (["--rpc", "ServerLive"], "ServerLive concerns no model: no rule decides on it"),
    (["--rpc", "ModelInfer", "--protocol", "rest"], "it stands for --protocol and --operation: leave them out"),
    (["--header", "x-tier"], "'x-tier' is not NAME:VALUE"),
    (["--parameter", "priority"], "'priority' is not NAME=VALUE"),
    (["--input", "x:1"], "'x:1' is not NAME:DATATYPE:SHAPE[:SIZE]"),
    (["--input", "x:FP32:a"], "'a' is not a whole number"),
]


@pytest.mark.parametrize("options, output", WRONG)
def test_a_wrong_option_says_the_right_form(
    options: list[str], output: str, arguments: list[str], app: typer.Typer
) -> None:
    """A wrong option gets an error with the nearest valid spelling."""
    result = CliRunner().invoke(app, [*arguments, "--model", "m", *options], standalone_mode=False)
    assert isinstance(result.exception, typer.BadParameter)
    assert output in result.exception.message


def test_the_limits_that_a_request_meets_are_told(tmp_path: Path, app: typer.Typer) -> None:
    """Explain lists the limits of all routes and of the chosen route; a metadata request has none."""
    limits = """\
limits:
  - {name: all, per: tenant, requests_per_second: 100}
  - {name: big, routes: [gold, images], per: [route, key], tokens_per_minute: 9000, concurrency: 8}
"""
    (tmp_path / "rules.yaml").write_text(RULES + limits)
    requests = [str(tmp_path / "rules.yaml"), "--model", "chat"]
    gold = [*requests, "--header", "X-Tier: gold", "--parameter", "priority=1"]
    assert CliRunner().invoke(app, gold).output.splitlines()[-2:] == [
        "limit all: 100 requests per second for each tenant",
        "limit big: 9000 tokens per minute, 8 requests at the same time for each route and key",
    ]
    assert "limit" not in CliRunner().invoke(app, [*requests, "--rpc", "ModelReady"]).output


LAYERED = """\
version: 1
engines: {cpu: {endpoints: "http://cpu:8000"}, gpu: {endpoints: "http://gpu:8000"}}
routes: [{name: all, experiment: x}]
layers: {users: {unit: "header:x-user", holdout: 25%}}
experiments:
  x:
    unit: header:x-user
    layer: users
    share: 50%
    arms: [{name: old, engine: cpu, weight: 75}, {name: new, engine: gpu, weight: 25}]
"""
IN_LAYER = [
    "- holdout  25.0%: 0.000000 to 0.250000",
    "- x  50.0%: 0.500000 to 1.000000",
]


def test_explain_shows_layers_and_holdouts(tmp_path: Path, app: typer.Typer) -> None:
    """Explain prints the unit's place in its layer, the layer's parts, and the place among the arms if the unit is in
    the experiment."""
    (tmp_path / "rules.yaml").write_text(LAYERED)
    output = {}
    for user in ("u0", "u1", "u2", "u3", "u4", "u5"):
        options = [str(tmp_path / "rules.yaml"), "--model", "m", "--header", f"x-user: {user}"]
        lines = CliRunner().invoke(app, options, standalone_mode=False).output.splitlines()
        place = float(lines[2].split(" stands at ")[1].split(" ")[0])
        assert lines[2].endswith(" in layer users of experiment x")
        assert [line.strip() for line in lines[4:6]] == IN_LAYER
        is_in = place >= 0.5
        begin = "experiment x: arm " if is_in else f"experiment x: header:x-user {user} is not its own"
        assert lines[3].startswith(begin)
        assert (len(lines) > 8) is is_in
        output[user] = is_in
    assert set(output.values()) == {True, False}


def test_fallbacks_are_shown(app: typer.Typer, tmp_path: Path) -> None:
    """Below the engine stand those that answer where it cannot, each with its reasons."""
    path = tmp_path / "rules.yaml"
    path.write_text(FALLBACKS)
    result = CliRunner().invoke(app, [str(path), "--model", "m"], standalone_mode=False)
    assert result.output.splitlines()[-2:] == [
        "where that engine cannot answer: b (down, overloaded, deadline, 5xx, 429), then a as wide (context_length)",
        "not known here: which endpoints are up, drained or busy; whether a fallback answers (a running gateway's page "
        "shows it)",
    ]


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (
            ["--model", "chat", "--tenant", "acme"],
            [
                "levels: dns:localhost:8500 (zone a); then http://127.0.0.1:8501 (zone b); then http://127.0.0.1:8502 "
                "(a part goes to the next level where less than 70% of a level is healthy; the gateway's zone is a)",
                "overload: as many requests at a time as the endpoints can do; of others, up to 1000 requests wait up "
                "to 1 s in each worker",
                "class: interactive, of interactive, batch; the body may ask for a lower one",
                "not known here: which endpoints are up, drained or busy; which endpoints its sources have; which of "
                "them list chat, and get it; whether a fallback answers (a running gateway's page shows it)",
            ],
        ),
        (
            ["--model", "chat", "--tenant", "acme", "--header", "x-request-class: batch"],
            ["class: batch, of interactive, batch; the body may ask for a lower one"],
        ),
        (["--model", "chat"], ["class: batch, of interactive, batch; the body may ask for a lower one"]),
        (
            ["--model", "other"],
            [
                "waits: up to 60 s while no endpoint is up",
                "not known here: which endpoints are up, drained or busy (a running gateway's page shows it)",
            ],
        ),
    ],
)
def test_what_decides_on_the_endpoint_is_shown(options: list[str], lines: list[str], app: typer.Typer) -> None:
    """Levels, overload, the caller's class and waiting are shown as the rules have them, and what only a running
    gateway knows is named."""
    rules = Path("routing_rules/availability.yaml")
    output = CliRunner().invoke(app, [str(rules), "--protocol", "openai", *options], standalone_mode=False).output
    assert [line for line in output.splitlines() if line in lines] == lines


def test_unknown_models_are_shown(app: typer.Typer, tmp_path: Path) -> None:
    """Where endpoints list their models and others are refused, explain says so, by the name at the engine."""
    path = tmp_path / "rules.yaml"
    engine = "{endpoints: ['http://a:1'], models: {unknown: refuse}}"
    path.write_text(f"version: 1\nengines: {{it: {engine}}}\nroutes: [{{name: all, engine: it, model: wide}}]\n")
    output = CliRunner().invoke(app, [str(path), "--model", "m"], standalone_mode=False).output
    assert "404 where all endpoints list their models, and none lists wide (models.unknown: refuse)" in output


def test_hedging_is_shown(app: typer.Typer, tmp_path: Path) -> None:
    """Of inferences alone."""
    path = tmp_path / "rules.yaml"
    a = 'a: {endpoints: ["http://a:8000", "http://c:8000"], retry: {idempotent: infer}, hedging: {}}'
    path.write_text(FALLBACKS.replace('a: {endpoints: "http://a:8000"}', a))
    result = CliRunner().invoke(app, [str(path), "--model", "m"], standalone_mode=False)
    line = "hedging: a second endpoint gets a slow inference after p95, at most 0.05 of requests"
    assert line in result.output.splitlines()
    result = CliRunner().invoke(app, [str(path), "--model", "m", "--operation", "metadata"], standalone_mode=False)
    assert "hedging" not in result.output


def test_sources_are_named(app: typer.Typer, tmp_path: Path) -> None:
    """Sources of endpoints are named beside the endpoints that the rules list."""
    path = tmp_path / "rules.yaml"
    endpoints = '["http://a:1", {kubernetes: {service: b, namespace: c}}]'
    path.write_text(f"version: 1\nengines: {{it: {{endpoints: {endpoints}}}}}\nroutes: [{{name: all, engine: it}}]\n")
    output = CliRunner().invoke(app, [str(path), "--model", "m"], standalone_mode=False).output
    assert "http://a:1, kubernetes:c/b" in " ".join(output.split())


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ("{}", "the endpoints that list wide at /v2/repository/index get it; where none does, any of them"),
        ("{protocol: openai}", "the endpoints that list wide at /v1/models get it"),
        (
            "{protocol: torchserve, models: {path: ':8081/models'}}",
            "the endpoints that list wide at :8081/models get it",
        ),
        ("{protocol: tfserving}", "no lists are read; an endpoint that refuses wide is left for another one, for 5 s"),
        ("{models: {source: none, remember: 0s}}", None),
    ],
)
def test_how_models_decide_is_shown(engine: str, says: str | None, app: typer.Typer, tmp_path: Path) -> None:
    """Where an engine has several endpoints, explain says how the model decides which of them get the request."""
    path = tmp_path / "rules.yaml"
    own = engine[1:-1]
    path.write_text(
        f"version: 1\nengines: {{it: {{endpoints: ['http://a:1', 'http://b:1']{', ' if own else ''}{own}}}}}\n"
        "routes: [{name: all, engine: it, model: wide}]\n"
    )
    output = CliRunner().invoke(app, [str(path), "--model", "m"], standalone_mode=False).output
    assert ("models: " in output) is (says is not None)
    assert says is None or f"models: {says}" in output
