"""The admin API's replies, from a control state made by hand."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from fastapi.testclient import TestClient

from gateway.admin.access import Access
from gateway.admin.app import make_app
from gateway.admin.local_key import LocalKey
from gateway.config.engine_specs import EndpointSpec, EngineSpec
from gateway.config.experiment_specs import ArmSpec, ExperimentSpec
from gateway.config.limit_specs import LimitSpec
from gateway.config.specs import HistorySpec, InputMatch, MatchSpec, RouteSpec, RulesSpec, SessionSpec
from gateway.experiments.controller import ExperimentController
from gateway.experiments.coordination import LocalCoordination
from gateway.observability.exposition_state import ExpositionState
from gateway.observability.metrics import Metrics, SeriesKey
from gateway.observability.stats import AccountSnapshot, LimitSnapshot, LiveRequest, SessionUse
from gateway.protocol.advertised_models import AdvertisedModels
from gateway.protocol.engine_load import Load, Readiness
from gateway.rule_versions.version import Version
from gateway.supervision.decision_feed import DecisionFeed
from gateway.supervision.drains import DrainedSince
from gateway.supervision.replicas import Replica
from gateway.supervision.viewer_digests import ViewerDigests
from tests.experiments.making import Workforce

RULES = RulesSpec(
    engines={
        "cuda": EngineSpec("cuda", (EndpointSpec("http://a:1"), EndpointSpec("http://b:1")), api_key="secret-key"),
        "mac": EngineSpec("mac", (EndpointSpec("http://c:1"),), headers={"x-token": "secret-token"}),
    },
    routes=(
        RouteSpec("images", MatchSpec(input=(InputMatch(datatype=("FP32",), rank=4),)), engine="mac"),
        RouteSpec("texts", MatchSpec(has_image=False), engine="mac", resume=True, session=SessionSpec(HistorySpec())),
        RouteSpec("split", MatchSpec(model=("llama-*",)), experiment="move"),
    ),
    experiments={"move": ExperimentSpec("move", (ArmSpec("old", "cuda", 90), ArmSpec("new", "mac", 10, "l")))},
    digest="d1",
    limits=(
        LimitSpec("keys", per=("key",), requests_per_second=10, concurrency=4),
        LimitSpec("tokens", routes=("texts",), tokens_per_minute=100),
    ),
)


def experiments_of(rules: RulesSpec) -> ExperimentController:
    """A controller of these experiments before its first tick."""
    made = ExperimentController(LocalCoordination(None), Workforce(1, {}).hands)
    made.use_rules(rules)
    return made


PLAIN = "sha256:" + "ab" * 16  # as workers name a credential


class State:
    """A control state: one request counted at each of two endpoints; there is no Redis."""

    store = None
    exemplars = None
    rules = RULES
    number = 3
    in_force = Version(3, 17.5, "me", "", "files", "d1", "d1", ("rules.yaml",))
    is_shared = True
    files: Sequence[str] = ["rules.yaml"]
    problems: Sequence[str] = ["rules.yaml:1:1: warning: w"]
    models: Mapping[tuple[str, str], AdvertisedModels] = {}
    known: Sequence[Replica] = [Replica("here:1", "d1", 3), Replica("there:2", "d0", 7)]

    @property
    def rule_manager(self) -> "State":
        return self

    book = replicas = workers = rule_manager

    def __init__(self) -> None:
        self.watched: list[float] = []
        self.decisions = DecisionFeed(lambda watch: self.watched.append(watch.rate), workers=1)
        self.drained = {
            ("cuda", "http://b:1"): DrainedSince(17.5, "me"),
            ("old", "http://gone:1"): DrainedSince(1.0, "me"),
        }
        self.experiments = experiments_of(RULES)
        self.wishes: list[tuple[str, str, bool, str]] = []

    async def drain(self, key: tuple[str, str], is_draining: bool, by: str) -> bool:
        self.wishes.append((*key, is_draining, by))
        return True

    log_level = "info"
    digests = ViewerDigests(lambda: b"of the tests")
    under_way: Sequence[LiveRequest] = ()

    async def requests(self, limit: int) -> Sequence[LiveRequest]:
        return self.under_way[:limit]

    async def cancel_request(self, id: str) -> int:
        return sum(request.id == id for request in self.under_way)

    def set_log_level(self, level: str) -> None:
        self.log_level = level

    async def metrics_of_engines(self) -> bytes:
        return b"# TYPE nv_inference_count counter\nnv_inference_count 1\n"

    async def exposition(self) -> ExpositionState:
        metrics = Metrics()
        one = metrics.series(SeriesKey("split", "old", "cuda", "http://a:1"))
        one.count(200, 0.2, 0.1, 0.15)
        one.in_flight = 2
        other = metrics.series(SeriesKey("split", "new", "mac", "http://c:1"))
        other.count_failure(503, 0.001)
        other.count_error("overloaded")
        return ExpositionState(
            series=metrics.by_key,
            connections=7,
            health={("cuda", "http://a:1"): Readiness.READY, ("mac", "http://c:1"): Readiness.DOWN},
            breakers_open={("mac", "http://c:1"): True},
            rules_number=3,
            reloads_ok=1,
            reloads_refused=2,
            workers=4,
            worker_restarts=5,
            version="9",
            models={("cuda", "http://a:1"): AdvertisedModels(frozenset({"llama", "llama-lora"}))},
            loads={("cuda", "http://a:1"): Load(3, 1, 0.5)},
            sessions=SessionUse(
                moved={("cuda", "http://b:1", "drained"): 3, ("cuda", "http://b:1", "unavailable"): 1},
                sequences_lost={("cuda", "http://b:1"): 2},
            ),
            limits={"keys": LimitSnapshot("keys", 5, 2, 1, 1, 3, {f"key {PLAIN}": AccountSnapshot(3, 1.0)}, True)},
        )


# The gateway's own key, and an address that has it; the API accepts only host names of this machine then.
KEY = "pm-01234567-0123456789012345678901234567890123456789012"
ACCESS = Access(LocalKey(KEY))
BASE = f"http://test:{KEY}@localhost:8002"

client = TestClient(make_app(State(), ACCESS), BASE)


def test_engines_tell_health_and_load() -> None:
    """/engines lists every endpoint with its health, breaker, load and counts; an endpoint without a probe is
    unknown."""
    cuda, mac = client.get("/engines").json()["engines"]
    assert (cuda["name"], cuda["protocol"], cuda["balance"]) == ("cuda", "kserve", "power_of_two")
    assert cuda["endpoints"][0] == {
        "url": "http://a:1",
        "grpc": None,
        "weight": 1.0,
        "zone": None,
        "priority": 0,
        "condition": "ready",
        "draining": None,
        "breaker_open": False,
        "in_flight": 2,
        "requests": 1,
        "errors": 0,
        "sessions_moved": 0,
        "sequences_lost": 0,
        "models": ["llama", "llama-lora"],
        "lists_models": True,
        "load": {"running": 3, "waiting": 1, "kv_use": 0.5},
    }
    assert cuda["endpoints"][1]["condition"] == "unknown"
    assert cuda["endpoints"][1]["draining"] == {"since": 17.5, "by": "me"}
    assert (cuda["endpoints"][1]["sessions_moved"], cuda["endpoints"][1]["sequences_lost"]) == (4, 2)
    assert mac["endpoints"][0]["breaker_open"] is True
    assert mac["endpoints"][0]["errors"] == 1
    assert (mac["endpoints"][0]["models"], mac["endpoints"][0]["load"]) == ([], None)


def test_no_answer_tells_a_secret() -> None:
    """No reply contains an API key or the value of an engine's own header."""
    for path in ("/engines", "/experiments", "/limits", "/rules", "/metrics"):
        assert "secret" not in client.get(path).text


