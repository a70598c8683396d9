"""Ten endpoints found by DNS and ten by Kubernetes are replaced one after the other, and no request fails."""

from __future__ import annotations

import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support import plain_http
from tests.support.kubernetes_api import KubernetesApi, endpoint
from tests.support.local_replicas import LocalReplica
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

pytest.importorskip("dns")
pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="its loopback network has one address")

from tests.support.dns_server import DnsServer  # noqa: E402

SIZE = 10
RULES = """\
version: 1
engines:
  names:
    endpoints: [{{dns: "triton.test:{names}", servers: ["{dns}"], min_refresh: 50ms, drain: 1s}}]
    health: {{interval: 100ms, timeout: 60s}}
  slices:
    endpoints: [{{kubernetes: {{service: triton, namespace: models, port: http, api: "{api}"}}}}]
    health: {{interval: 100ms, timeout: 60s}}
    slow_start: 1s
  unlisted:
    endpoints: [{{dns: "none.test:1", servers: ["{dns}"]}}, "http://127.0.0.1:9"]
routes:
  - {{name: names, match: {{model: names}}, engine: names}}
  - {{name: slices, match: {{model: slices}}, engine: slices}}
  - {{name: unlisted, match: {{model: unlisted}}, engine: unlisted}}
"""


class Fleet:
    """The replicas behind a name and behind a Service, and the gateway before them."""

    def __init__(self, directory: Path, dns: DnsServer, api: KubernetesApi) -> None:
        self.dns, self.api = dns, api
        first = LocalReplica("127.0.1.1")
        self.port = first.port
        self.names = [first, *(LocalReplica(f"127.0.1.{at}", self.port) for at in range(2, SIZE + 1))]
        self.slices = [LocalReplica(f"127.0.2.{at}", self.port) for at in range(1, SIZE + 1)]
        self.terminating: list[LocalReplica] = []
        dns.ttl = 0
        self.tell()
        rules = RULES.format(names=self.port, dns=dns.address, api=api.url)
        self.gateway = GatewayProcess.start(rules, directory).wait_ready()

    def tell(self) -> None:
        self.dns.records = {("triton.test", "A"): [each.address for each in self.names]}
        pods = [endpoint(each.address) for each in self.slices]
        old = [endpoint(each.address, ready=False, serving=True, terminating=True) for each in self.terminating]
        self.api.put("triton-1", [*pods, *old], port=self.port)

    def engine(self, name: str) -> dict[str, Any]:
        reply = plain_http.get(f"{self.gateway.admin_url}/engines")
        (found,) = [each for each in reply.json()["engines"] if each["name"] == name]
        return found  # type: ignore[no-any-return]

    def endpoint(self, name: str, replica: LocalReplica) -> dict[str, Any] | None:
        url = f"http://{replica.address}:{self.port}"
        return next((each for each in self.engine(name)["endpoints"] if each["url"] == url), None)

    def stop(self) -> None:
        for replica in (*self.names, *self.slices, *self.terminating):
            replica.stop()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with DnsServer() as dns, KubernetesApi() as api:
        fleet = Fleet(tmp_path_factory.mktemp("gateway"), dns, api)
        try:
            yield fleet
            fleet.gateway.stop()
        finally:
            fleet.gateway.kill()
            fleet.stop()


