"""Options that several commands share, and parsers of Triton's option formats.

Source: Triton server `src/command_line_parser.cc`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from gateway.options.sources import SETTINGS_HELP, SETTINGS_OPTION
from gateway.yaml import values

Value = TypeVar("Value")

# The device of a rate limiter's resource, as in `engines.scheduling.rate_limiter`.
PER_DEVICE = -2

_TRUE, _FALSE = ("true", "1", "on"), ("false", "0", "off")


def read(option: str, parse: Callable[[], Value]) -> Value:
    """Parse an option; a ValueError becomes an error of the command line."""
    try:
        return parse()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"--{option}") from error


def refuse(command: str, problem: object) -> int:
    """Report what prevents a command; the exit status."""
    typer.secho(f"pointsman {command}: {problem}", fg=typer.colors.RED, err=True)
    return 1


def boolean(option: str, text: str) -> bool:
    """A boolean as Triton writes it: `--strict-readiness=false`. Raises: BadParameter."""
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise typer.BadParameter(f"'{text}' is neither true nor false", param_hint=f"--{option}")


def numbers(option: str, text: str, minimum: int) -> tuple[int, ...]:
    """`1,2,4`. Raises: BadParameter."""
    try:
        parsed = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise typer.BadParameter(f"numbers with commas between them: {error}", param_hint=f"--{option}") from error
    if any(number < minimum for number in parsed):
        raise typer.BadParameter(f"each must be at least {minimum}", param_hint=f"--{option}")
    return parsed


def by_name(option: str, texts: Iterable[str]) -> dict[str, dict[str, str]]:
    """`<name>,<setting>=<value>`, or `<setting>=<value>` for all, under the name "". Raises: ValueError."""
    parsed: dict[str, dict[str, str]] = {}
    for text in texts:
        head, _, value = text.partition("=")
        name, comma, setting = head.rpartition(",")
        if not setting or (comma and not name) or "=" not in text:
            raise ValueError(f"--{option} is '<name>,<setting>=<value>', not '{text}'")
        parsed.setdefault(name, {})[setting] = value
    return parsed


def resources(texts: Iterable[str]) -> dict[tuple[int, str], int]:
    """`<name>:<count>` or `<name>:<count>:<device>`: how much there is of a resource, by its device and name. Raises:
    ValueError."""
    parsed: dict[tuple[int, str], int] = {}
    for text in texts:
        parts = text.split(":")
        if len(parts) not in (2, 3) or not parts[0] or not all(part.isdecimal() for part in parts[1:]):
            raise ValueError(f"--rate-limit-resource is '<name>:<count>' or '<name>:<count>:<device>', not '{text}'")
        device = int(parts[2]) if len(parts) == 3 else PER_DEVICE
        parsed[(device, parts[0])] = int(parts[1])
    return parsed


SERVER, ENGINE, MEMORY = "Server", "Engine", "Memory"


def option(panel: str, help_text: str, *names: str, **more: Any) -> Any:
    """An option in a panel of `--help`; `more` are arguments of `typer.Option`."""
    return typer.Option(*names, help=help_text, rich_help_panel=panel, **more)


def port_option(panel: str, server: str, *names: str) -> Any:
    return option(panel, f"The {server} port; 0 takes a free one.", *names, min=0, max=65535)


def _duration(text: str | float) -> float:
    """A default is returned unchanged."""
    try:
        return values.duration(text) if isinstance(text, str) else text
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


DrainDelay = Annotated[
    float,
    option(
        SERVER,
        "How long to serve on after SIGTERM while readiness says no, so that balancers send no more.",
        parser=_duration,
        metavar="DURATION",
    ),
]
SettingsFile = Annotated[Path | None, option(SERVER, SETTINGS_HELP, "--settings", **SETTINGS_OPTION)]
LogFile = Annotated[str, option("Logging", "Log to this file instead of stderr.", metavar="PATH")]
ListenOn = Annotated[str, option(SERVER, "The address of all ports; 0.0.0.0 for all interfaces.", "--host")]
ReadyFile = Annotated[
    Path | None, option(SERVER, "Write ports and pid to this file, as JSON, once requests are served.", metavar="PATH")
]
# Of the paged engine.
Device = Annotated[Literal["auto", "mps", "cuda", "cpu"], option(ENGINE, "The device; auto takes an available GPU.")]
Ops = Annotated[
    Literal["auto", "reference", "native", "metal", "sim"],
    option(ENGINE, "The kernels: metal on a Mac; native on a processor with a compiler; else torch."),
]
Dtype = Annotated[
    Literal["auto", "float32", "float16", "bfloat16"],
    option(ENGINE, "auto: the folder's, unless it is slow on the device."),
]
Threads = Annotated[int | None, option(ENGINE, "Threads of a CPU.", min=1, show_default="all cores")]
Quantize = Annotated[Literal["none", "int8", "int4"], option(MEMORY, "Round the weights when they are loaded.")]
QuantizeGroup = Annotated[int, option(MEMORY, "Weights that share a scale.", min=1)]