def test_experiments_tell_shares_and_traffic() -> None:
    """/experiments reports each arm's share of the weights, and its requests and errors."""
    (move,) = client.get("/experiments").json()["experiments"]
    old, new = move["arms"]
    assert (move["name"], move["unit"]) == ("move", "session")
    assert (old["share"], old["requests"], old["errors"]) == (0.9, 1, 0)
    assert (new["share"], new["requests"], new["errors"], new["model"]) == (0.1, 1, 1, "l")


def test_rules_tell_what_is_in_force() -> None:
    """/rules reports number, digest, files, problems, and the routes in order with their conditions."""
    reply = client.get("/rules").json()
    assert (reply["number"], reply["digest"], reply["files"]) == (3, "d1", ["rules.yaml"])
    assert reply["problems"] == ["rules.yaml:1:1: warning: w"]
    assert reply["replicas"][1] == {"name": "there:2", "digest": "d0", "number": 7}
    assert [route["name"] for route in reply["routes"]] == ["images", "texts", "split"]
    assert reply["routes"][2]["match"] == {"model": ["llama-*"]}
    assert (reply["routes"][1]["match"], reply["routes"][1]["resume"]) == ({"has_image": False}, True)
    assert reply["routes"][0]["match"]["input"][0]["rank"] == 4
    assert (reply["routes"][0]["history"], reply["routes"][1]["history"]["max_turns"]) == (None, 100)


def test_without_redis_there_are_no_conversations() -> None:
    """Without Redis the endpoints of conversations answer 503 with the reason."""
    for path in ("/conversations", "/conversations/s1", "/conversations/s1/export"):
        reply = client.get(path)
        assert (reply.status_code, "no Redis" in reply.json()["detail"]) == (503, True)


