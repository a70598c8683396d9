"""The command line of `pointsman serve`."""

import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli import serve as module
from gateway.cli.app import make_app
from gateway.cli.serve import serve
from gateway.cli.serve_options import PANELS
from gateway.config.operation_access import OperationAccess
from gateway.config.settings import Limits, Settings
from gateway.net.listener_tls import ListenerTls
from gateway.protocol.restricted_apis import RestrictedApis

app = make_app()

run = CliRunner().invoke

EVERY_CONTROL = ("load", "unload", "logging", "trace", "shared-memory")


def allowing(*names: str) -> Settings:
    return Settings(operation_access=OperationAccess(frozenset(names)))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Settings, list[Path], Path | None]]:
    """Records the settings of gateways instead of starting them."""
    calls: list[tuple[Settings, list[Path], Path | None]] = []

    def start(settings: Settings, rules: list[Path], ready_file: Path | None) -> int:
        calls.append((settings, rules, ready_file))
        return 0

    monkeypatch.setattr(module, "_run", start)
    return calls


def test_every_setting_is_an_option() -> None:
    """Every setting has a command-line option of the same name."""
    options = set(inspect.signature(serve).parameters)
    assert {field.name for field in fields(Settings)} - {
        "tls",
        "admin_tls",
        "limits",
        "operation_access",
        "tracing",
    } <= options
    assert {field.name for field in fields(Limits)} <= options


def test_defaults_are_stated_once(started: list[Any]) -> None:
    """A gateway with rules and no options runs with the settings' own defaults."""
    assert run(app, ["serve", "--rules", "a.yaml", "--rules", "more"]).exit_code == 0
    assert started == [(Settings(), [Path("a.yaml"), Path("more")], None)]


@pytest.mark.parametrize(
    "options, settings",
    [
        ("--max-body-bytes 64MiB", Settings(limits=Limits(max_body_bytes=64 * 1024 * 1024))),
        ("--header-timeout 500ms", Settings(limits=Limits(header_timeout=0.5))),
        ("--drain-timeout 2m", Settings(drain_timeout=120.0)),
        ("--hang-timeout 0s", Settings(hang_timeout=0.0)),
        ("--http-port 0 --admin-port 0 --grpc-port 0", Settings(http_port=0, admin_port=0, grpc_port=0)),
        ("--rules-api-env A,B --rules-api-env C_1", Settings(rules_api_env=("A", "B", "C_1"))),
        ("--workers 4 --host 0.0.0.0", Settings(workers=4, host="0.0.0.0")),
        ("--access-log --log-format json", Settings(access_log=True, log_format="json")),
        ("--no-name-decision --trust-forwarded", Settings(name_decision=False, trust_forwarded=True)),
        ("--ready-when all --drain-delay 10s", Settings(ready_when="all", drain_delay=10.0)),
        ("--allow-control load,trace --allow-control unload", allowing("load", "unload", "trace")),
        ("--allow-control all", allowing(*EVERY_CONTROL)),
        (
            "--http-restricted-api trace,health:k=v --grpc-restricted-protocol trace:k=w",
            Settings(
                operation_access=OperationAccess(
                    http=RestrictedApis({"trace": ("k", "v"), "health": ("k", "v")}),
                    grpc=RestrictedApis({"trace": ("triton-grpc-protocol-k", "w")}),
                )
            ),
        ),
        ("--id models", Settings(id="models")),
        ("--redis off", Settings(redis="off")),
        ("--redis redis://db:6379/1 --redis-deadline 2ms", Settings(redis="redis://db:6379/1", redis_deadline=0.002)),
        ("--redis-memory-bytes 1GiB --data-dir d", Settings(redis_memory_bytes=1 << 30, data_dir=Path("d"))),
        ("--redact X-Key --redact user", Settings(redact=("x-key", "user"))),
        ("--tls-cert c.pem --tls-key k.pem", Settings(tls=ListenerTls(("c.pem",), ("k.pem",)))),
        (
            "--tls-cert c.pem --tls-key k.pem --tls-client-ca a.pem",
            Settings(tls=ListenerTls(("c.pem",), ("k.pem",), "a.pem")),
        ),
        (
            "--tls-cert c.pem --tls-key k.pem --tls-client-ca a.pem --tls-client-auth optional",
            Settings(tls=ListenerTls(("c.pem",), ("k.pem",), "a.pem", client_auth="optional")),
        ),
        (
            "--tls-cert c.pem --tls-key k.pem --tls-client-ca a.pem --tls-client-auth none",
            Settings(tls=ListenerTls(("c.pem",), ("k.pem",))),
        ),
    ],
)
def test_options_become_settings(started: list[Any], options: str, settings: Settings) -> None:
    """Sizes and durations have units, as in rule files."""
    result = run(app, ["serve", "--rules", "a.yaml", *options.split()])
    assert result.exit_code == 0, result.output
    assert started[0][0] == settings


