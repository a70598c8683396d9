"""Options that several commands have, with the same meaning and the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

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
