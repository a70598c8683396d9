"""Installs and removes a service: its files, and the commands of its manager."""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from gateway.service.definition import MARK, ServiceDefinition, ServiceError, check
from gateway.service.managers import Command, Manager

Print = Callable[[str], None]
Run = Callable[[Command], int]

_PAUSE_SECONDS = 0.5


def run(command: Command) -> int:
    """The exit status; 127 where there is no such program."""
    try:
        return subprocess.run(command, check=False).returncode
    except OSError:
        return 127


def install(
    manager: Manager,
    definition: ServiceDefinition,
    print_line: Print,
    *,
    is_dry: bool = False,
    force: bool = False,
    run: Run = run,
) -> None:
    """Write the files, and start the service. A file of another program stays unchanged, unless forced.

    Raises: ServiceError; OSError where a file cannot be written.
    """
    check(definition)
    path = manager.path(definition)
    environment_file = manager.environment_file(definition)
    text = manager.text(definition)
    if is_dry:
        print_line(f"would write {path}:\n{text.decode()}")
        if definition.environment:
            print_line(f"would write {environment_file} (0600): {', '.join(definition.environment)}")
        for command in manager.starts(definition):
            print_line(f"would run: {' '.join(command)}")
        return
    is_there = _is_ours(path, force)
    if definition.environment:
        _is_ours(environment_file, force)
        lines = [f"# {MARK}", *(f"{name}='{value}'" for name, value in definition.environment.items())]
        _write(environment_file, ("\n".join(lines) + "\n").encode(), 0o600)
        _give(environment_file, definition)
    log = manager.log(definition)
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch(0o640)
        _give(log, definition)
    if is_there:
        for command in manager.stops(definition):
            run(command)
    _write(path, text, 0o644)
    print_line(f"written: {path}")
    if not definition.environment and _is_marked(environment_file):
        environment_file.unlink()  # of an earlier installation, with unused secrets
        print_line(f"removed: {environment_file}")
    timeout = definition.stop_seconds if is_there else 0
    for command in manager.starts(definition):
        if status := _run_until_done(command, run, timeout):
            raise ServiceError(f"{' '.join(command)} ended with status {status}; the file stays: {path}")
    for hint in manager.hints(definition):
        print_line(hint)


def uninstall(
    manager: Manager,
    definition: ServiceDefinition,
    print_line: Print,
    *,
    is_dry: bool = False,
    force: bool = False,
    run: Run = run,
) -> None:
    """Stop the service and remove its files. Variables that something else has written stay, unless forced.

    Raises: ServiceError; OSError.
    """
    path, environment_file = manager.path(definition), manager.environment_file(definition)
    if is_dry:
        for command in (*manager.stops(definition), ("rm", "-f", str(path))):
            print_line(f"would run: {' '.join(command)}")
        print_line(f"would remove {environment_file} if it was {MARK}")
        return
    if not _is_ours(path, force):
        raise ServiceError(f"{path} is not there: nothing to uninstall")
    for command in manager.stops(definition):
        run(command)
    path.unlink()
    marked = _is_marked(environment_file)
    if marked or (force and marked is not None):
        environment_file.unlink()
    for command in manager.removed(definition):
        run(command)
    print_line(f"removed: {path}")


def _run_until_done(command: Command, run: Run, timeout: float) -> int:
    """The status. launchd ends a service after `bootout` has returned, and until then refuses to start it again."""
    until = time.monotonic() + timeout
    while (status := run(command)) and time.monotonic() < until:
        time.sleep(_PAUSE_SECONDS)
    return status


def _is_ours(path: Path, force: bool) -> bool:
    """Whether the file exists. Raises: ServiceError where something else wrote it, unless forced."""
    marked = _is_marked(path)
    if marked is False and not force:
        raise ServiceError(f"{path} was not {MARK}: choose another --name, or --force")
    return marked is not None


def _is_marked(path: Path) -> bool | None:
    """Whether the file was written here; None: it is not there."""
    try:
        return MARK.encode() in path.read_bytes()
    except FileNotFoundError:
        return None


def _write(path: Path, text: bytes, mode: int) -> None:
    """Write atomically, with the mode set before the content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            os.fchmod(file.fileno(), mode)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _give(path: Path, definition: ServiceDefinition) -> None:
    """Give a file that root wrote to the daemon's user. The folder stays root's."""
    if definition.user is not None and os.geteuid() == 0:
        user = pwd.getpwnam(definition.user)
        os.chown(path, user.pw_uid, user.pw_gid)