class Load:
    """Clients that send one request after the other."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stopping = threading.Event()
        self.served_by: Counter[str] = Counter()
        self.failures: list[str] = []
        self.hosts: set[str] = set()
        self._threads = [threading.Thread(target=self._send, args=(model,)) for model in ("names", "slices")]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _send(self, model: str) -> None:
        with httpx.Client(timeout=120) as client:
            while not self._stopping.wait(0.002):
                reply = client.post(f"{self._url}/v2/models/{model}/infer", json={"inputs": []})
                if reply.status_code != 200:
                    self.failures.append(f"{model}: {reply.status_code} {reply.text}")
                    continue
                self.served_by[reply.json()["served_by"]] += 1
                self.hosts.add(reply.json()["host"])


def test_no_request_fails(fleet: Fleet) -> None:
    """Each replica is replaced: its successor joins, it leaves and stops when nothing is under way there. All requests
    are answered, all successors serve, and requests carry the names."""
    with Load(fleet.gateway.http_url) as load:
        eventually(lambda: len(load.served_by) == 2 * SIZE)
        for at in range(SIZE):
            old = fleet.names[0], fleet.slices[0]
            new = LocalReplica(f"127.0.3.{at + 1}", fleet.port), LocalReplica(f"127.0.4.{at + 1}", fleet.port)
            fleet.names.append(new[0])
            fleet.slices.append(new[1])
            fleet.tell()
            for name, replica in zip(("names", "slices"), new, strict=True):
                eventually(lambda: (fleet.endpoint(name, replica) or {}).get("condition") == "ready")  # noqa: B023
            fleet.names = [each for each in fleet.names if each is not old[0]]
            fleet.slices = [each for each in fleet.slices if each is not old[1]]
            fleet.terminating = [old[1]]
            fleet.tell()
            for name, replica in zip(("names", "slices"), old, strict=True):
                eventually(lambda: _is_idle(fleet.endpoint(name, replica)))  # noqa: B023
            fleet.terminating = []
            fleet.tell()
            for replica in old:
                replica.stop()
        eventually(lambda: {each.address for each in (*fleet.names, *fleet.slices)} <= set(load.served_by))
    assert load.failures == []
    assert load.hosts == {f"triton.test:{fleet.port}", f"triton.models.svc:{fleet.port}"}
    for name in ("names", "slices"):
        eventually(lambda: len(fleet.engine(name)["endpoints"]) == SIZE)  # noqa: B023
        eventually(lambda: _shown(fleet, name) == {"gone", *_urls(fleet, name)})  # noqa: B023


def _urls(fleet: Fleet, name: str) -> set[str]:
    return {each["url"] for each in fleet.engine(name)["endpoints"]}


def _shown(fleet: Fleet, name: str) -> set[str]:
    """The endpoints that /metrics counts requests of."""
    text = plain_http.get(f"{fleet.gateway.admin_url}/metrics").text
    return set(re.findall(rf'pointsman_requests_total{{arm="",endpoint="([^"]+)",engine="{name}"', text))


def _is_idle(found: dict[str, Any] | None) -> bool:
    return found is None or (found["draining"] is not None and found["in_flight"] == 0)


def test_operators_see_sources(fleet: Fleet) -> None:
    """The admin API and /metrics show each source, how old its answer is and why it fails; endpoints that it has found
    are drained, but neither removed nor weighted."""
    admin = fleet.gateway.admin_url
    (source,) = eventually(lambda: [each for each in fleet.engine("names")["sources"] if each["error"] is None])
    assert source["source"] == f"dns:triton.test:{fleet.port}"
    assert (source["endpoints"], source["error"], source["left_out"]) == (SIZE, None, 0)
    url = f"http://{fleet.names[0].address}:{fleet.port}"
    refused = plain_http.post(f"{admin}/engines/names/endpoints/weight", json={"url": url, "weight": 2})
    assert refused.status_code == 409 and "is found by dns:triton.test" in refused.text
    assert plain_http.delete(f"{admin}/engines/names/endpoints", params={"url": url}).status_code == 409
    for verb, by in (("drain", "the admin API"), ("undrain", None)):
        assert plain_http.post(f"{admin}/engines/names/endpoints/{verb}", json={"url": url}).status_code == 200
        draining = (fleet.endpoint("names", fleet.names[0]) or {})["draining"]
        assert (draining and draining["by"]) == by
    fleet.dns.records = {}
    eventually(lambda: fleet.engine("names")["sources"][0]["empty"])
    (unlisted,) = fleet.engine("unlisted")["sources"]
    assert unlisted["endpoints"] == 0
    metrics = plain_http.get(f"{admin}/metrics").text
    assert f'pointsman_source_endpoints{{engine="names",source="dns:triton.test:{fleet.port}"}} {SIZE}' in metrics
    assert 'pointsman_source_failing{engine="slices",source="kubernetes:models/triton:http' in metrics
    infer = f"{fleet.gateway.http_url}/v2/models/names/infer"
    assert plain_http.post(infer, json={"inputs": []}).status_code == 200


def test_workers_that_restart_and_rules_that_change_keep_endpoints(fleet: Fleet) -> None:
    """A reload of rules with the same source, and a worker that is killed, serve what was found although the sources
    are away."""
    eventually(lambda: len(fleet.engine("slices")["endpoints"]) == SIZE)
    lists = fleet.api.num_of("list")
    fleet.api.is_away = True
    fleet.api.break_watches()
    path = fleet.gateway.rules_path
    path.write_text(path.read_text().replace("slow_start: 1s", "slow_start: 2s"))
    admin = fleet.gateway.admin_url
    eventually(lambda: plain_http.get(f"{admin}/rules").json()["number"] == 2)
    infer = f"{fleet.gateway.http_url}/v2/models/slices/infer"
    assert plain_http.post(infer, json={"inputs": []}).status_code == 200
    children = psutil.Process(fleet.gateway.process.pid).children()
    next(child for child in children if "gateway.worker" in child.cmdline()).kill()
    eventually(lambda: "pointsman_worker_restarts_total 1" in plain_http.get(f"{admin}/metrics").text)
    eventually(lambda: "pointsman_workers 1" in plain_http.get(f"{admin}/metrics").text)
    eventually(lambda: plain_http.post(infer, json={"inputs": []}).status_code == 200)
    assert fleet.api.num_of("list") == lists
    eventually(lambda: fleet.engine("slices")["sources"][0]["error"])
