"""launchd and systemd: the place and content of a service's file, and the commands that start it.

Sources: launchd.plist(5), launchctl(1); systemd.service(5), systemd.exec(5), systemd.syntax(7).
"""

from __future__ import annotations

import os
import plistlib
from collections.abc import Sequence
from pathlib import Path

from gateway.service.definition import MARK, NUM_FILES, ServiceDefinition

Command = Sequence[str]
_SYSTEMD_SPECIAL = str.maketrans({"\\": "\\\\", '"': '\\"', "%": "%%"})
# Systemd may allow more than a Mac.
_SYSTEMD_FILES = 65_536


class Launchd:
    """macOS. `root` is where the system's folders are. `starts` and `stops` are commands in order; `stops` may fail:
    the service may not run. `removed` are commands for after the removal of its file."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def path(self, definition: ServiceDefinition) -> Path:
        folder = "LaunchAgents" if definition.user is None else "LaunchDaemons"
        return self._base(definition) / "Library" / folder / f"{_label(definition)}.plist"

    def environment_file(self, definition: ServiceDefinition) -> Path:
        """The file of its variables, readable by its user alone; that of a daemon in a folder of root."""
        return self._base(definition) / "Library" / "Application Support" / "pointsman" / f"{definition.name}.env"

    def _base(self, definition: ServiceDefinition) -> Path:
        return definition.home if definition.user is None else self._root

    def text(self, definition: ServiceDefinition) -> bytes:
        command = definition.command
        if definition.environment:
            # The plist is for everybody to read, and so is what `launchctl print` shows of it.
            path = str(self.environment_file(definition))
            command = ["/bin/sh", "-c", 'set -a; . "$0"; set +a; exec "$@"', path, *command]
        log = str(self.log(definition))
        values = {
            "Label": _label(definition),
            "Comment": MARK,
            "ProgramArguments": command,
            "WorkingDirectory": str(definition.directory),
            "EnvironmentVariables": {"PATH": definition.search_path, "HOME": str(definition.home)},
            "KeepAlive": True,
            "RunAtLoad": True,
            "ThrottleInterval": 10,
            "ExitTimeOut": definition.stop_seconds,
            "ProcessType": "Interactive",  # else its processors and disks are throttled
            "SoftResourceLimits": {"NumberOfFiles": NUM_FILES},
            "HardResourceLimits": {"NumberOfFiles": NUM_FILES},
            "StandardOutPath": log,
            "StandardErrorPath": log,
        }
        if definition.user is not None:
            values["UserName"] = definition.user
        return plistlib.dumps(values, sort_keys=False)

    def starts(self, definition: ServiceDefinition) -> list[Command]:
        return [
            ("launchctl", "enable", f"{_domain(definition)}/{_label(definition)}"),
            ("launchctl", "bootstrap", _domain(definition), str(self.path(definition))),
        ]

    def stops(self, definition: ServiceDefinition) -> list[Command]:
        return [("launchctl", "bootout", f"{_domain(definition)}/{_label(definition)}")]

    def removed(self, definition: ServiceDefinition) -> list[Command]:
        return []

    def status(self, definition: ServiceDefinition) -> Command:
        return ("launchctl", "print", f"{_domain(definition)}/{_label(definition)}")

    def log(self, definition: ServiceDefinition) -> Path:
        """Its log file, which its user must own."""
        return self._base(definition) / "Library" / "Logs" / "pointsman" / f"{definition.name}.log"

    def hints(self, definition: ServiceDefinition) -> list[str]:
        hints = [
            f"its log: tail -f {self.log(definition)}",
            "a Mac that sleeps does not serve: sudo pmset -c sleep 0",
        ]
        if _is_private(definition):
            hints.append(
                f"macOS keeps services out of Documents, Desktop and Downloads, and it works in "
                f"{definition.directory}: move its files elsewhere"
            )
        if definition.user is None:
            hints += [
                "an agent starts when you log in, and ends when you log out; without --agent it is a daemon",
                "an agent needs consent to use your network (a daemon does not): if engines are down with 'No route to "
                "host', System Settings > Privacy & Security > Local Network. From Terminal, which is always allowed, "
                "`pointsman doctor --rules PATH` tries the engines",
            ]
        return hints


class Systemd:
    """Linux; as `Launchd`."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def path(self, definition: ServiceDefinition) -> Path:
        if definition.user is None:
            return definition.home / ".config" / "systemd" / "user" / _unit(definition)
        return self._root / "etc" / "systemd" / "system" / _unit(definition)

    def environment_file(self, definition: ServiceDefinition) -> Path:
        folder = definition.home / ".config" if definition.user is None else self._root / "etc"
        return folder / "pointsman" / f"{definition.name}.env"

    def text(self, definition: ServiceDefinition) -> bytes:
        lines = [
            f"# {MARK}",
            "[Unit]",
            f"Description=Pointsman: {definition.arguments[0]}",
            "Wants=network-online.target",
            "After=network-online.target",
            "",
            "[Service]",
            f"ExecStart={' '.join(_quoted(each).replace('$', '$$') for each in definition.command)}",
            "ExecReload=/bin/kill -HUP $MAINPID",
            f"WorkingDirectory={str(definition.directory).replace('%', '%%')}",
            f"Environment={_quoted('PATH=' + definition.search_path)}",
        ]
        if definition.environment:
            lines.append(f"EnvironmentFile={str(self.environment_file(definition)).replace('%', '%%')}")
        if definition.user is not None:
            lines.append(f"User={definition.user}")
        lines += [
            "Restart=on-failure",
            "RestartSec=2",
            f"LimitNOFILE={_SYSTEMD_FILES}",
            "KillSignal=SIGTERM",
            "KillMode=mixed",
            f"TimeoutStopSec={definition.stop_seconds}",
            "",
            "[Install]",
            f"WantedBy={'default.target' if definition.user is None else 'multi-user.target'}",
            "",
        ]
        return "\n".join(lines).encode()

    def starts(self, definition: ServiceDefinition) -> list[Command]:
        control = _systemctl(definition)
        return [(*control, "daemon-reload"), (*control, "enable", "--now", _unit(definition))]

    def stops(self, definition: ServiceDefinition) -> list[Command]:
        return [(*_systemctl(definition), "disable", "--now", _unit(definition))]

    def removed(self, definition: ServiceDefinition) -> list[Command]:
        return [(*_systemctl(definition), "daemon-reload")]

    def status(self, definition: ServiceDefinition) -> Command:
        return (*_systemctl(definition), "status", "--no-pager", _unit(definition))

    def log(self, definition: ServiceDefinition) -> None:
        """Its log is the journal."""

    def hints(self, definition: ServiceDefinition) -> list[str]:
        user = " --user" if definition.user is None else ""
        hints = [f"its log: journalctl{user} -fu {_unit(definition)}"]
        if definition.user is None:
            hints.append("it ends when you log out, unless: loginctl enable-linger")
        return hints


Manager = Launchd | Systemd


def _label(definition: ServiceDefinition) -> str:
    return f"pointsman.{definition.name}"


def _unit(definition: ServiceDefinition) -> str:
    return f"pointsman-{definition.name}.service"


def _domain(definition: ServiceDefinition) -> str:
    return f"gui/{os.getuid()}" if definition.user is None else "system"


def _systemctl(definition: ServiceDefinition) -> tuple[str, ...]:
    return ("systemctl", "--user") if definition.user is None else ("systemctl",)


def _quoted(argument: str) -> str:
    """Quote for systemd, without expansion of specifiers."""
    return f'"{argument.translate(_SYSTEMD_SPECIAL)}"'


def _is_private(definition: ServiceDefinition) -> bool:
    """Whether it works in a folder that macOS protects by consent."""
    private = [definition.home / name for name in ("Documents", "Desktop", "Downloads")]
    return any(definition.directory.is_relative_to(folder) for folder in private)
