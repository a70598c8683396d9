"""The sources of a command's options, on the real commands."""

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperCommand, TyperGroup
from typer.testing import CliRunner

from engines.cli.app import app as engines_app
from gateway.cli import serve as module
from gateway.cli.app import make_app
from gateway.config.settings import Limits, Settings
from gateway.options.sources import options_of, unknown_variables, variable_prefix

gateway_app = make_app()
REPOSITORY = Path(__file__).parents[2]
QUIET = {"COLUMNS": "250", "NO_COLOR": "1", "TERM": "dumb"}


def command(name: str) -> Any:
    group: Any = typer.main.get_command(gateway_app if name == "serve" else engines_app)
    found = group.commands[name]
    assert isinstance(found, TyperCommand | TyperGroup)
    return found


@pytest.mark.parametrize("name", ["serve", "host", "llm"])
def test_each_option_has_a_variable(name: str) -> None:
    """The variable of each option is the command's prefix and the option's name, and `--help` says so."""
    prefix = variable_prefix(name)
    options = dict(options_of(command(name)))
    assert len(options) > 25
    variables = {option: prefix + option.upper().replace("-", "_") for option in options}
    variables |= {"kv-store": "POINTSMAN_KV_STORE"} if name == "llm" else {}
    assert {option: param.envvar for option, param in options.items()} == variables
    app = gateway_app if name == "serve" else engines_app
    shown = CliRunner().invoke(app, [name, "--help"], env=QUIET).output
    assert f"a variable, too, {prefix} and its name in capitals" in re.sub(r"\s+", " ", shown)
    assert ("POINTSMAN_KV_STORE" in shown) == (name == "llm")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Settings, list[Path]]]:
    """The settings and rules of gateways that would start."""
    calls: list[tuple[Settings, list[Path]]] = []

    def start(settings: Settings, rules: list[Path], ready_file: Path | None) -> int:
        calls.append((settings, rules))
        return 0

    monkeypatch.setattr(module, "_run", start)
    return calls


def serve(*arguments: str, **environment: str) -> Any:
    return CliRunner().invoke(gateway_app, ["serve", *arguments], env={**QUIET, **environment})


def test_the_first_source_wins(started: list[Any], tmp_path: Path) -> None:
    """The command line comes before variables, these before the settings file, and that before the default."""
    file = tmp_path / "settings.yaml"
    file.write_text("rules: [a.yaml, b.yaml]\nworkers: 2\nhttp_port: 2\ngrpc-port: 2\naccess-log: true\n")
    variables = {"POINTSMAN_SETTINGS": str(file), "POINTSMAN_WORKERS": "3", "POINTSMAN_HTTP_PORT": "3"}
    result = serve("--workers", "4", **variables)
    assert result.exit_code == 0, result.output
    expected = Settings(workers=4, http_port=3, grpc_port=2, access_log=True)
    assert started == [(expected, [Path("a.yaml"), Path("b.yaml")])]


def test_every_kind_of_value_has_all_sources(started: list[Any], tmp_path: Path) -> None:
    """Durations, sizes, flags, choices, lists and URLs mean the same in a variable and in TOML."""
    variables = {
        "POINTSMAN_RULES": "a.yaml:b.yaml",
        "POINTSMAN_DRAIN_DELAY": "2m",
        "POINTSMAN_MAX_BODY_BYTES": "2MiB",
        "POINTSMAN_NAME_DECISION": "false",
        "POINTSMAN_READY_WHEN": "all",
        "POINTSMAN_REDACT": "a b",
        "POINTSMAN_REDIS": "redis://db",
    }
    file = tmp_path / "settings.toml"
    file.write_text(
        'rules = ["a.yaml", "b.yaml"]\ndrain-delay = "2m"\nmax-body-bytes = "2MiB"\nname-decision = false\n'
        'ready-when = "all"\nredact = ["a", "b"]\nredis = "redis://db"\n'
    )
    for result in (serve(**variables), serve("--settings", str(file))):
        assert result.exit_code == 0, result.output
    limits = Limits(max_body_bytes=2 * 1024 * 1024)
    settings = Settings(
        drain_delay=120.0, limits=limits, name_decision=False, ready_when="all", redact=("a", "b"), redis="redis://db"
    )
    assert started == [(settings, [Path("a.yaml"), Path("b.yaml")])] * 2


