"""Services of launchd and systemd: their files, owners, and files of other programs."""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.service.definition import ServiceDefinition, ServiceError, check, home_of
from gateway.service.installation import install, run, uninstall
from gateway.service.managers import Command, Launchd, Manager, Systemd

Make = Callable[..., ServiceDefinition]
ODD = ["serve", "--rules", 'a "b" c', "--redact", "50%x", "--host", "$HOME", "--data-dir", "back\\slash", "--x", "it's"]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A function that makes a definition for the user who runs the tests."""

    def make(*arguments: str, **more: Any) -> ServiceDefinition:
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        values = {"name": "gate", "user": _user(), "home": home, "directory": tmp_path} | more
        return ServiceDefinition(program=["/opt/pointsman/bin/pointsman"], arguments=arguments or ODD, **values)

    return make


def _user() -> str:
    import getpass

    return getpass.getuser()


@pytest.fixture(params=[Launchd, Systemd])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Manager:
    """launchd and systemd, with the machine's folders below one of the test's."""
    kind: type[Launchd | Systemd] = request.param
    return kind(tmp_path / "machine")


class Recorder:
    """Records commands instead of running them."""

    def __init__(self, status: int = 0) -> None:
        self.commands: list[Command] = []
        self.printed: list[str] = []
        self._status = status

    def run(self, command: Command) -> int:
        self.commands.append(command)
        return self._status

    def programs(self) -> list[str]:
        return [" ".join(command[:2]) for command in self.commands]


def installed(manager: Manager, definition: ServiceDefinition, **more: Any) -> Recorder:
    recorder = Recorder()
    install(manager, definition, recorder.printed.append, run=recorder.run, **more)
    return recorder


def test_a_daemon_of_a_mac(make: Make, tmp_path: Path) -> None:
    """The property list has what a server needs: user, files, PATH, and the arguments unchanged."""
    definition = make()
    installed(Launchd(tmp_path / "machine"), definition)
    path = tmp_path / "machine" / "Library" / "LaunchDaemons" / "pointsman.gate.plist"
    values = plistlib.loads(path.read_bytes())
    assert values["ProgramArguments"] == ["/opt/pointsman/bin/pointsman", *ODD]
    assert values["UserName"] == definition.user
    assert values["KeepAlive"] is True
    assert values["SoftResourceLimits"] == values["HardResourceLimits"] == {"NumberOfFiles": 10_240}
    assert "/opt/homebrew/bin" in values["EnvironmentVariables"]["PATH"]
    assert values["WorkingDirectory"] == str(tmp_path)
    assert Path(values["StandardErrorPath"]).stat().st_uid == os.getuid()
    assert path.stat().st_mode & 0o777 == 0o644


def test_an_agent_of_a_mac(make: Make, tmp_path: Path) -> None:
    """A user's agent is in the user's home, has no UserName, and is started in the user's session."""
    recorder = installed(Launchd(tmp_path / "machine"), make(user=None))
    path = tmp_path / "home" / "Library" / "LaunchAgents" / "pointsman.gate.plist"
    assert "UserName" not in plistlib.loads(path.read_bytes())
    assert recorder.commands[-1] == ("launchctl", "bootstrap", f"gui/{os.getuid()}", str(path))
    assert not (tmp_path / "machine").exists()


