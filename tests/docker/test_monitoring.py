"""docker/prometheus, docker/grafana: alerts and dashboards, by a real Prometheus that scrapes a real gateway."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.observability.exposition import all_metrics
from scripts import dashboards
from tests.docker.bare import REPOSITORY
from tests.support.canned_engine import CannedEngine
from tests.support.llm import CannedLLM
from tests.support.ports import free_port
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually
from tests.test_docs import anchors

ALERTS = yaml.safe_load((REPOSITORY / "docker/prometheus/alerts.yaml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
EXPRESSIONS = [
    (f"{dashboard.title}: {panel.title}", expression)
    for dashboard in dashboards.DASHBOARDS
    for row in dashboard.rows.values()
    for panel in row
    for expression, _ in panel.queries
]
NAME = re.compile(r"\bpointsman_\w+")


def exported() -> set[str]:
    """The names of all samples that the gateway may export."""
    names = set()
    for metric in all_metrics():
        if metric.kind == "histogram":
            names |= {f"{metric.full_name}_{part}" for part in ("bucket", "sum", "count")}
        else:
            names.add(metric.full_name)
    return names


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: apt-get install prometheus")
    return found


def test_alerts_and_panels_name_metrics_that_exist() -> None:
    """Each metric in an alert or a panel is one that the gateway exports."""
    known = exported()
    for text in (*(rule["expr"] for rule in RULES), *(expression for _, expression in EXPRESSIONS)):
        assert set(NAME.findall(text)) <= known, text


def test_dashboards_are_those_of_the_table() -> None:
    """The files are what scripts/dashboards.py writes; panels have numbers of their own and do not overlap."""
    assert {path.stem for path in dashboards.FOLDER.glob("*.json")} == {
        each.uid.removeprefix("pointsman-") for each in dashboards.DASHBOARDS
    }
    for dashboard in dashboards.DASHBOARDS:
        written = (dashboards.FOLDER / f"{dashboard.uid.removeprefix('pointsman-')}.json").read_text()
        assert written == dashboards.text(dashboard), "run scripts/dashboards.py"
        cells = set()
        panels = json.loads(written)["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        for panel in panels:
            place = panel["gridPos"]
            taken = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not taken & cells and all(x < 24 for x, _ in taken), panel["title"]
            cells |= taken


def test_runbooks_lead_to_a_section() -> None:
    """Each alert names a section of a page of the repository."""
    for rule in RULES:
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert anchor in anchors(REPOSITORY / page), rule["alert"]


def test_promtool_accepts_and_tests_the_alerts(tmp_path: Path) -> None:
    """Prometheus' own tool reads the configuration and the alerts, and finds alerts_test.yaml true."""
    promtool = program("promtool")
    folder = tmp_path / "prometheus"
    shutil.copytree(REPOSITORY / "docker/prometheus", folder)
    (folder / "viewer.key").write_text("key")
    for arguments in (
        ["check", "config", "prometheus.yaml"],
        ["check", "rules", "alerts.yaml"],
        ["test", "rules", "alerts_test.yaml"],
    ):
        done = subprocess.run([promtool, *arguments], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


GATEWAY_RULES = """
version: 1
engines:
  triton: {{endpoints: ["{triton}"], overload: {{}}}}
  dead: {{endpoints: ["http://127.0.0.1:9"]}}
  llm: {{protocol: openai, endpoints: ["{llm}"]}}
routes:
  - {{name: chat, match: {{model: chat}}, engine: llm, model: canned}}
  - {{name: dead, match: {{model: dead}}, engine: dead}}
  - {{name: trial, match: {{model: trial}}, experiment: trial}}
  - {{name: all, engine: triton}}
experiments:
  trial:
    unit: request
    arms: [{{name: a, engine: triton, weight: 50}}, {{name: b, engine: triton, weight: 50}}]
limits: [{{name: each, per: tenant, requests_per_second: 100000}}]
"""
# Panels that must have data after the requests below.
SHOWN = {
    *("Requests by route", "Share of 5xx", "Errors of the gateway", "To the end of the reply", "To the first byte"),
    *("At engines", "Requests by engine and arm", "Ready endpoints", "In flight by endpoint", "Retries"),
    *("Waiting for overload protection", "Refused by limits", "Client connections", "Workers and restarts", "Rules"),
    *("Time to first token", "Time per token", "Prompt tokens a second", "Generated tokens a second"),
    *("Requests of each arm", "Share of failures", "Share of each arm", "Open breakers, drained endpoints"),
}


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[[int, str], str]]:
    """A function that starts a Prometheus which scrapes a gateway each second with a key; returns its address."""
    server = program("prometheus")
    started: list[subprocess.Popen[bytes]] = []

    def start(port: int, key: str) -> str:
        own = free_port()
        job = {
            "job_name": "pointsman",
            "authorization": {"credentials": key},
            "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
        }
        config = tmp_path / "scrape.yaml"
        alerts = str(REPOSITORY / "docker/prometheus/alerts.yaml")
        config.write_text(
            yaml.safe_dump(
                {
                    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                    "rule_files": [alerts],
                    "scrape_configs": [job],
                }
            )
        )
        options = [f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
        options.append(f"--web.listen-address=127.0.0.1:{own}")
        with (tmp_path / "prometheus.log").open("wb") as log:
            started.append(subprocess.Popen([server, *options], stdout=log, stderr=log))
        return f"http://127.0.0.1:{own}"

    yield start
    for process in started:
        process.terminate()
        process.wait()


def test_panels_show_a_running_gateway(
    canned: CannedLLM, start_gateway: Callable[..., GatewayProcess], prometheus: Callable[[int, str], str]
) -> None:
    """Prometheus scrapes the gateway with a key, evaluates every panel's query without error, has data for those whose
    part was used, and reports an engine without endpoint as an alert."""
    with CannedEngine("triton") as triton, httpx.Client(timeout=120) as client:
        gateway = start_gateway(GATEWAY_RULES.format(triton=triton.url, llm=canned.http_url))
        address = prometheus(gateway.admin_port, gateway.admin_key)

        def found(query: str) -> list[Any]:
            reply = client.get(f"{address}/api/v1/query", params={"query": query}).json()
            assert reply["status"] == "success", (query, reply)
            return list(reply["data"]["result"])

        def is_up() -> bool:
            try:
                return bool(found("up == 1"))
            except (httpx.HTTPError, ValueError):  # 503 while it starts
                return False

        eventually(is_up)
        chat = {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        infer = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}]}

        def use() -> None:
            for model in ("m", "trial", "dead"):
                client.post(f"{gateway.http_url}/v2/models/{model}/infer", json=infer)
            client.post(f"{gateway.http_url}/v1/chat/completions", json=chat)

        def panel_is_shown(title: str, expression: str) -> bool:
            use()
            query = expression.replace("$__rate_interval", "1m").replace("$route", ".*").replace("$engine", ".*")
            return bool(found(query)) or title.partition(": ")[2] not in SHOWN

        for title, expression in EXPRESSIONS:
            assert eventually(lambda title=title, expression=expression: panel_is_shown(title, expression)), title
        alerts = client.get(f"{address}/api/v1/rules").json()["data"]["groups"]
        assert {rule["name"] for group in alerts for rule in group["rules"]} == {rule["alert"] for rule in RULES}
        assert eventually(lambda: found('ALERTS{alertname="PointsmanEngineDown", engine="dead"}'))
