"""Models of the fleet: their readiness, and loading and unloading on all replicas, with real Tritons."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.demo.triton import TritonProcess
from tests.support import plain_http
from tests.support.canned_llm import MODEL, CannedLLM
from tests.support.command_line import pointsman
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

REPOSITORY = Path(__file__).parents[1] / "models"

RULES = """
version: 1
engines:
  cuda:
    health: {{interval: 200ms, timeout: 60s}}
    endpoints: ['{one}', '{two}']
  spare: {{endpoints: ['{two}']}}
  grpc: {{endpoints: ['grpc://127.0.0.1:{port}']}}
  texts: {{protocol: openai, endpoints: ['{llm}'], health: {{interval: 200ms, timeout: 60s}}}}
routes:
  - {{name: renamed, match: {{model: sum}}, engine: cuda, model: {model}}}
  - {{name: texts, match: {{model: {text}}}, engine: texts}}
"""
NAME = "identity_fp32"


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    """A second Triton with the same models, none of them loaded."""
    arguments = ["--model-control-mode=explicit"]
    log = tmp_path_factory.mktemp("other") / "triton.log"
    with TritonProcess.start(REPOSITORY, extra_args=arguments, log_path=log) as server:
        yield server.wait_ready()


@pytest.mark.triton
def test_a_model_is_loaded_at_all_replicas(
    triton: TritonProcess, other: TritonProcess, start_gateway: Callable[..., GatewayProcess], tmp_path: Path
) -> None:
    """A model is loaded under its name in the rules, and the reply has each endpoint's result; a failure has its
    reason."""
    with CannedLLM.start(tmp_path / "llm").running() as llm:
        urls = {"one": f"http://127.0.0.1:{triton.http_port}", "two": f"http://127.0.0.1:{other.http_port}"}
        rules = RULES.format(**urls, port=triton.grpc_port, llm=llm.http_url, model=NAME, text=MODEL)
        gateway = start_gateway(rules)
        api = httpx.Client(base_url=gateway.admin_url, timeout=120)

        def model(name: str) -> dict[str, Any]:
            found = {each["name"]: each for each in api.get("/models").json()["models"]}
            reply: dict[str, Any] = found.get(name, {})
            return reply

        reply = model(NAME)
        cuda, _, grpc = reply["engines"]
        assert [(each["url"], each["ready"]) for each in cuda["endpoints"]] == [
            (urls["one"], True),
            (urls["two"], False),
        ]
        assert (reply["ready"], reply["endpoints"]) == (2, 4)
        assert [(each["ready"], each["versions"]) for each in grpc["endpoints"]] == [(True, ["1"])]
        assert eventually(lambda: model(MODEL)["ready"] == 1)

        loaded = api.post("/models/sum/load", json={"reason": "a test"})
        assert loaded.status_code == 200, loaded.text
        assert [(each["url"], each["model"], each["ok"]) for each in loaded.json()["endpoints"]] == [
            (urls["one"], NAME, True),
            (urls["two"], NAME, True),
        ]
        assert [each["ready"] for each in model(NAME)["engines"][0]["endpoints"]] == [True, True]

        unloaded = plain_http.post(f"{urls['two']}/v2/repository/models/{NAME}/unload")
        assert unloaded.status_code == 200
        configured = {"parameters": {"config": "{nonsense"}, "engine": "spare"}
        refused = api.post(f"/models/{NAME}/load", json=configured)
        assert refused.status_code == 409
        reply = refused.json()
        assert (reply["succeeded"], reply["needed"]) == (0, 1)
        assert all(each["status"] >= 400 and each["detail"] for each in reply["endpoints"])

        for body, status, text in [
            ({"engine": "texts"}, 400, "engines of protocol openai load and unload no models"),
            ({"engine": "none"}, 404, "there is no engine 'none'; there are cuda, spare, grpc, texts"),
            ({"engine": "cuda", "quorum": 3}, 400, "a quorum of 3 cannot be reached: there are 2 endpoints"),
            ({"quorum": "some"}, 422, "majority"),
            ({}, 404, "no route takes model 'identity_fp32': name the 'engine'"),
        ]:
            answer = api.post(f"/models/{NAME}/load", json=body)
            assert (answer.status_code, text in answer.text) == (status, True), answer.text


@pytest.mark.triton
def test_a_quorum_is_enough(triton: TritonProcess, start_gateway: Callable[..., GatewayProcess]) -> None:
    """With one of two replicas down, a quorum of two fails and a quorum of one succeeds."""
    rules = f"""
