"""The definition of a service, and its checks before anything is written."""

from __future__ import annotations

import pwd
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Commands that run until they are stopped.
COMMANDS = ("serve", "fleet", "host", "llm")
# As many open files as a Mac allows any program (OPEN_MAX); its default for services is 256.
NUM_FILES = 10_240
# What marks a file as written here.
MARK = "written by `pointsman service`"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Credentials in a URL, also those with a slash that was not encoded: redis://user:pass/word@host.
_PASSWORD = re.compile(r"://(?:[^/@]*|[^/@:]*:.*)@")
_SECRET = re.compile(r"--?[^=]*(?:key|token|secret|password)[^=]*", re.IGNORECASE)
# Options that look like one of a secret, and take a file or a number; --...-file takes a file, too.
_NO_SECRETS = frozenset({"--tls-key", "--admin-tls-key", "--admin-keys", "--max-batch-tokens"})
# A line break ends a line of a unit; plistlib raises ValueError for other control characters. The last are bytes of
# the command line that are not UTF-8.
_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
# Beyond these a value would need quoting that launchd's shell and systemd do differently.
_UNQUOTABLE = re.compile(r"['\\\x00-\x1f\x7f]")


class ServiceError(Exception):
    """The command cannot be done; the message names the cause and the cure."""


@dataclass(frozen=True, slots=True)
class ServiceDefinition:
    """One service.

    program       what starts Pointsman: a list of arguments
    arguments     what follows: a command and its options
    user          the user that it runs as; None: a service of the logged-in user
    environment   variables with secret values
    stop_seconds  from SIGTERM to SIGKILL; the drain of requests must fit into it
    """

    name: str
    program: Sequence[str]
    arguments: Sequence[str]
    user: str | None
    home: Path
    directory: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    stop_seconds: int = 90

    @property
    def command(self) -> list[str]:
        return [*self.program, *self.arguments]

    @property
    def search_path(self) -> str:
        """PATH: services get a short one, without Homebrew's programs (redis-server is one)."""
        folders = [str(Path(self.program[0]).parent), "/opt/homebrew/bin", "/usr/local/bin"]
        return ":".join(dict.fromkeys([*folders, "/usr/bin", "/bin", "/usr/sbin", "/sbin"]))


def check(definition: ServiceDefinition) -> None:
    """Raises: ServiceError."""
    if not definition.arguments or definition.arguments[0] not in COMMANDS:
        raise ServiceError(
            f"a command is missing: what comes after -- begins with {', '.join(COMMANDS)}: "
            "pointsman service install -- serve --rules rules.yaml"
        )
    if _NAME.fullmatch(definition.name) is None:
        raise ServiceError(f"--name '{definition.name}': letters, digits, '.', '-' and '_', 64 at most")
    _check_characters(definition)
    _check_secrets(definition.arguments)
    for name, value in definition.environment.items():
        if _VARIABLE.fullmatch(name) is None:
            raise ServiceError(f"--env: '{name}' is no name of a variable")
        if _UNQUOTABLE.search(value):
            raise ServiceError(f"--env {name}: the value has a quote, a backslash or a control character")


def _check_characters(definition: ServiceDefinition) -> None:
    """Raises: ServiceError for text that would end a line of the service's file, or that the file cannot hold."""
    named = [(f"argument {number}", text) for number, text in enumerate(definition.arguments, 1)]
    named += [("the program", text) for text in definition.program]
    named += [("--directory", str(definition.directory)), ("the home folder", str(definition.home))]
    for what, text in named:
        if _UNWRITABLE.search(text):
            raise ServiceError(f"{what} has a control character, or is not UTF-8")


def _check_secrets(arguments: Sequence[str]) -> None:
    """Raises: ServiceError for secrets, which it does not repeat."""
    for argument in arguments:
        if _PASSWORD.search(argument):
            raise ServiceError(
                "an argument has credentials in a URL, which everybody on this machine could read: give it as a "
                "variable, for instance --env POINTSMAN_REDIS=redis://..."
            )
        option = argument.partition("=")[0]
        if option not in _NO_SECRETS and not option.endswith("-file") and _SECRET.fullmatch(option):
            raise ServiceError(
                f"{option} may have a secret, which everybody on this machine could read: give it as a variable, "
                "--env NAME=VALUE"
            )


def home_of(user: str) -> Path:
    """Raises: ServiceError."""
    try:
        return Path(pwd.getpwnam(user).pw_dir)
    except KeyError as error:
        raise ServiceError(f"--user '{user}': there is no such user") from error
