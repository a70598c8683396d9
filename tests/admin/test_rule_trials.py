"""Explain in the admin API, and rule versions, from a rulebook without a gateway."""

from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from gateway.admin.access import Access
from gateway.admin.api_keys import Role
from gateway.admin.auth import AuthMiddleware
from gateway.admin.errors import add_errors
from gateway.admin.keyring import Keyring
from gateway.admin.rule_trials import add_rule_trials
from gateway.admin.rule_versions import add_rule_versions
from gateway.admin.rules import routes_json
from gateway.config.rules import load_rules, load_texts
from gateway.config.specs import RulesSpec
from gateway.protocol.advertised_models import AdvertisedModels
from gateway.rule_versions.version import Version
from gateway.supervision.rulebook import Rulebook
from tests.admin.test_app import ACCESS, BASE
from tests.admin.test_auth import bearer, write_keys

RULES = """\
version: 1
engines:
  small: {endpoints: ["http://a:1"], api_key: "${SECRET}"}
  big: {endpoints: ["http://b:1"]}
routes:
  - {name: gold, match: {model: chat, header: {x-tier: gold}}, engine: big, model: llama}
  - {name: images, match: {input: {datatype: FP32, rank: 2}}, engine: big}
  - {name: urgent, match: {parameter: {priority: 1}}, engine: big}
  - {name: split, match: {model: m}, experiment: move}
  - {name: rest, match: {model: chat}, engine: small}
experiments:
  move:
    arms:
      - {name: old, engine: small, weight: 1}
      - {name: new, engine: big, weight: 1}
limits: [{name: crowd, routes: gold, concurrency: 3}]
"""


class State:
    """A control process with rules only."""

    is_shared = False

    def __init__(self, book: Rulebook) -> None:
        self.book = book
        self.models = {
            ("big", "http://b:1"): AdvertisedModels(frozenset({"llama"})),
            ("small", "http://a:1"): AdvertisedModels(frozenset({"other"})),
        }

    @property
    def rules(self) -> RulesSpec:
        return self.book.rules

    @property
    def rule_manager(self) -> "State":
        return self

    async def use(self, change: Awaitable[Version]) -> Version:
        return await change


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setenv("SECRET", "open sesame")
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)
    book = Rulebook([file])
    book.open(load_rules([file]))
    return serving(book, ACCESS)


def serving(book: Rulebook, access: Access) -> TestClient:
    app = FastAPI()
    app.add_middleware(AuthMiddleware, access=access)
    add_rule_versions(app, State(book))
    add_rule_trials(app, State(book))
    add_errors(app)
    return TestClient(app, BASE if access is ACCESS else "http://localhost:8002")


def explain(client: TestClient, status: int = 200, **facts: Any) -> Any:
    answer = client.post("/rules/explain", json=facts)
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.mark.parametrize("name", ["authorization", "x-api-key"])
def test_keys_that_rules_compare_with_are_told_to_nobody(client: TestClient, name: str) -> None:
    """Explain shows a secret that a rule compares with as ***, and the caller's own value as it is."""
    match = f"header: {{{name}: '${{SECRET}}'}}, parameter: {{token: '${{SECRET}}'}}"
    files = {"rules.yaml": RULES.replace("input: {datatype: FP32, rank: 2}", match)}
    reply = explain(client, model="m", files=files, header={name: "guess"})
    checks = reply["steps"][1]["checks"]
    assert [(check["expected"], check["actual"]) for check in checks] == [("***", "guess"), ("***", None)]
    loaded = load_texts({"rules.yaml": files["rules.yaml"]})
    assert loaded.rules is not None
    shown = routes_json(loaded.rules)[1]["match"]
    assert (shown["header"], shown["parameter"]) == ({name: ["***"]}, {"token": ["***"]})


def test_a_request_is_explained_route_by_route(client: TestClient) -> None:
    """Explain shows the chosen route, its target and limits, and why the earlier routes do not match."""
    reply = explain(client, model="chat", header={"X-Tier": "gold"})
    assert reply["decision"] == {
        "route": "gold",
        "engine": "big",
        "model": "llama",
        "experiment": None,
        "arm": None,
        "forced": False,
        "endpoints": ["http://b:1"],
        "lacking": [],
        "fallbacks": [],
        "hedging": None,
        "session": None,
        "limits": ["crowd"],
        "budgets": [],
    }
    assert [step["verdict"] for step in reply["steps"]] == ["matched"] + ["not asked"] * 4
    reply = explain(client, model="chat", operation="chat", protocol="openai")
    assert (reply["decision"]["route"], reply["decision"]["lacking"]) == ("rest", ["http://a:1"])  # which lists another
    assert reply["steps"][0]["checks"][1] == {
        "key": "header x-tier",
        "expected": "gold",
        "actual": None,
        "holds": False,
    }


