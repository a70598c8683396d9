"""Operator commands: requests, models, endpoints, the log level, the audit."""

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.support import plain_http
from tests.support.canned_engine import CannedEngine
from tests.support.canned_llm import MODEL, CannedLLM
from tests.support.command_line import pointsman
from tests.support.llm import rules_for
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

RULES = """
version: 1
engines: {{it: {{endpoints: ['{url}']}}}}
routes: [{{name: all, engine: it}}]
"""


def run(gateway: GatewayProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return pointsman(*arguments, "--admin", gateway.admin_url)


def test_a_request_is_shown_and_cancelled(start_gateway: Callable[..., GatewayProcess]) -> None:
    """`requests` lists a request and `cancel` ends it, with the reason for its client; an unknown name is reported."""
    with CannedEngine("one") as engine:
        gateway = start_gateway(RULES.format(url=engine.url), workers=2)
        replies: list[httpx.Response] = []

        def get_json() -> None:
            fields = {"x-sleep": "30", "x-request-id": "slow-1"}
            url = f"{gateway.http_url}/v2/models/m/infer"
            replies.append(plain_http.post(url, json={}, headers=fields, timeout=40))

        asking = threading.Thread(target=get_json)
        asking.start()
        assert eventually(lambda: "slow-1" in run(gateway, "requests").stdout)
        shown = run(gateway, "requests").stdout
        assert "asking" in shown and engine.url in shown and "/v2/models/m/infer" in shown
        done = run(gateway, "cancel", "slow-1")
        assert (done.returncode, done.stdout) == (0, "slow-1 is cancelled.\n"), done.stderr
        asking.join(120)
        assert (replies[0].status_code, replies[0].headers["x-pointsman-reason"]) == (499, "cancelled")
        again = run(gateway, "cancel", "slow-1")
        assert (again.returncode, again.stderr) == (1, "Refused: there is no request 'slow-1' under way\n")
        assert "No request is under way." in run(gateway, "requests").stdout


def test_a_translated_stream_is_cancelled(start_gateway: Callable[..., GatewayProcess], tmp_path: Path) -> None:
    """Cancelling a translated stream stops the engine and sends the client an error event."""
    with CannedLLM.start(tmp_path / "llm").running() as llm:
        llm.break_down("slow=2")
        gateway = start_gateway(rules_for(llm.http_url, engine={"dialects": ["chat"]}), workers=2)
        body = {"model": MODEL, "max_tokens": 500, "stream": True, "messages": [{"role": "user", "content": "count"}]}
        headers = {"x-request-id": "slow-2"}
        lines: list[str] = []
        with plain_http.stream(
            "POST", f"{gateway.http_url}/v1/messages", json=body, headers=headers, timeout=120
        ) as reply:
            try:
                for line in reply.iter_lines():
                    lines.append(line)
                    if len(lines) == 12:
                        done = run(gateway, "cancel", "slow-2")
                        assert done.returncode == 0, done.stderr
            except httpx.RemoteProtocolError:
                lines.append("<broken off>")
        assert lines[-1] == "<broken off>" and any("an operator has cancelled" in line for line in lines)
        assert eventually(lambda: [each["state"] for each in llm.seen()] == ["cancelled"])


def test_endpoints_are_added_weighed_and_removed(use_gateway: Callable[[str], GatewayProcess]) -> None:
    """Each change is a version of the rules with its reason, and the audit has them all."""
    gateway = use_gateway(RULES.format(url="http://127.0.0.1:1"))
    added = run(gateway, "endpoints", "add", "it", "http://127.0.0.1:2", "--weight", "2", "--reason", "room")
    assert (added.returncode, added.stdout) == (0, "http://127.0.0.1:2 is added to it: rules 2.\n"), added.stderr
    weighed = run(gateway, "endpoints", "weight", "it", "http://127.0.0.1:2", "0.5")
    assert weighed.stdout == "http://127.0.0.1:2 of it has weight 0.5: rules 3.\n", weighed.stderr
    assert "0.5" in run(gateway, "engines").stdout
    removed = run(gateway, "endpoints", "remove", "it", "http://127.0.0.1:2")
    assert removed.returncode == 0, removed.stderr
    refused = run(gateway, "endpoints", "remove", "it", "http://127.0.0.1:2")
    assert (refused.returncode, "has no endpoint" in refused.stderr) == (1, True)
    shown = run(gateway, "audit").stdout
    assert shown.index("404") < shown.index("/endpoints/weight") < shown.index("room")


def test_the_logs_level_is_set(use_gateway: Callable[[str], GatewayProcess]) -> None:
    """The log level is set and shown; an unknown level is refused."""
    gateway = use_gateway(RULES.format(url="http://127.0.0.1:1"))
    assert run(gateway, "log-level").stdout == "info\n"
    assert run(gateway, "log-level", "error").stdout == "error\n"
    assert plain_http.get(f"{gateway.admin_url}/log-level").json() == {"level": "error"}
    assert run(gateway, "log-level", "loud").returncode == 2


def test_models_are_shown_and_loaded(use_gateway: Callable[[str], GatewayProcess], tmp_path: Path) -> None:
    """`models` covers V2 engines and others and names an endpoint that does not answer; a failed load exits with 1."""
    with CannedLLM.start(tmp_path / "llm").running() as llm:
        rules = f"""
version: 1
engines:
  texts: {{protocol: openai, endpoints: ['{llm.http_url}']}}
  gone: {{endpoints: ['http://127.0.0.1:1']}}
routes: [{{name: texts, match: {{model: {MODEL}}}, engine: texts}}, {{name: all, engine: gone}}]
"""
        gateway = use_gateway(rules)
        assert eventually(lambda: MODEL in run(gateway, "models").stdout)
        assert "http://127.0.0.1:1 of gone does not tell" in run(gateway, "models").stderr
        failed = run(gateway, "load", "any", "--quorum", "majority")
        assert (failed.returncode, "0 of 1 endpoints have done it" in failed.stderr) == (1, True)
        assert "failed" in failed.stdout
        refused = run(gateway, "unload", MODEL)
        assert (refused.returncode, "engines of protocol openai" in refused.stderr) == (1, True)


def test_budgets_are_shown_and_reset(use_gateway: Callable[[str], GatewayProcess]) -> None:
    """`budgets` shows what accounts have used; a reset of an account needs one that is known."""
    budgets = "budgets: [{name: daily, per: tenant, window: day, requests: 2}]\n"
    with CannedEngine("it") as engine:
        gateway = use_gateway(RULES.format(url=engine.url) + budgets)
        assert "No budget has been used" in run(gateway, "budgets").stdout
        infer = f"{gateway.http_url}/v2/models/m/infer"
        assert plain_http.post(infer, json={}, headers={"x-tenant": "acme"}).status_code == 200
        shown = run(gateway, "budgets").stdout
        assert "tenant acme" in shown and "1 of 2 requests" in shown and "50%" in shown
        reset = run(gateway, "budgets", "reset", "daily", "acme")
        text = "Budget daily of acme starts over; it had used 1 requests, 0 tokens, 0 spend.\n"
        assert (reset.returncode, reset.stdout) == (0, text), reset.stderr
        refused = run(gateway, "budgets", "reset", "daily", "nobody")
        assert (refused.returncode, "budget 'daily' has no account 'nobody'" in refused.stderr) == (1, True)


def test_limits_are_shown_and_changed(use_gateway: Callable[[str], GatewayProcess]) -> None:
    """Fields of a limit that are not named stay; an error names the field."""
    rules = RULES.format(url="http://127.0.0.1:1") + "limits: [{name: few, per: tenant, requests_per_second: 5}]\n"
    gateway = use_gateway(rules)
    number = plain_http.get(f"{gateway.admin_url}/rules").json()["number"]
    shown = run(gateway, "limits").stdout
    assert "few" in shown and "per tenant" in shown and "5 requests/s" in shown
    changed = run(gateway, "limits", "set", "few", "--concurrency", "3", "--without", "requests_per_second")
    assert (changed.returncode, changed.stdout) == (0, f"Limit few is changed: rules {number + 1}.\n"), changed.stderr
    shown = run(gateway, "limits").stdout
    assert "3 at the same time" in shown and "requests/s" not in shown
    refused = run(gateway, "limits", "set", "few")
    assert (refused.returncode, "say what is to change" in refused.stderr) == (1, True)
    refused = run(gateway, "limits", "set", "many", "--burst", "1")
    assert (refused.returncode, "there is no limit 'many'; there are few" in refused.stderr) == (1, True)
