"""Endpoints, weights and limits changed by the admin API of a real gateway: each is a version of the rules."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx

from tests.support import plain_http
from tests.support.canned_engine import CannedEngine
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

RULES = """
version: 1
engines:
  it:  # two of a kind
    balance: round_robin
    health: {{interval: 100ms, timeout: 60s}}
    endpoints: ['{url}']
routes: [{{name: all, engine: it}}]
limits:
  - name: few
    requests_per_second: 1000  # for now
"""


def asked(gateway: GatewayProcess, number: int) -> Counter[str]:
    """How many of this number of requests each engine answered."""
    with httpx.Client(base_url=gateway.http_url, timeout=120) as client:
        return Counter(client.post("/v2/models/m/infer", json={}).json()["served_by"] for _ in range(number))


def test_endpoints_come_weigh_and_go(use_gateway: Callable[[str], GatewayProcess]) -> None:
    """An added endpoint gets requests once it is probed, in proportion to its weight, and none once it is removed.
    Comments in the rules stay, and a rollback undoes the change."""
    with CannedEngine("one") as one, CannedEngine("two") as two:
        gateway = use_gateway(RULES.format(url=one.url))
        api = httpx.Client(base_url=gateway.admin_url, timeout=120)

        def endpoints() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = api.get("/engines").json()["engines"][0]["endpoints"]
            return found

        added = api.post("/engines/it/endpoints", json={"url": two.url, "weight": 1, "reason": "more room"})
        assert added.status_code == 200, added.text
        version = added.json()["version"]
        assert (version["author"], version["reason"], version["source"]) == ("local", "more room", "api")
        assert eventually(lambda: [each["condition"] for each in endpoints()] == ["ready", "ready"])
        assert asked(gateway, 40) == {"one": 20, "two": 20}

        weighed = api.post("/engines/it/endpoints/weight", json={"url": two.url, "weight": 3})
        assert weighed.status_code == 200, weighed.text
        assert [each["weight"] for each in endpoints()] == [1, 3]
        assert asked(gateway, 40) == {"one": 10, "two": 30}
        assert api.post("/engines/it/endpoints/weight", json={"url": one.url, "weight": 0}).status_code == 200
        assert asked(gateway, 10) == {"two": 10}
        text = "".join(api.get("/rules/export").json()["files"].values())
        assert "# two of a kind" in text and "weight: 3" in text

        removed = api.delete("/engines/it/endpoints", params={"url": two.url})
        assert removed.status_code == 200, removed.text
        assert asked(gateway, 10) == {"one": 10}  # of weight 0, and all that is left
        assert [each["url"] for each in endpoints()] == [one.url]
        assert api.post("/rules/rollback", json={}).status_code == 200
        assert asked(gateway, 10) == {"two": 10}


def test_what_cannot_be_changed_is_told(use_gateway: Callable[[str], GatewayProcess]) -> None:
    """An invalid change is refused whole, with an error that names the problem and the valid names."""
    gateway = use_gateway(RULES.format(url="http://127.0.0.1:1"))
    api = httpx.Client(base_url=gateway.admin_url, timeout=120)
    number = api.get("/rules").json()["number"]
    for method, path, body, status, reply in [
        ("POST", "/engines/no/endpoints", {"url": "http://a:1"}, 404, "there is no engine 'no'; there are it"),
        ("POST", "/engines/it/endpoints", {"url": "http://127.0.0.1:1"}, 409, "has an endpoint http://127.0.0.1:1"),
        ("POST", "/engines/it/endpoints", {"url": "ftp://a:1"}, 409, "ftp://a:1"),
        ("POST", "/engines/it/endpoints", {"url": "http://a:1", "weight": -1}, 422, "greater than or equal to 0"),
        ("POST", "/engines/it/endpoints", {"url": "http://a:1", "wait": 1}, 422, "Extra inputs"),
        ("POST", "/engines/it/endpoints", {"url": "http://a:1", "grpc": "nonsense"}, 422, "rules.yaml"),
        ("POST", "/engines/it/endpoints/weight", {"url": "http://b:1", "weight": 1}, 404, "has no endpoint http://b:1"),
        ("DELETE", "/engines/it/endpoints?url=http://127.0.0.1:1", None, 409, "is the only endpoint of engine 'it'"),
        ("PUT", "/limits/none", {"burst": 1}, 404, "there is no limit 'none'; there are few"),
        ("PUT", "/limits/few", {}, 400, "say what is to change: one of requests_per_second"),
        ("PUT", "/limits/few", {"requests_per_second": None}, 422, "limits nothing"),
        ("PUT", "/limits/few", {"requests_per_second": "x"}, 422, "valid number"),
    ]:
        answer = api.request(method, path, json=body)
        assert (answer.status_code, reply in answer.text) == (status, True), (path, answer.text)
    assert api.get("/rules").json()["number"] == number


def test_a_limit_is_changed(use_gateway: Callable[[str], GatewayProcess]) -> None:
    """Only the named fields of a limit change, null removes a field, and the change takes effect at once."""
    with CannedEngine("one") as one:
        gateway = use_gateway(RULES.format(url=one.url))
        api = httpx.Client(base_url=gateway.admin_url, timeout=120)
        before = len(api.get("/audit").json()["audit"])
        changed = api.put("/limits/few", json={"requests_per_second": 0.001, "burst": 2, "reason": "too many"})
        assert changed.status_code == 200, changed.text
        [limit] = api.get("/limits").json()["limits"]
        assert (limit["requests_per_second"], limit["burst"]) == (0.001, 2)
        post = f"{gateway.http_url}/v2/models/m/infer"
        assert [plain_http.post(post, json={}).status_code for _ in range(3)] == [200, 200, 429]
        assert api.put("/limits/few", json={"burst": None, "concurrency": 5, "max_wait": 1.5}).status_code == 200
        [limit] = api.get("/limits").json()["limits"]
        assert ("burst" in limit, limit["concurrency"], limit["max_wait"]) == (False, 5, 1.5)
        assert "# for now" in "".join(api.get("/rules/export").json()["files"].values())
        audited = [entry["path"] for entry in api.get("/audit").json()["audit"]]
        assert audited[: len(audited) - before] == ["/limits/few", "/limits/few"]


def test_routes_are_told(use_gateway: Callable[[str], GatewayProcess]) -> None:
    """/routes lists the routes in order, with their places in the files."""
    gateway = use_gateway(RULES.format(url="http://127.0.0.1:1"))
    [route] = plain_http.get(f"{gateway.admin_url}/routes").json()["routes"]
    assert (route["name"], route["engine"], "rules.yaml:8" in route["location"]) == ("all", "it", True)
