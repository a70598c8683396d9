"""`pointsman engines` and `pointsman experiments`, against a running gateway."""

import subprocess
import sys
from collections.abc import Callable

from tests.support.canned_engine import CannedEngine
from tests.support.servers import GatewayProcess

RULES = """
version: 1
engines: {{it: {{endpoints: ['{url}']}}}}
routes: [{{name: split, experiment: move}}]
experiments:
  move: {{arms: [{{name: old, engine: it, weight: 3}}, {{name: new, engine: it, weight: 1, model: other}}]}}
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_what_a_gateway_knows_is_shown(start_gateway: Callable[..., GatewayProcess]) -> None:
    """Endpoints with their condition, and arms with their share of the traffic, whole even in a pipe."""
    with CannedEngine("one") as engine:
        gateway = start_gateway(RULES.format(url=engine.url))
        shown = run("engines", "--admin", gateway.admin_url)
        assert shown.returncode == 0, shown.stderr
        assert engine.url in shown.stdout
        assert "ready" in shown.stdout
        shown = run("experiments", "--admin", gateway.admin_url)
        assert shown.returncode == 0, shown.stderr
        assert "75.0%" in shown.stdout
        assert "other" in shown.stdout


def test_a_gateway_that_does_not_answer_is_told() -> None:
    """Where no gateway answers, one line says so and names the option; there is no traceback."""
    shown = run("engines", "--admin", "http://127.0.0.1:1")
    assert shown.returncode == 1
    assert "No gateway answers at http://127.0.0.1:1" in shown.stderr
    assert "--admin" in shown.stderr
    assert "Traceback" not in shown.stderr