def test_body_session_and_control_operations_are_explained(client: TestClient) -> None:
    """Explain covers parameters and inputs of the body, a session's arm, and operations that go to all endpoints."""
    assert explain(client, model="x", parameter={"priority": 1})["decision"]["route"] == "urgent"
    reply = explain(client, model="x", input=[{"name": "i", "datatype": "FP32", "shape": [2, 2]}])
    assert reply["decision"]["route"] == "images"
    arms = {explain(client, model="m", session="alice")["assignment"]["arm"] for _ in range(5)}
    assert len(arms) == 1
    reply = explain(client, model="m", session="alice")["assignment"]
    assert (reply["experiment"], reply["unit_kind"], reply["unit"]) == ("move", "session", "alice")
    assert [draw["arm"] for draw in reply["draws"]] == ["old", "new"]
    assert explain(client, model="m")["assignment"]["unit"] is None
    targets = explain(client, model="m", operation="load")["targets"]
    assert {target["engine"] for target in targets} == {"small", "big"}
    assert explain(client, model="x")["decision"] is None


def test_candidate_files_are_explained_without_being_activated(client: TestClient) -> None:
    """Explain works with files that are not in force; their mistakes are reported with the line."""
    files = {"rules.yaml": RULES.replace("name: rest", "name: others")}
    assert explain(client, model="chat", files=files)["decision"]["route"] == "others"
    assert explain(client, model="chat")["decision"]["route"] == "rest"
    refused = explain(client, 422, model="chat", files={"rules.yaml": RULES.replace("big:", "bug:")})
    assert {problem["line"] for problem in refused["problems"] if problem["severity"] == "error"} == {6, 7, 8, 15}


@pytest.mark.parametrize(
    "facts, why",
    [
        ({"operation": "infr"}, "operation: unknown value 'infr': did you mean 'infer'?"),
        ({"input": [{"name": "i", "datatype": "F32", "shape": [1]}]}, "did you mean 'FP32'?"),
        ({"parameter": {"a": [1]}}, "parameter 'a' is neither a text"),
        ({"force": "move"}, "force: 'move' is not EXPERIMENT=ARM"),
        ({"files": {"../../etc/x.yaml": ""}}, "there is no rule file in this folder"),
        ({"files": {}}, "there is no file"),
    ],
)
def test_a_question_with_a_mistake_is_refused(client: TestClient, facts: dict[str, Any], why: str) -> None:
    """An invalid field gets an error that names it and the valid form."""
    assert why in explain(client, 422, model="chat", **facts)["detail"]


def test_no_secret_of_the_environment_is_told(client: TestClient) -> None:
    """Versions, diffs and exports show texts with unexpanded variables."""
    client.post("/rules/activate", json={"files": {"rules.yaml": RULES + "# more\n"}})
    for path in ("/rules/versions", "/rules/versions/1", "/rules/export", "/rules/diff"):
        answer = client.get(path)
        assert (answer.status_code, "sesame" in answer.text) == (200, False)
    assert "${SECRET}" in client.get("/rules/versions/1").text
    assert "sesame" not in client.post("/rules/explain", json={"model": "chat"}).text


def test_ends_of_the_versions(client: TestClient) -> None:
    """Missing versions are 404, and the diff of the first version is empty."""
    assert client.get("/rules/versions/9").status_code == 404
    assert client.get("/rules/diff?from=9").status_code == 404
    assert client.get("/rules/diff").json() == {"from": 1, "to": 1, "files": [], "diff": ""}
    assert client.post("/rules/rollback", json={}).status_code == 404
    assert client.get("/rules/versions/0").status_code == 422


def test_a_key_that_stands_in_a_file_is_an_admins_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only an admin reads a secret in a rule file; others get the rest, and their export is marked as incomplete."""
    monkeypatch.setenv("SECRET", "open sesame")
    file = tmp_path / "rules.yaml"
    file.write_text(RULES.replace("engines:", "x-old: {api_key: hunter2}\nengines:", 1))
    book = Rulebook([file])
    book.open(load_rules([file]))
    keys = write_keys(tmp_path / "keys.yaml", vera=Role.viewer, anna=Role.admin)
    client = serving(book, Access(Keyring(tmp_path / "keys.yaml")))
    for name, is_whole in (("vera", False), ("anna", True)):
        for path in ("/rules/versions/1", "/rules/export"):
            answer = client.get(path, headers=bearer(keys[name]))
            assert answer.status_code == 200
            assert ("hunter2" in answer.text) is is_whole
            assert "routes:" in answer.text
        assert client.get("/rules/export", headers=bearer(keys[name])).json()["cut"] is not is_whole
        masked = client.get("/rules/versions/1?masked=true", headers=bearer(keys[name]))
        assert masked.json()["cut"] and "hunter2" not in masked.text