@pytest.mark.parametrize("user", [None, "me"])
def test_systemd_takes_the_unit(make: Make, tmp_path: Path, user: str | None) -> None:
    """systemd-analyze accepts the unit, with odd arguments and a file of variables."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    definition = replace(make(user=user and _user(), environment={"A": "b"}), program=[sys.executable, "-m", "gateway"])
    path = tmp_path / "pointsman-gate.service"
    path.write_bytes(Systemd(tmp_path).text(definition))
    scope = "--user" if user is None else "--system"
    done = subprocess.run(
        ["systemd-analyze", scope, "verify", str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    assert str(path) not in done.stderr
    assert "pointsman" not in done.stderr, done.stderr


def test_a_unit_reports_what_a_server_needs(make: Make, tmp_path: Path) -> None:
    """The unit sends SIGTERM to the supervisor alone, leaves time for the drain, restarts after failures, and expands
    nothing."""
    lines = Systemd(tmp_path).text(make(stop_seconds=120)).decode().split("\n")
    assert {"KillSignal=SIGTERM", "KillMode=mixed", "TimeoutStopSec=120", "Restart=on-failure"} <= set(lines)
    assert {"LimitNOFILE=65536", f"User={_user()}", "WantedBy=multi-user.target"} <= set(lines)
    (command,) = [line for line in lines if line.startswith("ExecStart=")]
    assert command.startswith('ExecStart="/opt/pointsman/bin/pointsman" "serve" "--rules" "a \\"b\\" c"')
    assert '"50%%x"' in command
    assert '"$$HOME"' in command
    assert '"back\\\\slash"' in command


def test_variables_are_for_their_user_alone(make: Make, manager: Manager) -> None:
    """A variable's value is only in a file of mode 0600, neither in the service's file nor in the output."""
    definition = make(environment={"POINTSMAN_REDIS": "redis://ann:hunter2@db $x:6379"})
    recorder = installed(manager, definition)
    path = manager.environment_file(definition)
    assert path.stat().st_mode & 0o777 == 0o600
    assert b"hunter2" not in manager.path(definition).read_bytes()
    assert "hunter2" not in "".join(recorder.printed)
    install(manager, definition, recorder.printed.append, is_dry=True)
    assert "hunter2" not in "".join(recorder.printed)
    # read as a shell does; systemd treats single quotes the same
    done = subprocess.run(
        ["/bin/sh", "-c", 'set -a; . "$0"; set +a; exec "$@"', str(path), "printenv", "POINTSMAN_REDIS"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "redis://ann:hunter2@db $x:6379\n"


def test_the_command_of_a_mac_has_the_variables(make: Make, tmp_path: Path) -> None:
    """launchd's command reads the file of variables and executes the program with its arguments."""
    definition = replace(make("serve", "a b", environment={"WORD": "from the file"}), program=["/bin/sh", "-c"])
    definition = replace(definition, arguments=['printf "%s:%s" "$WORD" "$0"', "serve"])
    manager = Launchd(tmp_path / "machine")
    with pytest.raises(ServiceError):
        installed(manager, definition)  # not a command of this project
    from gateway.service.installation import _write

    _write(manager.environment_file(definition), b"WORD='from the file'\n", 0o600)
    command = plistlib.loads(manager.text(definition))["ProgramArguments"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "from the file:serve"


def test_files_of_others_are_left_alone(make: Make, manager: Manager) -> None:
    """A file of another program is neither replaced nor removed without force; the service's own is."""
    definition = make()
    path = manager.path(definition)
    path.parent.mkdir(parents=True)
    path.write_text("somebody's")
    for action in (install, uninstall):
        with pytest.raises(ServiceError, match=r"was not written by .*--force"):
            action(manager, definition, print, run=Recorder().run)
    assert path.read_text() == "somebody's"
    installed(manager, definition, force=True)
    assert path.read_text() != "somebody's"
    again = installed(manager, replace(definition, arguments=["serve", "--rules", "other"]))
    assert b"other" in path.read_bytes()
    assert again.commands[0] == manager.stops(definition)[0]  # the old one ends first


def test_variables_of_others_are_left_alone(make: Make, manager: Manager) -> None:
    """A file of variables of another program is neither replaced nor removed without force."""
    bare, definition = make(), make(environment={"A": "b"})
    path = manager.environment_file(definition)
    path.parent.mkdir(parents=True)
    path.write_text("SECRET=theirs")
    with pytest.raises(ServiceError, match=r"gate\.env was not written by .*--force"):
        installed(manager, definition)
    assert not manager.path(definition).exists()
    installed(manager, bare)
    uninstall(manager, bare, print, run=Recorder().run)
    assert not manager.path(bare).exists()
    assert path.read_text() == "SECRET=theirs"
    installed(manager, definition, force=True)
    assert "A='b'" in path.read_text()


def test_a_reinstallation_without_variables_removes_the_old_ones(make: Make, manager: Manager) -> None:
    """A reinstallation removes the secrets of the earlier one from disk."""
    definition = make(environment={"A": "hunter2"})
    installed(manager, definition)
    recorder = installed(manager, make())
    assert not manager.environment_file(definition).exists()
    assert f"removed: {manager.environment_file(definition)}" in recorder.printed


def test_a_service_that_is_still_ending(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """launchd refuses to start a service that has not ended, so the command is retried until the stop timeout."""
    monkeypatch.setattr("gateway.service.installation._PAUSE_SECONDS", 0.0)
    manager, definition = Launchd(tmp_path / "machine"), make()
    installed(manager, definition)
    statuses = iter([0, 0, 5, 5, 0])
    install(manager, definition, print, run=lambda command: next(statuses))
    assert not list(statuses)


def test_uninstalling(make: Make, manager: Manager) -> None:
    """Uninstalling stops the service and deletes its files; a second time there is nothing to uninstall."""
    definition = make(environment={"A": "b"})
    installed(manager, definition)
    recorder = Recorder(status=3)  # the service may not run
    uninstall(manager, definition, recorder.printed.append, run=recorder.run)
    assert recorder.commands == [*manager.stops(definition), *manager.removed(definition)]
    assert not manager.path(definition).exists()
    assert not manager.environment_file(definition).exists()
    with pytest.raises(ServiceError, match="nothing to uninstall"):
        uninstall(manager, definition, print, run=recorder.run)


def test_a_dry_run_does_nothing(make: Make, manager: Manager, tmp_path: Path) -> None:
    """A dry run prints the file and the commands, and runs nothing."""
    definition, recorder = make(environment={"A": "b"}), Recorder()
    install(manager, definition, recorder.printed.append, is_dry=True, run=recorder.run)
    uninstall(manager, definition, recorder.printed.append, is_dry=True, run=recorder.run)
    assert not recorder.commands
    assert not manager.path(definition).exists()
    assert str(manager.path(definition)) in "".join(recorder.printed)


def test_a_manager_that_refuses(make: Make, manager: Manager) -> None:
    """When the manager fails, the error has its command and status; after a success hints are printed."""
    recorder = Recorder(status=5)
    with pytest.raises(ServiceError, match="ended with status 5"):
        install(manager, make(), recorder.printed.append, run=recorder.run)
    assert any("its log: " in line for line in installed(manager, make()).printed)
    assert run(("/nowhere/launchctl",)) == 127


def test_a_macs_private_folders(make: Make, tmp_path: Path) -> None:
    """A hint names the access that macOS denies to a service in Documents."""
    manager, home = Launchd(tmp_path / "machine"), tmp_path / "home"
    assert any("Documents" in hint for hint in manager.hints(make(directory=home / "Documents" / "rules")))
    assert not any("Documents" in hint for hint in manager.hints(make()))


def test_consent_to_the_network_is_for_agents(make: Make, tmp_path: Path) -> None:
    """An agent's hints name Local Network; a daemon has access whichever user it runs as (TN3179)."""
    manager = Launchd(tmp_path / "machine")
    assert any("Local Network" in hint for hint in manager.hints(make(user=None)))
    assert not any("Local Network" in hint for hint in manager.hints(make()))


@pytest.mark.parametrize(
    "arguments, more, message",
    [
        (["serve"], {"name": "a/b"}, "--name 'a/b'"),
        (["check", "rules.yaml"], {}, "begins with serve, fleet, host, llm"),
        (["serve", "--redis", "redis://u:p@h"], {}, "--env POINTSMAN_REDIS"),
        (["serve", "--redis", "redis://u:p/w@h"], {}, "--env POINTSMAN_REDIS"),
        (["serve", "--redis", "redis://u:p w@h"], {}, "--env POINTSMAN_REDIS"),
        (["serve", "--api-key", "hunter2"], {}, "--api-key may have a secret"),
        (["serve", "--HF_TOKEN=hunter2"], {}, "--HF_TOKEN may have a secret"),
        (["--rules", "x"], {"name": "--rules"}, "a command is missing: what comes after -- begins with serve"),
        (["serve", "--host", "x\nExecStartPre=/bin/evil"], {}, "argument 3 has a control character"),
        (["serve", "\x01"], {}, "argument 2 has a control character"),
        (["serve", "\udcff"], {}, "argument 2 has a control character, or is not UTF-8"),
        (["serve"], {"directory": Path("/tmp/a\nUser=root")}, "--directory has a control character"),
        (["serve"], {"home": Path("/tmp/a\rb")}, "the home folder has a control character"),
        (["serve"], {"environment": {"A-B": "c"}}, "no name of a variable"),
        (["serve"], {"environment": {"A": "it's"}}, "--env A: the value has a quote"),
        (["serve"], {"environment": {"A": "two\nlines"}}, "--env A"),
    ],
)
def test_what_is_refused(make: Make, arguments: list[str], more: dict[str, Any], message: str) -> None:
    """Each refusal names the problem; none repeats a secret."""
    with pytest.raises(ServiceError) as error:
        check(make(*arguments, **more))
    assert message in str(error.value)
    assert not any(text in str(error.value) for text in ("u:p", "hunter2", "\n"))


def test_a_program_with_a_line_break_is_refused(make: Make) -> None:
    """The program's path is checked like the arguments, since it is in the service's file too."""
    with pytest.raises(ServiceError, match="the program has a control character"):
        check(replace(make("serve"), program=["/opt/a\nb/pointsman"]))


def test_what_is_no_secret(make: Make) -> None:
    """URLs without credentials, and all options of the commands, are accepted."""
    from typer.main import get_command

    import engines.cli.app
    from gateway.cli.app import make_app

    check(make("serve", "--rules", "https://host/a@v1", "--redis", "redis://h:6379/0"))
    for app, names in ((make_app(), ("serve",)), (engines.cli.app.app, ("fleet", "host", "llm"))):
        commands = get_command(app).commands  # type: ignore[attr-defined]
        for name in names:
            options = [option for parameter in commands[name].params for option in parameter.opts]
            assert options
            check(make(name, *options))


def test_a_user_that_is_not_there() -> None:
    with pytest.raises(ServiceError, match="no such user"):
        home_of("nobody-of-this-name")


def pointsman(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway", "service", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_the_command() -> None:
    """Arguments after -- belong to the service, whatever they look like; the service is named after its command."""
    done = pointsman("install", "--dry-run", "--agent", "--", "serve", "--rules", "x.yaml", "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert "pointsman-serve.service" in done.stdout or "pointsman.serve.plist" in done.stdout
    assert '"--workers" "1"' in done.stdout or "<string>--workers</string>" in done.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["install", "--dry-run", "--", "check"], "begins with serve"),
        (["install", "--dry-run", "--", "--rules", "x"], "a command is missing"),
        (["install", "--dry-run", "--env", "SECRET", "--", "serve"], "NAME=VALUE"),
        (["install", "--dry-run", "--directory", "/nowhere", "--", "serve"], "no folder /nowhere"),
        (["install", "--dry-run", "--agent", "--user", "me", "--", "serve"], "leave --user out"),
    ],
)
def test_the_commands_refusals(arguments: list[str], message: str) -> None:
    """Refused commands end with a message and a status other than 0."""
    done = pointsman(*arguments)
    assert done.returncode != 0
    assert message in " ".join((done.stdout + done.stderr).replace("│", "").split())