def test_limits_tell_what_was_let_go_and_refused() -> None:
    """/limits reports each limit of the rules, the workers' counts, and some of its accounts."""
    keys, tokens = client.get("/limits").json()["limits"]
    assert keys == {
        "name": "keys",
        "routes": [],
        "per": ["key"],
        "max_wait": 0.0,
        "requests_per_second": 10,
        "concurrency": 4,
        "admitted": 5,
        "refused": 2,
        "waited": 1,
        "in_use": 3,
        "accounts": 1,
        "shared": False,
        "shown": [{"who": f"key {State.digests.in_text(PLAIN)}", "in_use": 3, "requests": 1.0, "tokens": None}],
    }
    assert (tokens["routes"], tokens["tokens_per_minute"], tokens["admitted"]) == (["texts"], 100, 0)
    assert 'pointsman_limit_refused_total{limit="keys"} 2.0' in client.get("/metrics").text


def test_metrics_are_prometheus_text() -> None:
    """/metrics reports counters by route, arm, engine and endpoint, cumulative histograms, and the engines' metrics."""
    text = client.get("/metrics").text
    where = 'arm="old",endpoint="http://a:1",engine="cuda",route="split"'
    lines = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}

    def value(name: str, **labels: str) -> float:
        found = [
            number
            for line, number in lines.items()
            if line.startswith(name) and all(f'{key}="{label}"' in line for key, label in labels.items())
        ]
        assert len(found) == 1, (name, labels, found)
        return found[0]

    assert value("pointsman_requests_total", route="split", arm="old", status="200") == 1, where
    assert value("pointsman_errors_total", arm="new", reason="overloaded") == 1
    assert value("pointsman_request_seconds_bucket", arm="old", le="0.1") == 0
    assert value("pointsman_request_seconds_bucket", arm="old", le="0.25") == 1
    assert value("pointsman_request_seconds_bucket", arm="old", le="+Inf") == 1
    assert value("nv_inference_count") == 1
    assert value("pointsman_request_seconds_sum", arm="old") == 0.2
    assert value("pointsman_endpoint_healthy", engine="mac") == 0
    assert value("pointsman_breaker_open", engine="mac") == 1
    assert value("pointsman_rules_reloads_total", result="refused") == 2
    assert value("pointsman_connections") == 7
    assert value("pointsman_info", version="9") == 1


def drain(path: str, url: str, **headers: str) -> tuple[int, dict[str, Any], list[tuple[str, str, bool, str]]]:
    """Drain an endpoint. Returns status, reply, and the drains that the gateway received."""
    state = State()
    answer = TestClient(make_app(state, ACCESS), BASE).post(path, json={"url": url, "by": "me"}, headers=headers)
    return answer.status_code, answer.json(), state.wishes


def test_an_endpoint_is_drained_and_put_in_use_again() -> None:
    """Drain and undrain pass engine, endpoint and author on, and the reply says whether the change is shared with all
    replicas."""
    status, reply, wishes = drain("/engines/cuda/endpoints/drain", "http://a:1")
    assert (status, wishes) == (200, [("cuda", "http://a:1", True, "me")])
    assert reply == {"engine": "cuda", "url": "http://a:1", "draining": True, "shared": True}
    status, reply, wishes = drain("/engines/cuda/endpoints/undrain", "http://b:1")
    assert (status, wishes) == (200, [("cuda", "http://b:1", False, "me")])


def test_what_the_rules_no_longer_name_can_be_put_in_use_again() -> None:
    """A drained endpoint that has left the rules can still be undrained."""
    assert drain("/engines/old/endpoints/undrain", "http://gone:1")[2] == [("old", "http://gone:1", False, "me")]
    assert drain("/engines/old/endpoints/drain", "http://gone:1")[0] == 404


@pytest.mark.parametrize(
    "path, url, why",
    [
        ("/engines/cpu/endpoints/drain", "http://a:1", "there is no engine 'cpu'; there are cuda, mac"),
        ("/engines/mac/endpoints/drain", "http://a:1", "engine 'mac' has no endpoint http://a:1; it has http://c:1"),
    ],
)
def test_what_is_not_there_is_not_drained(path: str, url: str, why: str) -> None:
    """A wrong name changes nothing, and the error lists the valid ones."""
    assert drain(path, url) == (404, {"detail": why}, [])


@pytest.mark.parametrize("path", ["/sessions/s", "/conversations/s"])
def test_a_web_page_elsewhere_forgets_nothing(path: str) -> None:
    """A web page of another origin cannot delete sessions or conversations; an operator's own page gets past that
    check."""
    assert client.delete(path, headers={"origin": "http://evil.example"}).status_code == 403
    assert client.delete(path, headers={"origin": "http://localhost:8002"}).status_code == 503  # there is no Redis


def test_a_web_page_elsewhere_drains_nothing() -> None:
    """A web page of another origin cannot drain, even in a browser on this machine."""
    path, url = "/engines/mac/endpoints/drain", "http://c:1"
    assert drain(path, url, origin="http://evil.example")[::2] == (403, [])
    assert drain(path, url, origin="http://localhost:8002")[0] == 200
