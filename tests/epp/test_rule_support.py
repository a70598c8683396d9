"""What rules an endpoint picker refuses or leaves out, each named with its place."""

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.config.rules import LoadedRules, load_rules
from gateway.epp.rule_support import rest_address, supported
from gateway.yaml.problems import Severity
from tests.support.child import REPOSITORY

ENGINE = 'engines:\n  e: {endpoints: ["http://10.0.0.1:8000"]'
ROUTE = "\nroutes: [{name: r, engine: e}]\n"
LIMIT = "limits: [{name: l, requests_per_second: 1}]\n"


def loaded(tmp_path: Path, text: str) -> LoadedRules:
    path = tmp_path / "rules.yaml"
    path.write_text("version: 1\n" + text)
    found = load_rules([path])
    assert found.rules is not None, found.problems
    return found


@pytest.mark.parametrize(
    "text, line, words",
    [
        (ENGINE + "}" + ROUTE + LIMIT, 5, "limit 'l'"),
        ('engines:\n  e: {endpoints: ["http://gpu-1:8000"]}' + ROUTE, 3, "dns: 'gpu-1:8000'"),
        ('engines:\n  e: {endpoints: [{url: "http://10.0.0.1", grpc: "gpu:1"}]}' + ROUTE, 3, "gpu:1"),
    ],
)
def test_what_a_picker_cannot_enforce_is_refused(tmp_path: Path, text: str, line: int, words: str) -> None:
    """Limits, conversations, and endpoints that proxies cannot reach are errors with file and line."""
    found = supported(loaded(tmp_path, text))
    assert found.rules is None
    (problem,) = found.errors
    assert problem.location.line == line
    assert words in problem.message


def test_callers_and_conversations_are_refused(tmp_path: Path) -> None:
    """A picker knows no callers and stores no turns."""
    digest = "sha256:" + "0" * 64
    (tmp_path / "clients.yaml").write_text(f"- {{id: '0123456789ab', tenant: t, hash: '{digest}'}}\n")
    text = (
        ENGINE
        + ", protocol: openai}\nauth: {keys: clients.yaml}\nroutes:\n  - {name: r, engine: e, session: {history: true}}"
    )
    found = supported(loaded(tmp_path, text))
    assert found.rules is None
    messages = [problem.message for problem in found.errors]
    assert any("identifies no callers" in each for each in messages)
    assert any("stores conversations" in each for each in messages)


@pytest.mark.parametrize("key, what", [("api_key: secret", "api_key"), ("headers: {x-api-key: s}", "'x-api-key'")])
def test_credentials_are_for_proxies_with_a_certificate(tmp_path: Path, key: str, what: str) -> None:
    """The answers have an engine's credentials: they need --tls-client-ca."""
    found = loaded(tmp_path, ENGINE + f", {key}}}" + ROUTE)
    (problem,) = supported(found).errors
    assert what in problem.message
    assert "secret" not in problem.message
    assert supported(found, is_closed=True).errors == ()


def test_what_only_helps_is_left_out(tmp_path: Path) -> None:
    """Fallbacks, shadows, hedging and replay are warnings, and gone from the rules that the picker follows."""
    text = """
engines:
  a: {endpoints: ["http://10.0.0.1:8000", "http://10.0.0.2:8000"], hedging: {delay: 1s}, retry: {idempotent: infer}}
  b: {endpoints: ["http://10.0.0.3:8000"], wait_for_endpoint: 5s}
routes:
  - name: r
    engine: a
    fallback: [{engine: b}]
    shadow: {engine: b, sample: 5%}
    session: {sequences: replay}
"""
    found = supported(loaded(tmp_path, text))
    assert found.rules is not None
    warnings = [problem.message for problem in found.problems if problem.severity is Severity.WARNING]
    for word in ("fallback", "shadow", "replay", "hedging", "wait_for_endpoint"):
        assert any(word in each for each in warnings), (word, warnings)
    (route,) = found.rules.routes
    assert (route.fallback, route.shadow, route.session.replay) == ((), None, None)
    assert found.rules.engines["a"].hedging is None
    assert not found.rules.engines["b"].wait_for_endpoint


@pytest.mark.parametrize(
    "url, address",
    [
        ("http://10.0.0.1:8000", "10.0.0.1:8000"),
        ("http://10.0.0.1", "10.0.0.1:80"),
        ("https://10.0.0.1", "10.0.0.1:443"),
        ("http://[fd00::1]:8000", "[fd00::1]:8000"),
        ("grpc://10.0.0.1:8001", None),
    ],
)
def test_addresses_as_proxies_take_them(url: str, address: str | None) -> None:
    """An endpoint is named by its address and port, IPv6 in brackets."""
    assert rest_address(url) == address


def test_the_command_names_file_and_line(tmp_path: Path) -> None:
    """`pointsman epp` does not start with rules that it cannot enforce, and says where they stand."""
    rules = tmp_path / "rules.yaml"
    rules.write_text("version: 1\n" + ENGINE + "}" + ROUTE + LIMIT)
    command = [sys.executable, "-m", "gateway", "epp", "--rules", str(rules)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=240)
    assert done.returncode == 2
    assert f"{rules}:5:" in done.stdout
    assert "the endpoint picker enforces no limits" in done.stdout
