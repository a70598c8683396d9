"""`pointsman engines`, `pointsman experiments` and `pointsman drain`, against a running gateway."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.canned_engine import CannedEngine
from tests.support.canned_llm import MODEL, CannedLLM
from tests.support.command_line import pointsman
from tests.support.llm import rules_for
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

RULES = """
version: 1
engines: {{it: {{endpoints: ['{url}']}}}}
routes: [{{name: split, experiment: move}}]
experiments:
  move: {{arms: [{{name: old, engine: it, weight: 3}}, {{name: new, engine: it, weight: 1, model: other}}]}}
"""


ODD_RULES = """
version: 1
engines: {it: {endpoints: ['http://[fe80::1]:8000'], health: {interval: 0}}}
routes: [{name: split, experiment: move}]
experiments: {move: {arms: [{name: old, engine: it, weight: 1, model: 'a[/b]'}]}}
"""


def test_what_a_gateway_knows_is_shown(use_gateway: Callable[[str], GatewayProcess]) -> None:
    """The tables show endpoints with their condition, and arms with their share, uncut in a pipe."""
    with CannedEngine("one") as engine:
        gateway = use_gateway(RULES.format(url=engine.url))
        command = [sys.executable, "-m", "gateway", "engines", "--admin", gateway.admin_url]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert shown.returncode == 0, shown.stderr
        assert engine.url in shown.stdout
        assert "ready" in shown.stdout
        shown = pointsman("experiments", "--admin", gateway.admin_url)
        assert shown.returncode == 0, shown.stderr
        assert "75.0%" in shown.stdout
        assert "other" in shown.stdout


def test_an_endpoint_is_drained_by_hand(use_gateway: Callable[[str], GatewayProcess]) -> None:
    """`pointsman drain` stops new requests to an endpoint, `pointsman engines` shows that, and --undo reverses it."""
    with CannedEngine("one") as engine:
        gateway = use_gateway(RULES.format(url=engine.url))
        done = pointsman("drain", "it", engine.url, "--admin", gateway.admin_url)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"{engine.url} of it gets no new work, at this gateway alone")
        assert "ready, drained" in pointsman("engines", "--admin", gateway.admin_url).stdout
        done = pointsman("drain", "it", engine.url, "--undo", "--admin", gateway.admin_url)
        assert done.returncode == 0
        assert "drained" not in pointsman("engines", "--admin", gateway.admin_url).stdout
        done = pointsman("drain", "it", "http://nowhere:1", "--admin", gateway.admin_url)
        assert done.returncode == 1
        assert done.stderr == f"Refused: engine 'it' has no endpoint http://nowhere:1; it has {engine.url}\n"


def test_what_language_models_tell_is_shown(use_gateway: Callable[[str], GatewayProcess], tmp_path: Path) -> None:
    """The table shows an engine's models, and its load where the rules enable it."""
    with CannedLLM.start(tmp_path / "engine").running() as engine:
        gateway = use_gateway(rules_for(engine.http_url, engine={"load": {"source": "metrics"}}))
        eventually(lambda: "0 run, 0 wait" in pointsman("engines", "--admin", gateway.admin_url).stdout)
        assert MODEL in pointsman("engines", "--admin", gateway.admin_url).stdout


def test_a_gateway_that_does_not_answer_is_told() -> None:
    """When no gateway answers, one line names the option, without a traceback."""
    shown = pointsman("engines", "--admin", "http://127.0.0.1:1")
    assert shown.returncode == 1
    assert "No gateway answers at http://127.0.0.1:1" in shown.stderr
    assert "--admin" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_names_are_shown_as_they_are(use_gateway: Callable[[str], GatewayProcess]) -> None:
    """Square brackets in an address or a name are printed as they are."""
    gateway = use_gateway(ODD_RULES)
    shown = pointsman("engines", "--admin", gateway.admin_url)
    assert "http://[fe80::1]:8000" in shown.stdout
    assert "unknown" in shown.stdout
    shown = pointsman("experiments", "--admin", gateway.admin_url)
    assert shown.returncode == 0, shown.stderr
    assert "a[/b]" in shown.stdout


def test_a_stranger_at_the_address_is_told() -> None:
    """A server that is not a gateway's admin API is reported in one line."""
    with CannedEngine("stranger") as stranger:
        shown = pointsman("experiments", "--admin", stranger.url)
    assert shown.returncode == 1
    assert "/experiments is answered with something else" in shown.stderr
    assert shown.stderr.count("\n") == 1


def test_the_inference_port_is_not_the_admin_port(use_gateway: Callable[[str], GatewayProcess]) -> None:
    """The inference port given as --admin is reported in one line with its status."""
    gateway = use_gateway(ODD_RULES)
    shown = pointsman("engines", "--admin", gateway.http_url)
    assert shown.returncode == 1
    assert "/engines is answered 404" in shown.stderr
    assert shown.stderr.count("\n") == 1
