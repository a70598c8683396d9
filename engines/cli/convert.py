"""`pointsman convert`: torch and ONNX models as CoreML packages, in a model repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from engines.convert.conversion import Result


def convert(
    model: Annotated[
        Path,
        typer.Argument(
            help="model.pt, model.pt2, model.py or model.onnx, or the entry of a model repository with one."
        ),
    ],
    repository: Annotated[Path, typer.Option("--repository", "-o", help="The model repository to write into.")],
    name: Annotated[str | None, typer.Option(help="The converted model's name.", show_default="the source's")] = None,
    version: Annotated[int, typer.Option(min=1, help="The version to write.")] = 1,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SIZES[:DATATYPE]",
            help="An input's shape without the batch, as image=3,224,224 or ids=128:INT64. Required where neither the "
            "file nor config.pbtxt has it. May be repeated.",
        ),
    ] = None,
    batch: Annotated[
        str | None, typer.Option(metavar="SIZES", help="The batch sizes to convert for.", show_default="1,4,16")
    ] = None,
    precision: Annotated[str, typer.Option(help="The datatype to compute in: fp16 or fp32.")] = "fp16",
    enumerated: Annotated[
        bool,
        typer.Option(
            "--enumerated", help="One package for all batch sizes: smaller, but less often run on the Neural Engine."
        ),
    ] = False,
    fallback: Annotated[
        bool,
        typer.Option(
            "--fallback", help="Write an entry for onnxruntime with CoreML instead, with the unchanged ONNX model."
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the version if it is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> int:
    """Convert a torch or ONNX model to CoreML, and write a ready entry of a model repository.

    Also works on Linux. On a Mac, where the result can run, it is compared with the source on random inputs.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    from engines.convert import conversion
    from engines.convert.package import PRECISIONS
    from engines.convert.tensors import ConversionError, parse_shape

    console, errors = Console(), Console(stderr=True)
    try:
        if precision not in PRECISIONS:
            raise ConversionError(f"--precision {precision}: has to be {' or '.join(PRECISIONS)}")
        request = conversion.ConversionRequest(
            model=model,
            repository=repository,
            name=name,
            version=version,
            shapes=tuple(parse_shape(text) for text in shape or ()),
            rows=conversion.parse_rows(batch) if batch else (),
            precision=precision,
            enumerated=enumerated,
            overwrite=overwrite,
        )
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=errors, transient=True) as bar:
            task = bar.add_task("starting", total=3 if fallback else conversion.steps(request))

            def progress(what: str) -> None:
                bar.update(task, description=what, advance=1)

            result = (conversion.fall_back if fallback else conversion.convert)(request, progress)
    except ConversionError as error:
        errors.print(Text("error: ", "red") + Text(error.message), soft_wrap=True)
        if error.advice:
            errors.print(Text(f"  {error.advice}"), soft_wrap=True)
        return 2
    if as_json:
        typer.echo(json.dumps(_as_values(result)))
    else:
        _report(console, result)
    return 0


def _as_values(result: Result) -> dict[str, object]:
    check = result.check
    return {
        "entry": str(result.entry),
        "files": [str(path) for path in result.files],
        "largest_error": check.worst if check else None,
        "tolerance": check.tolerance if check else None,
        "was_compared": bool(check and check.worst is not None),
    }


def _report(console: Console, result: Result) -> None:
    console.print(f"wrote {result.entry}", highlight=False, markup=False, soft_wrap=True)
    for path in result.files:
        size = sum(each.stat().st_size for each in ([path] if path.is_file() else path.rglob("*")) if each.is_file())
        console.print(f"  {path.name}  {size / 1e6:.1f} MB", highlight=False, markup=False)
    if result.check is None:
        console.print("  served by onnxruntime; CoreML runs what its provider knows", highlight=False)
    elif result.check.worst is None:
        console.print(f"[yellow]not compared:[/] {result.check.reason}", highlight=False, soft_wrap=True)
    else:
        console.print(
            f"  equal to the source within {result.check.worst:.3%} (allowed: {result.check.tolerance:.1%})",
            highlight=False,
        )
