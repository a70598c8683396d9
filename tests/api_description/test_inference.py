"""The OpenAPI document of the inference ports: it is valid and whole, and a real gateway answers by it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi import checks as of_openapi

from gateway.api_description.inference import REPLY_HEADERS, inference_document
from gateway.protocol.errors import ErrorKind
from gateway.protocol.operations import Operation, path_templates
from tests.support import plain_http
from tests.support.canned_engine import CannedEngine
from tests.support.canned_llm import MODEL, CannedLLM
from tests.support.child import REPOSITORY
from tests.support.command_line import pointsman
from tests.support.servers import GatewayProcess

load_all_checks()

DOCUMENT = inference_document()
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
CHECKS = [
    of_openapi.status_code_conformance,
    of_openapi.content_type_conformance,
    of_openapi.response_schema_conformance,
    of_openapi.response_headers_conformance,
]
RULES = """
version: 1
engines:
  it: {{endpoints: ['{url}'], health: {{interval: 0}}}}
  new: {{endpoints: ['{url}'], health: {{interval: 0}}}}
  llm: {{protocol: openai, endpoints: ['{llm}']}}
  gone: {{endpoints: ['http://127.0.0.1:1'], health: {{interval: 0}}}}
routes:
  - {{name: chats, match: {{model: '{chat}'}}, engine: llm}}
  - {{name: gone, match: {{model: gone}}, engine: gone}}
  - {{name: long, match: {{model: long}}, engine: it, max_body_bytes: 1024}}
  - {{name: all, match: {{model: 'm*'}}, experiment: move}}
experiments:
  move:
    arms: [{{name: old, engine: it, weight: 1}}, {{name: new, engine: new, weight: 1}}]
"""


def test_it_is_openapi_3_1() -> None:
    """The document is valid by the specification's own schema, and each operation has a name of its own."""
    assert DOCUMENT["openapi"].startswith("3.1")
    SCHEMA.validate()
    operations = [each for path in DOCUMENT["paths"].values() for name, each in path.items() if name != "parameters"]
    assert len({operation["operationId"] for operation in operations}) == len(operations) > 40
    text = json.dumps(DOCUMENT)
    for kind, name in re.findall(r'"\$ref": "#/components/(\w+)/([^"]+)"', text):
        assert name in DOCUMENT["components"][kind], name