version: 1
engines: {{it: {{endpoints: ['http://127.0.0.1:{triton.http_port}', 'http://127.0.0.1:1']}}}}
routes: [{{name: all, engine: it}}]
"""
    gateway = start_gateway(rules)
    api = httpx.Client(base_url=gateway.admin_url, timeout=120)
    refused = api.post(f"/models/{NAME}/load", json={})
    assert (refused.status_code, refused.json()["succeeded"]) == (409, 1)
    assert refused.json()["detail"] == f"load of model '{NAME}': 1 of 2 endpoints have done it, 2 were needed"
    down = refused.json()["endpoints"][1]
    assert (down["ok"], down["status"], "refused" in down["detail"]) == (False, None, True)
    assert api.post(f"/models/{NAME}/load", json={"quorum": 1}).status_code == 200
    listed = api.get("/models").json()
    assert [each["url"] for each in listed["unanswered"]] == ["http://127.0.0.1:1"]
    [entry] = [each for each in api.get("/audit").json()["audit"] if each["status"] == 200]
    assert (entry["path"], entry["body"]) == (f"/models/{NAME}/load", {"quorum": 1})


@pytest.mark.triton
def test_log_and_trace_settings_are_those_of_all_endpoints(
    triton: TritonProcess, start_gateway: Callable[..., GatewayProcess]
) -> None:
    """Settings are read from each endpoint and written to all, by the API and the command; what an engine refuses has
    its reason."""
    url = f"http://127.0.0.1:{triton.http_port}"
    rules = f"""
version: 1
engines:
  it: {{endpoints: ['{url}']}}
  half: {{endpoints: ['{url}', 'http://127.0.0.1:1']}}
  texts: {{protocol: openai, endpoints: ['http://127.0.0.1:1']}}
routes: [{{name: all, engine: it}}]
"""
    gateway = start_gateway(rules)
    api = httpx.Client(base_url=gateway.admin_url, timeout=120)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return pointsman("engine-settings", *arguments, "--admin", gateway.admin_url)

    (before,) = api.get("/engines/it/settings/logging").json()["endpoints"]
    assert (before["ok"], before["settings"]["log_verbose_level"]) == (True, 0)
    written = run("it", "logging", "log_verbose_level=1", "log_format=default")
    assert written.returncode == 0, written.stderr
    try:
        direct = plain_http.get(f"{url}/v2/logging").json()
        assert direct["log_verbose_level"] == 1
    finally:
        body = {"settings": {"log_verbose_level": 0}}
        assert api.post("/engines/it/settings/logging", json=body).status_code == 200
    traced = api.post("/engines/it/settings/trace", json={"settings": {"trace_rate": "7"}, "model": "adder"})
    assert traced.json()["endpoints"][0]["settings"]["trace_rate"] == "7"
    cleared = api.post("/engines/it/settings/trace", json={"settings": {"trace_rate": None}, "model": "adder"})
    assert cleared.status_code == 200
    refused = api.post("/engines/it/settings/logging", json={"settings": {"log_info": "x"}})
    assert refused.status_code == 409 and "non-boolean" in refused.json()["endpoints"][0]["detail"]
    half = run("half", "trace")
    assert half.returncode == 1 and "failed" in half.stdout
    assert api.get("/engines/texts/settings/trace").status_code == 400
    assert api.get("/engines/none/settings/trace").status_code == 404
    assert api.get("/engines/it/settings/logging", params={"model": "m"}).status_code == 400
    audited = [each["path"] for each in api.get("/audit").json()["audit"]]
    assert audited.count("/engines/it/settings/logging") == 3
