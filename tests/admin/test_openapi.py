"""schemathesis calls the admin API of a real gateway with whatever its OpenAPI description allows."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi import checks as of_openapi

from gateway.admin.api_keys import Role
from gateway.admin.app import make_app
from tests.admin.test_app import ACCESS, State
from tests.admin.test_auth import write_keys
from tests.support import plain_http
from tests.support.canned_engine import CannedEngine
from tests.support.child import REPOSITORY
from tests.support.servers import GatewayProcess

load_all_checks()

RULES = """
version: 1
engines:
  it: {{endpoints: ['{url}'], health: {{interval: 0}}}}
  new: {{endpoints: ['{url}', 'http://127.0.0.1:1'], health: {{interval: 0}}}}
routes:
  - {{name: split, match: {{model: 'llama-*'}}, experiment: move}}
  - {{name: all, engine: it}}
experiments:
  move:
    arms: [{{name: old, engine: it, weight: 1}}, {{name: new, engine: new, weight: 1}}]
limits:
  - {{name: few, requests_per_second: 1000, routes: [all]}}
"""

# More examples find more and take longer; a check before a release may use 200.
EXAMPLES = int(os.environ.get("POINTSMAN_SCHEMATHESIS_EXAMPLES", "4"))
SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
SESSION = requests.Session()
SESSION.trust_env = False
# Names that exist, so that not every call ends with 404.
NAMES = {"name": ["it", "move", "few", "none"], "route": ["split", "all"], "number": [1, 2, 99]}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("keys")
    return {"path": str(folder / "keys.yaml")} | write_keys(folder / "keys.yaml", anna=Role.admin, vera=Role.viewer)


@pytest.fixture(scope="module")
def gateway(keys: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with keys, an embedded Redis, and a running engine."""
    with CannedEngine("one") as engine:
        options: Any = {"redis": "embedded", "extra_args": ["--admin-keys", keys["path"]]}
        server = GatewayProcess.start(RULES.format(url=engine.url), tmp_path_factory.mktemp("gateway"), **options)
        yield server.wait_ready()
        server.stop()


# Equal to the running gateway's: it does not depend on the gateway's state.
DESCRIBED = make_app(State(), ACCESS).openapi()
schema = schemathesis.openapi.from_dict(DESCRIBED).exclude(path="/events")  # a stream that never ends


def asked(gateway: GatewayProcess, case: Any, key: str | None) -> Any:
    """The reply to a case; it conforms to the description, and is never 500."""
    case.headers = {name: value for name, value in (case.headers or {}).items() if name.lower() != "authorization"}
    headers = {"authorization": f"Bearer {key}"} if key is not None else {}
    response = case.call(base_url=gateway.admin_url, headers=headers, timeout=120, session=SESSION)
    assert response.status_code not in (500, 501, 504), response.text
    case.validate_response(
        response,
        checks=[
            of_openapi.status_code_conformance,
            of_openapi.content_type_conformance,
            of_openapi.response_schema_conformance,
        ],
    )
    if response.status_code >= 400 and response.status_code != 409:
        assert isinstance(response.json()["detail"], str)
    return response


def with_names(case: Any) -> Any:
    """Replace names by existing ones in about half of the calls."""
    for name, known in NAMES.items():
        if name in (case.path_parameters or {}) and len(str(case.path_parameters[name])) % 2:
            case.path_parameters[name] = known[len(repr(case)) % len(known)]
    return case


@schema.parametrize()
@SETTINGS
def test_no_call_fails_the_gateway(gateway: GatewayProcess, case: Any, keys: dict[str, str]) -> None:
    """Every call of an admin gets a reply that the description lists."""
    asked(gateway, with_names(case), keys["anna"])


@schema.parametrize()
@settings(SETTINGS, max_examples=1, phases=[Phase.generate])
def test_no_call_goes_without_a_key(gateway: GatewayProcess, case: Any) -> None:
    """Without a key every call gets 401, except health."""
    response = asked(gateway, case, None)
    assert response.status_code == (200 if case.path in ("/healthz", "/readyz") else 401)