def test_it_has_what_the_code_has() -> None:
    """Each path, operation, reason of an error and field of replies in the code stands in the document."""
    assert DOCUMENT["paths"].keys() == path_templates().keys()
    assert {call.operation for call in path_templates().values()} == set(Operation)
    responses = DOCUMENT["components"]["responses"]
    for kind in ErrorKind:
        assert re.search(rf"\b{kind.value}\b", responses[f"V2{kind.status.http}"]["description"])
        assert kind.value in DOCUMENT["components"]["schemas"]["Reason"]["enum"]
    sources = [path.read_text() for path in (REPOSITORY / "gateway/dataplane").rglob("*.py")]
    written = {name for source in sources for name in re.findall(r'b"(x-pointsman-[a-z]+)"', source)}
    asked = {"x-pointsman-shadow", "x-pointsman-timing"}  # of requests
    assert written - asked <= {*REPLY_HEADERS, "x-pointsman-reason"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    with CannedEngine("one") as engine, CannedLLM.start(tmp_path_factory.mktemp("llm")).running() as llm:
        rules = RULES.format(url=engine.url, llm=llm.http_url, chat=MODEL)
        started = GatewayProcess.start(rules, folder)
        yield started.wait_ready()
        started.stop()


TENSOR = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
# method, path of the document, names in it, body -> status
REQUESTS: list[tuple[str, str, dict[str, str], Any, int]] = [
    ("GET", "/v2", {}, None, 200),
    ("GET", "/v2/health/live", {}, None, 200),
    ("GET", "/v2/health/ready", {}, None, 200),
    ("POST", "/v2/models/{model}/infer", {"model": "m"}, {"inputs": [TENSOR]}, 200),
    ("POST", "/v2/models/{model}/versions/{version}/infer", {"model": "m", "version": "1"}, {"inputs": [TENSOR]}, 200),
    ("POST", "/v2/models/{model}/infer", {"model": "none"}, {"inputs": [TENSOR]}, 404),
    ("POST", "/v2/models/{model}/infer", {"model": "gone"}, {"inputs": [TENSOR]}, 502),
    ("POST", "/v2/models/{model}/infer", {"model": "long"}, {"inputs": [TENSOR], "id": "x" * 2000}, 413),
    ("POST", "/v2/models/{model}/generate", {"model": "m"}, {"text_input": "a"}, 200),
    ("GET", "/v2/models/{model}/ready", {"model": "m"}, None, 200),
    ("POST", "/v2/repository/models/{model}/load", {"model": "m"}, {}, 403),
    ("POST", "/v2/logging", {}, {"log_info": True}, 403),
    ("POST", "/v1/chat/completions", {}, CHAT, 200),
    ("POST", "/v1/chat/completions", {}, CHAT | {"stream": True}, 200),
    ("POST", "/v1/chat/completions", {}, CHAT | {"model": "none"}, 404),
    ("POST", "/v1/messages", {}, CHAT | {"max_tokens": 5}, 200),
    ("POST", "/v1/messages", {}, CHAT | {"max_tokens": 5, "model": "none"}, 404),
    ("POST", "/v1/messages/count_tokens", {}, CHAT, 200),
    ("GET", "/v1/models", {}, None, 200),
    ("GET", "/v1/models/{model}", {"model": MODEL}, None, 200),
    ("GET", "/v1/models/{model}", {"model": "none"}, None, 404),
    ("POST", "/ofrep/v1/evaluate/flags", {}, {"context": {"targetingKey": "s"}}, 200),
    ("POST", "/ofrep/v1/evaluate/flags", {}, {"context": {}}, 400),
    ("POST", "/ofrep/v1/evaluate/flags/{key}", {"key": "move"}, {"context": {"targetingKey": "s"}}, 200),
    ("POST", "/ofrep/v1/evaluate/flags/{key}", {"key": "none"}, {"context": {"targetingKey": "s"}}, 404),
    ("POST", "/feedback", {}, {"request_id": "known", "value": 1}, 200),
    ("POST", "/feedback", {}, {"request_id": "unknown", "value": 1}, 404),
    ("POST", "/feedback", {}, {"value": "good"}, 400),
]


@pytest.mark.parametrize("method, path, names, body, status", REQUESTS, ids=lambda value: str(value)[:40])
def test_a_real_gateway_answers_by_it(
    gateway: GatewayProcess, method: str, path: str, names: dict[str, str], body: Any, status: int
) -> None:
    """Statuses, content types, bodies and fields of replies are those of the document, for success and failure."""
    operation = SCHEMA[path][method]
    media_type = {"media_type": "application/json"} if body is not None else {}
    extra = {"body": body} if body is not None else {}
    headers = {"x-session-id": f"s-{status}", "x-request-id": "known"}
    case = operation.Case(path_parameters=names, headers=headers, **extra, **media_type)
    with requests.Session() as session:
        session.trust_env = False
        response = case.call(base_url=gateway.http_url, timeout=120, session=session)
        assert response.status_code == status, response.text
        case.validate_response(response, checks=CHECKS)
    described = DOCUMENT["paths"][path][method.lower()]["responses"]
    named = described[str(status)]
    if "$ref" in named:
        named = DOCUMENT["components"]["responses"][named["$ref"].rpartition("/")[2]]
        assert response.headers["x-pointsman-reason"][0] in DOCUMENT["components"]["schemas"]["Reason"]["enum"]
    sent = {name for name in response.headers if name.startswith(("x-pointsman", "set-cookie", "x-request-id"))}
    allowed = {*named.get("headers", {}), *(("x-pointsman-route", "x-pointsman-engine") if status >= 400 else ())}
    assert sent <= allowed | {"x-pointsman-arm", "x-pointsman-pin", "set-cookie"}


def test_it_is_published(gateway: GatewayProcess, tmp_path: Path) -> None:
    """`pointsman openapi` writes both documents, and the admin port serves the same."""
    done = pointsman("openapi", str(tmp_path / "api"))
    assert done.returncode == 0, done.stderr
    written = {name: json.loads((tmp_path / f"api/{name}.json").read_text()) for name in ("inference", "admin")}
    assert plain_http.get(f"{gateway.admin_url}/openapi-inference.json").json() == written["inference"] == DOCUMENT
    assert plain_http.get(f"{gateway.admin_url}/openapi.json").json() == written["admin"]


def test_the_example_client_runs(gateway: GatewayProcess) -> None:
    """The example asks, keeps its arm by the cookie, rates an answer and reads a refusal, with httpx alone."""
    command = [
        sys.executable,
        "scripts/examples/inference_client.py",
        gateway.http_url,
        "--model",
        "m",
        "--chat",
        MODEL,
    ]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == lines[1]
    assert lines[0].split()[1] in ("old", "new")
    assert lines[2] == "rated: True"
    assert lines[3].startswith("chat: ")
    assert lines[4].startswith("refused: ")