@pytest.mark.parametrize(
    "text, complaint",
    [
        ("htp-port: 1", "settings.yaml:1:1: error: unknown option 'htp-port': did you mean 'http-port'?"),
        ("http-port: 99999", "settings.yaml:1:12: error: --http-port: 99999 is not a port: 0 to 65535"),
        ("workers: 0", "settings.yaml:1:10: error: --workers: "),
        ("workers: [1, 2]", "settings.yaml:1:10: error: --workers is one value, not a list"),
        ("ready-when: never", "settings.yaml:1:13: error: --ready-when: "),
        ("settings: other.yaml", "unknown option 'settings'"),
    ],
)
def test_a_wrong_setting_is_named(started: list[Any], tmp_path: Path, text: str, complaint: str) -> None:
    """A wrong setting exits with 2 before anything starts; the error has its file, line and option."""
    (file := tmp_path / "settings.yaml").write_text(text)
    result = serve("--rules", "a.yaml", "--settings", str(file))
    assert (result.exit_code, started) == (2, [])
    assert complaint in re.sub(r"\s+", " ", re.sub(r" *│\n?│? *", " ", result.output)).replace(f"{tmp_path}/", "")


def test_a_settings_file_is_a_file(started: list[Any], tmp_path: Path) -> None:
    """A folder or a missing file is refused."""
    for path in (tmp_path, tmp_path / "missing.yaml"):
        assert serve("--rules", "a.yaml", "--settings", str(path)).exit_code == 2
    assert started == []


def test_secrets_are_not_shown(started: list[Any], tmp_path: Path) -> None:
    """Neither errors nor --help show the password of a URL or the key of a restriction."""
    (file := tmp_path / "settings.yaml").write_text("redis: redis://me:secret@db:x\n")
    assert "me:secret" not in serve("--rules", "a.yaml", "--settings", str(file)).output
    file.write_text("redis: redis://me:secret@db\nhttp-restricted-api: ['trace:k=secret']\n")
    shown = serve("--settings", str(file), "--help")
    assert shown.exit_code == 0
    assert "secret@" not in shown.output and "k=secret" not in shown.output


def test_unknown_variables_are_named() -> None:
    """A variable with the command's prefix that nothing reads is reported with the nearest one; its value is not.
    Those of other parts, and those that Kubernetes makes for a Service, are none of these."""
    environment = {"POINTSMAN_HTPP_PORT": "secret", "POINTSMAN_WORKERS": "2", "OTHER": "1"}
    environment |= {"POINTSMAN_PORT": "tcp://10.0.0.1:8000", "POINTSMAN_SERVICE_HOST": "10.0.0.1"}
    environment |= {"POINTSMAN_PORT_8000_TCP_ADDR": "10.0.0.1", "POINTSMAN_GATEWAY_SERVICE_PORT_HTTP": "8000"}
    environment |= {"POINTSMAN_HOST_LOAD_MODL": "m"}
    assert unknown_variables(command("serve"), environment) == [
        "POINTSMAN_HTPP_PORT is no option: did you mean POINTSMAN_HTTP_PORT?"
    ]
    assert unknown_variables(command("host"), environment) == [
        "POINTSMAN_HOST_LOAD_MODL is no option: did you mean POINTSMAN_HOST_LOAD_MODEL?"
    ]


def test_the_variables_of_other_parts_are_known() -> None:
    """No variable that the sources name is reported as unknown."""
    sources = [file for package in ("gateway", "engines") for file in (REPOSITORY / package).rglob("*.py")]
    named = {name for file in sources for name in re.findall(r"POINTSMAN_[A-Z_]+[A-Z]", file.read_text())}
    assert len(named) > 10
    assert unknown_variables(command("serve"), dict.fromkeys(named, "")) == []


def test_the_host_reads_its_settings(tmp_path: Path) -> None:
    """`pointsman host` takes options from variables and a settings file, as `serve` does."""
    (file := tmp_path / "settings.yaml").write_text("model-repository: [/nowhere]\nload-model: m\n")
    result = CliRunner().invoke(engines_app, ["host"], env={**QUIET, "POINTSMAN_HOST_SETTINGS": str(file)})
    assert result.exit_code == 2
    assert "requires --model-control-mode=explicit" in result.output


def test_the_llm_reads_its_settings(tmp_path: Path) -> None:
    """`pointsman llm` does, too."""
    (file := tmp_path / "settings.toml").write_text('model = "/nowhere"\n')
    result = CliRunner().invoke(engines_app, ["llm", "--settings", str(file)], env=QUIET)
    assert result.exit_code == 1
    assert "--model /nowhere: there is no such folder" in result.output