@schema.exclude(method="GET").parametrize()
@settings(SETTINGS, max_examples=1, phases=[Phase.generate])
def test_a_viewer_changes_nothing(gateway: GatewayProcess, case: Any, keys: dict[str, str]) -> None:
    """A viewer's key allows only reads, and POSTs that change nothing."""
    questions = {"/rules/validate", "/rules/explain", "/rules/replay", "/sign-in"}
    response = asked(gateway, with_names(case), keys["vera"])
    assert case.path in questions or response.status_code in (401, 403, 413, 422)


def test_a_gateway_that_was_asked_all_this_serves(gateway: GatewayProcess, keys: dict[str, str]) -> None:
    """After all these calls the gateway serves, its log has no traceback, and its audit has the calls."""
    headers = {"authorization": f"Bearer {keys['anna']}"}
    assert plain_http.get(f"{gateway.admin_url}/healthz").json() == {"status": "ok"}
    assert plain_http.post(f"{gateway.http_url}/v2/models/m/infer", json={}).status_code in (200, 429, 503)
    entries = plain_http.get(f"{gateway.admin_url}/audit?limit=1000", headers=headers).json()["audit"]
    assert len(entries) > 50 and {"PUT", "POST", "DELETE"} <= {entry["method"] for entry in entries}
    assert keys["anna"] not in gateway.log() + str(entries)
    assert "Traceback" not in gateway.log()


def test_it_is_described(gateway: GatewayProcess) -> None:
    """Every operation has a summary, a tag and its role; every error has the same schema."""
    described = plain_http.get(f"{gateway.admin_url}/openapi.json").json()
    assert described == DESCRIBED
    assert described["info"]["title"] == "Pointsman admin" and described["info"]["version"]
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            what = f"{method} {path}"
            assert operation.get("summary") and operation.get("description") and operation.get("tags"), what
            assert ("security" in operation) == (path not in ("/healthz", "/readyz", "/metrics", "/sign-in")), what
            for status, response in operation["responses"].items():
                if status >= "400" and status != "409" and path != "/readyz":
                    schema = response["content"]["application/json"]["schema"]
                    assert schema == {"$ref": "#/components/schemas/Refusal"}, what


@pytest.mark.parametrize("path, allowed", [("/log-level", "GET, PUT"), ("/engines/it/endpoints", "DELETE, POST")])
def test_what_is_not_allowed_names_what_is(
    gateway: GatewayProcess, keys: dict[str, str], path: str, allowed: str
) -> None:
    """A 405 lists all methods of the path in Allow."""
    answer = plain_http.patch(gateway.admin_url + path, headers={"authorization": f"Bearer {keys['anna']}"})
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize(
    "body, status, reply",
    [
        (b'{"level": "info", "reason": "\\ud800"}', 422, "body"),
        (b'{"level": "info", "reason": "\xff"}', 422, "body"),
        (b'{"level": "loud", "x": 1}', 422, "body.level: Input should be 'debug', 'info', 'warning' or 'error'"),
        (b"{" + b" " * (2 * 1024 * 1024) + b"}", 413, "the body is longer than 1048576 bytes"),
    ],
)
def test_a_body_that_cannot_be_read_is_told(
    gateway: GatewayProcess, keys: dict[str, str], body: bytes, status: int, reply: str
) -> None:
    """An unreadable body gets one sentence that names the field, where there is one."""
    headers = {"authorization": f"Bearer {keys['anna']}", "content-type": "application/json"}
    answer = plain_http.put(f"{gateway.admin_url}/log-level", content=body, headers=headers)
    assert (answer.status_code, reply in answer.json()["detail"]) == (status, True), answer.text


def test_the_readme_tells_of_each_path() -> None:
    """The README's table of the admin API has the first segment of each path."""
    text = (REPOSITORY / "gateway" / "README.md").read_text().partition("## The admin API")[2]
    missing = {path.split("/")[1] for path in DESCRIBED["paths"] if f"`/{path.split('/')[1]}" not in text}
    assert not missing
