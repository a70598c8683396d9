"""`pointsman rules`, `recordings` and `replay` at a real gateway."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from gateway.cli.admin_client import print_table
from gateway.cli.app import make_app
from tests.support import plain_http
from tests.support.canned_engine import CannedEngine
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

app = make_app()

StartGateway = Callable[..., GatewayProcess]


@pytest.fixture
def engine() -> Iterator[CannedEngine]:
    with CannedEngine("one") as running:
        yield running


def rules(engine: CannedEngine, route: str) -> str:
    return (
        "version: 1\n"
        f"engines: {{it: {{endpoints: ['{engine.url}'], health: {{interval: 0}}}}}}\n"
        f"routes: [{{name: {route}, engine: it}}]\n"
    )


def run(gateway: GatewayProcess, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--admin", gateway.admin_url])


def said(gateway: GatewayProcess, *words: str, code: int = 0) -> str:
    result = run(gateway, *words)
    assert result.exit_code == code, result.output
    return result.output


def test_versions_by_the_command_line(start_gateway: StartGateway, engine: CannedEngine, tmp_path: Path) -> None:
    """Rules are validated, activated, listed, shown, compared, exported and rolled back; a mistake is reported with its
    place."""
    gateway = start_gateway(rules(engine, "first"))
    folder = tmp_path / "candidate"
    folder.mkdir()
    file = folder / "rules.yaml"

    file.write_text(rules(engine, "second").replace("engine: it", "engine: its"))
    assert "rules.yaml:3:" in said(gateway, "rules", "validate", str(file), code=1)
    refused = said(gateway, "rules", "activate", str(file), code=1)
    assert "unknown engine 'its': did you mean 'it'?" in refused
    assert "Refused: the rules in force stay" in refused

    file.write_text(rules(engine, "second"))
    output = said(gateway, "rules", "validate", str(folder))
    assert "+routes: [{name: second, engine: it}]" in output and "These rules can be activated." in output
    output = said(gateway, "rules", "activate", str(folder), "--reason", "better")
    assert "Version 2 is in force, at this gateway alone." in output and "pointsman rules export" in output
    listed = said(gateway, "rules", "list")
    assert "2 *" in listed and "better" in listed and "local" in listed
    assert "name: first" in said(gateway, "rules", "show", "1")
    assert "name: second" in said(gateway, "rules", "show")
    assert "-routes: [{name: first, engine: it}]" in said(gateway, "rules", "diff")
    assert "They say the same." in said(gateway, "rules", "diff", "2", "2")

    out = tmp_path / "out"
    assert str(out / "rules.yaml") in said(gateway, "rules", "export", str(out))
    assert (out / "rules.yaml").read_text() == rules(engine, "second")
    assert "--force writes over it" in said(gateway, "rules", "export", str(out), code=1)
    said(gateway, "rules", "export", str(out), "--force")
    assert said(gateway, "rules", "export") == rules(engine, "second")

    assert "Version 3 is in force" in said(gateway, "rules", "rollback")
    assert "Version 4 is in force" in said(gateway, "rules", "activate", "--version", "2")
    assert "there is no version 99" in said(gateway, "rules", "activate", "--version", "99", code=1)
    assert said(gateway, "rules", "activate", code=2)


def test_recordings_by_the_command_line(start_gateway: StartGateway, engine: CannedEngine, tmp_path: Path) -> None:
    """Recordings are started, listed, fetched, replayed by the gateway and locally, stopped and deleted."""
    gateway = start_gateway(rules(engine, "first"))
    assert "100.00% of the requests" in said(gateway, "recordings", "start", "r", "--sample", "100%", "--seconds", "60")
    plain_http.post(gateway.http_url + "/v2/models/m/infer", content=b"{}", timeout=20)
    eventually(lambda: plain_http.get(gateway.admin_url + "/recordings/r").json()["facts"] == 1)
    assert "it runs" in said(gateway, "recordings", "list")
    file = tmp_path / "rules.yaml"
    file.write_text(rules(engine, "second"))
    output = said(gateway, "rules", "replay", "r", str(file))
    assert "1 facts: 0 unchanged, 1 changed" in output and "second" in output
    assert "1 facts: 1 unchanged" in said(gateway, "rules", "replay", "r", "--version", "1")
    assert "stopped" in said(gateway, "recordings", "stop", "r")

    recording = tmp_path / "r.jsonl"
    recording.write_text(said(gateway, "recordings", "fetch", "r"))
    result = CliRunner().invoke(app, ["replay", str(recording), "--rules", str(file)])
    assert (result.exit_code, "1 changed" in result.output) == (0, True), result.output
    assert "deleted" in said(gateway, "recordings", "stop", "r")
    assert "There is no recording." in said(gateway, "recordings", "list")
    assert "Refused: there is no recording 'r'" in said(gateway, "recordings", "fetch", "r", code=1)


def test_replay_without_a_gateway_says_what_is_wrong(tmp_path: Path) -> None:
    """A missing file, a file that is not a recording, and rules with a mistake each exit with 1 and one line."""
    file = tmp_path / "rules.yaml"
    file.write_text("version: 1\n")
    bad = CliRunner().invoke(app, ["replay", str(tmp_path / "none"), "--rules", str(file)])
    assert (bad.exit_code, "there are no routes" in bad.output) == (1, True)
    file.write_text("version: 1\nengines: {e: {endpoints: ['http://a:1']}}\nroutes: [{name: r, engine: e}]\n")
    bad = CliRunner().invoke(app, ["replay", str(tmp_path / "none"), "--rules", str(file)])
    assert (bad.exit_code, "cannot be read: No such file" in bad.output) == (1, True)
    bad = CliRunner().invoke(app, ["replay", str(file), "--rules", str(file)])
    assert (bad.exit_code, "line 1 cannot be read" in bad.output) == (1, True)


def test_files_of_one_name_are_not_exported_over_each_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two files of one name are not exported into one folder, even with --force."""
    files = {"a/rules.yaml": "a", "b/rules.yaml": "b"}
    monkeypatch.setattr("gateway.cli.admin_client.Gateway.get", lambda *_, **__: {"files": files})
    result = CliRunner().invoke(app, ["rules", "export", str(tmp_path / "out"), "--force"])
    assert result.exit_code == 1 and "have one name" in result.output
    assert not (tmp_path / "out").exists()


def test_what_somebody_has_written_is_spelt(capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters in a version's reason are escaped on the terminal."""
    print_table(("reason",), [("why\x1b[2J\nnow é",)], "")
    assert "why\\x1b[2J\\nnow é" in capsys.readouterr().out
