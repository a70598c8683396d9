"""Experiments in the admin API."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from gateway.admin.app import make_app
from gateway.experiments.controller import ExperimentController
from gateway.experiments.coordination import LocalCoordination
from gateway.redis.command import StoreError
from tests.admin.test_app import ACCESS, BASE, State
from tests.experiments.making import Engine, Workforce, experiment, rules

RULES = rules(experiment(), experiment("plain", ramp=None), replace(experiment("by-user"), unit="header:x-user"))


class Stage(State):
    """Experiments without a running tick, changed only by these calls."""

    def __init__(self) -> None:
        super().__init__()
        self.rules = RULES
        self.workforce = Workforce(1, {"old": Engine(), "new": Engine()})
        self.home = LocalCoordination(None)
        self.experiments = ExperimentController(self.home, self.workforce.hands)

    async def serve(self) -> None:
        await self.experiments.open(self.rules)
        self.workforce.serve(self.rules.experiments["x"], 200)
        await self.experiments.beat()


@pytest.fixture
def stage() -> Stage:
    made = Stage()
    asyncio.run(made.serve())
    return made


@pytest.fixture
def client(stage: Stage) -> TestClient:
    app: FastAPI = make_app(stage, ACCESS)
    return TestClient(app, BASE)


def post(client: TestClient, path: str, **wish: Any) -> Any:
    answer = client.post(f"/experiments/{path}", json=wish or None)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_life_by_the_api(client: TestClient, stage: Stage) -> None:
    """Each call returns the new state of the run; the record has author and reason of each, newest first."""
    assert post(client, "x/start", reason="it is cheaper", step=2)["ramp"]["step"] == 2
    assert stage.workforce.weights == {"x": {"old": 0.75, "new": 0.25}}
    assert post(client, "x/hold")["status"] == "held"
    assert post(client, "x/ramp")["status"] == "running"
    assert post(client, "x/ramp", step=1)["ramp"]["step"] == 1
    assert post(client, "x/promote", arm="new")["status"] == "finished"
    assert post(client, "x/rollback", reason="no")["status"] == "rolled_back"
    reply = post(client, "x/stop")
    assert (reply["status"], reply["next"], reply["is_away"]) == ("stopped", "", False)
    assert [arm["share"] for arm in reply["arms"]] == [0.9, 0.1]
    decided = client.get("/decisions?limit=7").json()["decisions"]
    actions = ["stopped", "rolled_back", "promoted", "stepped", "resumed", "held", "started"]
    assert [each["action"] for each in decided] == actions
    first = decided[-1]
    assert (first["experiment"], first["by"], first["reason"]) == ("x", "local", "it is cheaper")
    assert first["shares"] == {"old": 0.75, "new": 0.25} and first["numbers"]["requests"].keys() <= {"old", "new"}


def test_what_is_told_of_one(client: TestClient) -> None:
    """The detail has arms, comparisons with the control, guardrails, sample ratio, ramp, decisions, and points for
    charts."""
    post(client, "x/start")
    reply = client.get("/experiments/x").json()
    assert {"metric", "goal", "alpha", "unit", "layer", "share", "control", "since", "by", "reason"} <= reply.keys()
    assert reply["ramp"] == {
        "arm": "new",
        "steps": [0.05, 0.25, 1.0],
        "step": 1,
        "requests": 0,
        "min_requests": 100,
        "min_time": 10.0,
        "require": "unbreached",
        "fuse": {"error_rate": 0.5, "min_requests": 20, "window": 10.0},
    }
    assert [each["action"] for each in reply["decisions"]] == ["started"]
    assert client.get("/experiments/x/history?since=1e12").json() == {"series": []}
    (plain,) = [each for each in client.get("/experiments").json()["experiments"] if each["name"] == "plain"]
    assert plain["ramp"] is None and plain["bandit"] is None


NO_RAMP = "its rules have no 'ramp': its weights are changed in the rules"
NO_REDIS = "this gateway has no Redis (--redis), so it keeps no sessions"
REFUSED = [
    ("GET", "nobody", None, 404, "there is no experiment 'nobody'; there are x, plain, by-user"),
    ("GET", "nobody/history", None, 404, "there is no experiment 'nobody'; there are x, plain, by-user"),
    ("POST", "nobody/start", {}, 404, "there is no experiment 'nobody'; there are x, plain, by-user"),
    ("POST", "x/hold", {}, 409, "experiment 'x': it is idle: only one that is running can be held"),
    ("POST", "x/start", {"step": 9}, 409, "experiment 'x': there is no step 9: the ramp has 1 to 3"),
    (
        "POST",
        "plain/start",
        {},
        409,
        "experiment 'plain': its rules have no 'ramp': its weights are changed in the rules",
    ),
    ("POST", "x/promote", {"arm": "nwe"}, 409, "experiment 'x': there is no arm 'nwe': it has old, new"),
    ("POST", "x/force", {"unit": "s", "arm": "nwe"}, 404, "experiment 'x' has no arm 'nwe'; it has old, new"),
    (
        "POST",
        "x/force",
        {"unit": "s", "arm": "new"},
        503,
        "this gateway has no Redis (--redis), so it keeps no sessions",
    ),
    (
        "POST",
        "by-user/force",
        {"unit": "s", "arm": "new"},
        409,
        "experiment 'by-user' has unit 'header:x-user': only sessions keep an arm of their own",
    ),
]


@pytest.mark.parametrize("method, path, wish, status, why", REFUSED)
def test_what_cannot_be_is_refused_in_a_sentence(
    client: TestClient, method: str, path: str, wish: Any, status: int, why: str
) -> None:
    answer = client.request(method, f"/experiments/{path}", json=wish)
    assert (answer.status_code, answer.json()["detail"]) == (status, why)


def test_a_roll_back_does_not_wait_for_redis(client: TestClient, stage: Stage) -> None:
    """A rollback takes effect locally at once; other commands are refused until Redis is reachable."""
    post(client, "x/start")

    async def away(*_: object, **__: object) -> Any:
        raise StoreError("Redis at r:1 is away")

    stage.home.beat = away  # type: ignore[method-assign]
    assert client.post("/experiments/x/hold").status_code == 503
    reply = client.post("/experiments/x/rollback", json={"reason": "it hurts"})
    assert reply.status_code == 200 and reply.json()["status"] == "rolled_back"
    assert stage.workforce.weights == {"x": {"old": 1.0, "new": 0.0}}
