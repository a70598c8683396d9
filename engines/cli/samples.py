"""`pointsman samples`: a directory to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def samples(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write; it is made where it is not there.")],
) -> int:
    """Write sample models that run on this machine, a fleet that serves them, and rules for the gateway.

    Then: `pointsman fleet DIR/fleet.yaml`, and in another terminal `pointsman serve --rules DIR/rules`.
    """
    from engines.samples import starter

    written = starter.write(directory)
    for one in written:
        names = ", ".join(one.sample.models)
        if one.why_absent is None:
            typer.echo(f"{one.sample.agent}: {names}: {one.sample.about}")
        else:
            typer.secho(f"left out: {names}: {one.why_absent}", fg=typer.colors.YELLOW, err=True)
    if all(one.why_absent is not None for one in written):
        typer.secho('nothing can run here: pip install "pointsman[engines]"', fg=typer.colors.RED, err=True)
        return 1
    typer.echo(f"next: pointsman fleet {directory}/fleet.yaml, and beside it pointsman serve --rules {directory}/rules")
    return 0