@pytest.mark.parametrize(
    "options, complaint",
    [
        ("", "--rules"),
        ("--rules a.yaml --max-body-bytes 5parsecs", "5parsecs"),
        ("--rules a.yaml --drain-timeout soon", "soon"),
        ("--rules a.yaml --workers 0", "--workers"),
        ("--rules a.yaml --ready-when never", "never"),
        ("--rules a.yaml --redis yes", "a Redis URL begins with one of redis://"),
        ("--rules a.yaml --redis redis+sentinel://one", "Sentinels know the master by a name"),
        ("--rules a.yaml --redis-memory-bytes 0", "1MiB at the least"),
        (
            "--rules a.yaml --allow-control load,burn",
            "--allow-control knows no operation 'burn'; there are load, unload",
        ),
        ("--rules a.yaml --http-restricted-api wealth:k=v", "unknown restricted api 'wealth'"),
        ("--rules a.yaml --tls-cert c.pem", "--tls-key"),
        ("--rules a.yaml --tls-client-ca a.pem", "--tls-cert"),
        ("--rules a.yaml --tls-client-auth optional", "--tls-cert"),
        ("--rules a.yaml --tls-client-auth maybe", "'maybe' is not one of none, optional, required"),
        ("--rules a.yaml --tls-cert c.pem --tls-key k.pem --tls-client-auth optional", "needs --tls-client-ca"),
    ],
)
def test_a_wrong_option_is_named(started: list[Any], options: str, complaint: str) -> None:
    """A wrong option exits with 2 before anything starts, and the error names it."""
    result = run(app, ["serve", *options.split()], env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
    assert result.exit_code == 2
    assert complaint in result.output
    assert started == []


def test_a_redis_may_be_told_where_no_list_of_processes_shows_it(started: list[Any]) -> None:
    """POINTSMAN_REDIS may hold the URL; neither the error for a wrong one nor the settings' repr shows the password."""
    url = "rediss://me:secret@db"
    assert run(app, ["serve", "--rules", "a.yaml"], env={"POINTSMAN_REDIS": url}).exit_code == 0
    assert started[0][0].redis == url
    assert "secret" not in repr(started[0][0])
    result = run(app, ["serve", "--rules", "a.yaml"], env={"POINTSMAN_REDIS": "redis://me:secret@db:x"})
    assert result.exit_code == 2
    assert "secret" not in result.output


def test_restrictions_may_be_told_where_no_list_of_processes_shows_them(started: list[Any]) -> None:
    """The variables hold the restrictions, whose keys the settings' repr does not show."""
    environment = {
        f"POINTSMAN_{name}": "trace:k=secret" for name in ("HTTP_RESTRICTED_API", "GRPC_RESTRICTED_PROTOCOL")
    }
    assert run(app, ["serve", "--rules", "a.yaml"], env=environment).exit_code == 0
    access = started[0][0].operation_access
    assert (access.http.headers, access.grpc.headers) == ({b"k"}, {b"triton-grpc-protocol-k"})
    assert "secret" not in repr(started[0][0])


def test_the_command_line_imports_little() -> None:
    """`pointsman --help` imports neither the server nor the HTTP client libraries."""
    program = "import sys, gateway.cli; print(*{'fastapi', 'httpx', 'uvicorn', 'numpy', 'uvloop'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("option", ["--http-port", "--grpc-port", "--admin-port"])
@pytest.mark.parametrize("port", ["99999", "-1", "http"])
def test_a_port_has_bounds(started: list[Any], option: str, port: str) -> None:
    """A number that is no port is refused with the option, before anything starts."""
    refused = run(app, ["serve", "--rules", "a.yaml", option, port])
    assert (refused.exit_code, started) == (2, [])
    assert option in refused.output and "Traceback" not in refused.output


@pytest.mark.parametrize("option", ["--admin-tls-cert", "--admin-tls-key", "--admin-tls-client-ca"])
def test_tls_of_the_admin_port_is_whole(started: list[Any], option: str) -> None:
    """A certificate needs its key."""
    refused = run(app, ["serve", "--rules", "a.yaml", option, "a.pem"])
    assert (refused.exit_code, started) == (2, [])
    assert "--admin-tls-cert" in refused.output and "--admin-tls-key" in refused.output


@pytest.mark.parametrize("name", ["", "A B", "1A", "${A}"])
def test_a_variable_of_the_api_has_a_name(started: list[Any], name: str) -> None:
    """--rules-api-env takes names of environment variables."""
    refused = run(app, ["serve", "--rules", "a.yaml", "--rules-api-env", name])
    assert (refused.exit_code, started) == (2, [])


def test_a_shared_secret_is_one(started: list[Any], tmp_path: Path) -> None:
    """--shared-secret-file names a file with a secret that is long enough."""
    (secret := tmp_path / "secret").write_text("short")
    refused = run(app, ["serve", "--rules", "a.yaml", "--shared-secret-file", str(secret)])
    assert (refused.exit_code, started) == (2, [])
    secret.write_text("s" * 32)
    secret.chmod(0o600)
    run(app, ["serve", "--rules", "a.yaml", "--shared-secret-file", str(secret)])
    assert started[0][0].shared_secret_file == secret


def test_help_is_grouped_and_names_each_option_in_full() -> None:
    """At 80 columns the options are grouped, and no name, variable or value is cut."""
    command = [sys.executable, "-m", "gateway", "serve", "--help"]
    environment = {**os.environ, "COLUMNS": "80", "TERM": "dumb"}
    shown = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True).stdout
    options = {f"--{name.replace('_', '-')}" for names in PANELS.values() for name in names}
    assert {option for option in options if not re.search(rf"{option}\b", shown)} == set()
    assert "…" not in shown
    assert "[default: 30s]" in shown and "[default: 64MiB]" in shown
    assert [panel for panel in PANELS if f"\n{panel}:\n" not in shown] == []
    assert {name for names in PANELS.values() for name in names} == set(inspect.signature(serve).parameters)
