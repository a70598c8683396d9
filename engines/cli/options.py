"""Options of the host whose text has a form of its own, Triton's.

Source: Triton server `src/command_line_parser.cc`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer

Value = TypeVar("Value")

# Where a rate limiter's resource is, as `engines.scheduling.rate_limiter` has it.
PER_DEVICE = -2

_TRUE, _FALSE = ("true", "1", "on"), ("false", "0", "off")


def read(option: str, parse: Callable[[], Value]) -> Value:
    """What `parse` makes of an option's text, its ValueError told as one of the command line."""
    try:
        return parse()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"--{option}") from error


def boolean(option: str, text: str) -> bool:
    """A boolean as Triton writes it: `--strict-readiness=false`.

    Raises: BadParameter.
    """
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise typer.BadParameter(f"'{text}' is neither true nor false", param_hint=f"--{option}")


def by_name(option: str, texts: Iterable[str]) -> dict[str, dict[str, str]]:
    """`<name>,<setting>=<value>`, or `<setting>=<value>` for all, under the name "".

    Raises: ValueError.
    """
    made: dict[str, dict[str, str]] = {}
    for text in texts:
        head, _, value = text.partition("=")
        name, comma, setting = head.rpartition(",")
        if not setting or (comma and not name) or "=" not in text:
            raise ValueError(f"--{option} is '<name>,<setting>=<value>', not '{text}'")
        made.setdefault(name, {})[setting] = value
    return made


def resources(texts: Iterable[str]) -> dict[tuple[int, str], int]:
    """`<name>:<count>` or `<name>:<count>:<device>`: how much there is of a resource, by its device and name.

    Raises: ValueError.
    """
    made: dict[tuple[int, str], int] = {}
    for text in texts:
        parts = text.split(":")
        if len(parts) not in (2, 3) or not parts[0] or not all(part.isdecimal() for part in parts[1:]):
            raise ValueError(f"--rate-limit-resource is '<name>:<count>' or '<name>:<count>:<device>', not '{text}'")
        device = int(parts[2]) if len(parts) == 3 else PER_DEVICE
        made[(device, parts[0])] = int(parts[1])
    return made


SERVER, ENGINE = "Server", "Engine"

ListenOn = Annotated[
    str, typer.Option("--host", help="The address of all ports; 0.0.0.0 for every one.", rich_help_panel=SERVER)
]
ReadyFile = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH", help="Write ports and pid here, as JSON, once requests are served.", rich_help_panel=SERVER
    ),
]
# Of the paged engine.
Device = Annotated[
    Literal["auto", "mps", "cuda", "cpu"],
    typer.Option(help="What computes; auto takes the GPU there is.", rich_help_panel=ENGINE),
]
Ops = Annotated[
    Literal["auto", "reference", "native", "metal"],
    typer.Option(
        help="Whose kernels: metal on a Mac; on a processor native, where a compiler is; else plain torch.",
        rich_help_panel=ENGINE,
    ),
]
Dtype = Annotated[
    Literal["auto", "float32", "float16", "bfloat16"],
    typer.Option(help="auto: the folder's, unless the device is slow at it.", rich_help_panel=ENGINE),
]
Threads = Annotated[int | None, typer.Option(min=1, help="Of a CPU.", show_default="all cores", rich_help_panel=ENGINE)]
