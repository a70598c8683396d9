"""The sources of a command's options, the first that has one wins: command line, variable, settings file, default.

The variable of an option is the command's prefix and the option's name in capitals: `--http-port` of `serve` is
POINTSMAN_HTTP_PORT, of `host` POINTSMAN_HOST_HTTP_PORT.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from gateway.yaml.problems import nearest

if TYPE_CHECKING:
    from gateway.options.settings_file import SettingValue

PREFIX = "POINTSMAN_"
# Those of other commands and parts.
_OTHERS = re.compile(
    PREFIX + r"(ADMIN|ADMIN_CA|ADMIN_CERT|ADMIN_KEY|CACHE|CLIENT_KEYS|CLIENT_KEYS_REDIS|KV_STORE|STATE_STORE"
    r"|(EPP|HOST|LLM|SIM)_\w+)"
)
# What Kubernetes gives to the pods beside a Service that is named `pointsman`.
_SERVICE_LINKS = re.compile(r"\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
_NOT_IN_FILES = {"settings"}


def variable_prefix(command: str) -> str:
    return PREFIX if command == "serve" else f"{PREFIX}{command.upper()}_"


def name_variables(command: TyperCommand | TyperGroup) -> None:
    """Give each option of a command its variable, unless it has one; the command's help says how they are named."""
    prefix = variable_prefix(command.name or "")
    for name, option in options_of(command):
        if option.envvar is None:
            option.envvar = _variable(prefix, name)
    command.help = (
        f"{command.help}\n\nEach option is a variable, too, {prefix} and its name in capitals (--http-port: "
        f"{prefix}HTTP_PORT), and a key of --settings FILE (http-port). The first of command line, variable and file "
        "counts, then the default."
    )


def is_regular(command: TyperCommand | TyperGroup, param: Any) -> bool:
    """Whether the variable of an option is named as the help says."""
    prefix = variable_prefix(command.name or "")
    return any(param.envvar == _variable(prefix, name[2:]) for name in param.opts)


def _variable(prefix: str, option: str) -> str:
    return prefix + option.upper().replace("-", "_")


def options_of(command: TyperCommand | TyperGroup) -> Iterator[tuple[str, Any]]:
    """The options of a command by their first names, without their dashes."""
    for param in command.params:
        names = [name[2:] for name in param.opts if name.startswith("--")]
        if names and names[0] != "help":
            yield names[0], param


def unknown_variables(command: TyperCommand | TyperGroup, environment: Mapping[str, str]) -> list[str]:
    """A sentence about each variable with the command's prefix that no part reads."""
    prefix = variable_prefix(command.name or "")
    known = {option.envvar for _, option in options_of(command)}
    found = []
    for name in sorted(environment):
        if name.startswith(prefix) and name not in known and not _is_of_others(name, environment[name], prefix):
            likely = nearest(name, known)
            found.append(f"{name} is no option" + (f": did you mean {likely}?" if likely else ""))
    return found


def _is_of_others(name: str, value: str, prefix: str) -> bool:
    is_link = _SERVICE_LINKS.fullmatch(name) or (name.endswith("_PORT") and "://" in value)
    return bool(is_link or (prefix == PREFIX and _OTHERS.fullmatch(name)))


def warn_of_unknown_variables(command: TyperCommand | TyperGroup) -> None:
    for sentence in unknown_variables(command, os.environ):
        typer.echo(f"pointsman: warning: {sentence}", err=True)


def use_settings(context: typer.Context, path: Path | None) -> Path | None:
    """Have a file's values stand behind command line and variables. Raises: typer.Exit."""
    if path is None or context.resilient_parsing:
        return path
    try:
        text = path.read_text() if path.is_file() else None
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}") from error
    if text is None:
        raise typer.BadParameter(f"{path} is no file")
    options = {name: option for name, option in options_of(context.command) if name not in _NOT_IN_FILES}  # type: ignore[arg-type]
    from gateway.options.settings_file import read_settings

    values, problems = read_settings(text, str(path), options, os.environ)
    if problems:
        raise typer.BadParameter("\n".join(map(str, problems)))
    checked = {name: _checked(context, options[name], value) for name, value in values.items()}
    context.default_map = {options[name].name: value for name, value in checked.items()}
    return path


def _checked(context: typer.Context, option: Any, value: SettingValue) -> Any:
    """The value as the option reads it. Raises: typer.BadParameter with its place."""
    texts: Any = value.text
    if isinstance(texts, list) and not option.multiple:
        raise typer.BadParameter(f"{value.location}: error: {option.opts[0]} is one value, not a list")
    if option.multiple and isinstance(texts, str):
        texts = [texts]
    try:
        option.process_value(context, texts)
    except typer.BadParameter as error:
        raise typer.BadParameter(f"{value.location}: error: {option.opts[0]}: {error.message}") from error
    return texts


# `--settings`, for typer's Option.
SETTINGS_HELP = "Options from a YAML or TOML file, by their names without dashes, as http-port: 8000."
SETTINGS_OPTION: dict[str, Any] = {
    "is_eager": True,
    "callback": use_settings,
    "metavar": "FILE",
    "show_default": False,
}
