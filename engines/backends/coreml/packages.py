"""What a CoreML package takes and gives: names, datatypes and the shapes that it was made for.

Source: coremltools `Model.proto` and `FeatureTypes.proto`; of a compiled model the `metadata.json` that the compiler
leaves in it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.core.errors import internal, unavailable

Shape = tuple[int, ...]

SUFFIXES = (".mlpackage", ".mlmodelc", ".mlmodel")
# ArrayFeatureType.ArrayDataType
_DATATYPES = {65552: "FP16", 65568: "FP32", 65600: "FP64", 131104: "INT32", 131080: "INT8"}
_METADATA_DATATYPES = {"Float16": "FP16", "Float32": "FP32", "Double": "FP64", "Int32": "INT32", "Int8": "INT8"}


@dataclass(frozen=True, slots=True)
class Feature:
    """An input or output. `shapes` are those it may have, one where it is fixed and none where it is unknown (outputs
    of a model with several shapes)."""

    name: str
    datatype: str
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Package:
    path: Path
    inputs: tuple[Feature, ...]
    outputs: tuple[Feature, ...]

    def calls(self) -> Iterator[dict[str, Shape]]:
        """The sets of shapes that it can be called with, by input. Several inputs with as many shapes each change them
        together: the i-th of one goes with the i-th of the others."""
        counts = {len(feature.shapes) for feature in self.inputs if len(feature.shapes) > 1}
        if len(counts) > 1:
            # Nothing tells which go together.
            for shapes in itertools.product(*(feature.shapes for feature in self.inputs)):
                yield {feature.name: shape for feature, shape in zip(self.inputs, shapes, strict=True)}
            return
        for index in range(max(counts, default=1)):
            yield {feature.name: feature.shapes[index if len(feature.shapes) > 1 else 0] for feature in self.inputs}


def find(version_directory: Path, filename: str = "") -> list[Path]:
    """The packages of a version: the one that is named, else `model.mlpackage` (or its compiled form), else all.

    Raises: EngineError where there are none.
    """
    for name in [filename] if filename else [f"model{suffix}" for suffix in SUFFIXES]:
        if (path := version_directory / name).exists():
            return [path]
    found = sorted(path for path in version_directory.glob("*") if path.suffix in SUFFIXES) if not filename else []
    if not found:
        raise unavailable(f"unable to find '{filename or '*.mlpackage'}' in '{version_directory}'")
    return found


def read(ct: Any, path: Path) -> Package:
    """A package as its own description tells it. Works without a Mac.

    Raises: EngineError where it has inputs other than arrays, or no description.
    """
    if path.suffix == ".mlmodelc":
        return _read_compiled(path)
    try:
        description = ct.utils.load_spec(str(path)).description
    except Exception as error:
        raise internal(f"failed to read '{path}': {error}") from error
    return Package(
        path,
        tuple(_feature(feature, path) for feature in description.input),
        tuple(_feature(feature, path) for feature in description.output),
    )


def _feature(feature: Any, path: Path) -> Feature:
    kind = feature.type.WhichOneof("Type")
    if kind != "multiArrayType":
        raise internal(f"'{feature.name}' of '{path}' is {kind}: convert the model with arrays as inputs and outputs")
    array = feature.type.multiArrayType
    flexibility = array.WhichOneof("ShapeFlexibility")
    default = (tuple(array.shape),) if array.shape else ()
    if flexibility == "enumeratedShapes":
        shapes = tuple(tuple(shape.shape) for shape in array.enumeratedShapes.shapes)
    elif flexibility == "shapeRange":
        ranges = [(size.lowerBound, size.upperBound) for size in array.shapeRange.sizeRanges]
        shapes = tuple(in_ranges(ranges)) or default
    else:
        shapes = default
    return Feature(feature.name, _DATATYPES.get(array.dataType, "FP32"), shapes)


def in_ranges(ranges: list[tuple[int, int]]) -> Iterator[Shape]:
    """Shapes to use of a range: the first axis grows by powers of two to its end, or to 64 where it has none. Nothing
    where another axis is open, too."""
    (low, high), *rest = ranges
    if any(size_low != size_high for size_low, size_high in rest):
        return
    high = high if high > 0 else max(low, 64)
    size = max(low, 1)
    while size < high:
        yield (size, *(fixed for fixed, _ in rest))
        size *= 2
    yield (high, *(fixed for fixed, _ in rest))


def _read_compiled(path: Path) -> Package:
    try:
        (metadata, *_) = json.loads((path / "metadata.json").read_bytes())
        return Package(
            path,
            tuple(_compiled_feature(feature) for feature in metadata["inputSchema"]),
            tuple(_compiled_feature(feature) for feature in metadata["outputSchema"]),
        )
    except (OSError, ValueError, KeyError) as error:
        raise internal(f"'{path}' has no metadata.json that tells its inputs: {error}") from error


def _compiled_feature(feature: dict[str, Any]) -> Feature:
    listed = feature.get("enumeratedShapes") or ""
    shapes = json.loads(listed.replace("x", ",")) if listed.startswith("[[") else []
    if not shapes and feature.get("shape", "[]") != "[]":
        shapes = [json.loads(feature["shape"])]
    datatype = _METADATA_DATATYPES.get(feature.get("dataType", ""), "FP32")
    return Feature(feature["name"], datatype, tuple(tuple(shape) for shape in shapes))
