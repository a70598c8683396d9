"""A configuration from the packages of a version; this works without a Mac."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engines.backends.config_completion import Found, fill_in, is_complete
from engines.backends.coreml import packages
from engines.backends.model_files import last_version, library
from engines.core.errors import invalid


def complete(config: Any, directory: Path) -> None:
    if is_complete(config):
        return
    ct = library("coremltools", "coreml")
    found = [packages.read(ct, path) for path in packages.find(last_version(directory), config.default_model_filename)]
    calls = [shapes for package in found for shapes in package.calls()]
    first, *others = calls
    rows = [{shape[:1] for shape in call.values()} for call in calls]
    batches = bool(others) and all(len(sizes) == 1 for sizes in rows) and all(
        call.keys() == first.keys() and all(call[name][1:] == shape[1:] for name, shape in first.items())
        for call in others
    )  # fmt: skip
    if others and not batches:
        raise invalid(
            f"model '{config.name}' has to say its inputs and outputs in config.pbtxt: its shapes differ in more than "
            "the batch"
        )
    most = max(size[0] for sizes in rows for size in sizes) if batches else 0
    package = found[0]
    axis = (-1,) if batches else ()
    inputs = [Found(f.name, f.datatype, (*axis, *first[f.name][1 if batches else 0 :])) for f in package.inputs]
    unknown = [feature.name for feature in package.outputs if not feature.shapes]
    if unknown and not config.output:
        raise invalid(
            f"model '{config.name}' has to say its outputs in config.pbtxt: '{package.path.name}' does not tell the "
            f"shapes of {', '.join(unknown)}"
        )
    outputs = [
        Found(f.name, f.datatype, (*axis, *(f.shapes[0] if f.shapes else ())[1 if batches else 0 :]))
        for f in package.outputs
    ]
    fill_in(config, inputs, outputs, most)
