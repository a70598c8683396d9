"""The inputs and outputs of CoreML packages, and the buckets that batches of any size are cut into.

Source: coremltools `Model.proto` and `FeatureTypes.proto`; for a compiled model, its `metadata.json`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.backends.model_config import FileTensor, FileTensors
from engines.backends.model_files import library
from engines.core.errors import internal, invalid, unavailable

Shape = tuple[int, ...]

SUFFIXES = (".mlpackage", ".mlmodelc", ".mlmodel")
# ArrayFeatureType.ArrayDataType
_DATATYPES = {65552: "FP16", 65568: "FP32", 65600: "FP64", 131104: "INT32", 131080: "INT8"}
_METADATA_DATATYPES = {"Float16": "FP16", "Float32": "FP32", "Double": "FP64", "Int32": "INT32", "Int8": "INT8"}


@dataclass(frozen=True, slots=True)
class Feature:
    """An input or output. `shapes` are its allowed shapes: one if fixed, none if unknown (outputs of a model with
    several shapes)."""

    name: str
    datatype: str
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Package:
    path: Path
    inputs: Sequence[Feature]
    outputs: Sequence[Feature]

    def calls(self) -> Iterator[dict[str, Shape]]:
        """The sets of input shapes that a call may have. Inputs with the same number of shapes change together: the
        i-th shape of one goes with the i-th of the others."""
        counts = {len(feature.shapes) for feature in self.inputs if len(feature.shapes) > 1}
        if len(counts) > 1:
            # Unknown which go together: yield every combination.
            for shapes in itertools.product(*(feature.shapes for feature in self.inputs)):
                yield {feature.name: shape for feature, shape in zip(self.inputs, shapes, strict=True)}
            return
        for index in range(max(counts, default=1)):
            yield {feature.name: feature.shapes[index if len(feature.shapes) > 1 else 0] for feature in self.inputs}


def find_packages(version_directory: Path, filename: str = "") -> list[Path]:
    """The packages of a version: the configured one, else `model.mlpackage` (or its compiled form), else all.

    Raises: EngineError if there are none.
    """
    for name in [filename] if filename else [f"model{suffix}" for suffix in SUFFIXES]:
        if (path := version_directory / name).exists():
            return [path]
    paths = sorted(path for path in version_directory.glob("*") if path.suffix in SUFFIXES) if not filename else []
    if not paths:
        raise unavailable(f"unable to find '{filename or '*.mlpackage'}' in '{version_directory}'")
    return paths


def read_package(ct: Any, path: Path) -> Package:
    """Read a package's own description. Works without a Mac.

    Raises: EngineError if it has inputs other than arrays, or no description.
    """
    if path.suffix == ".mlmodelc":
        return _read_compiled(path)
    try:
        description = ct.utils.load_spec(str(path)).description
    except Exception as error:
        raise internal(f"failed to read '{path}': {error}") from error
    inputs, outputs = (
        tuple([_feature(each, path) for each in side]) for side in (description.input, description.output)
    )
    return Package(path, inputs, outputs)


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
    """The shapes to use of a range: powers of two along the first axis, up to its end or 64. None if another axis is
    open too."""
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
        inputs, outputs = (tuple(map(_compiled_feature, metadata[f"{side}Schema"])) for side in ("input", "output"))
        return Package(path, inputs, outputs)
    except (OSError, ValueError, KeyError) as error:
        raise internal(f"'{path}' has no metadata.json that tells its inputs: {error}") from error


def _compiled_feature(feature: dict[str, Any]) -> Feature:
    listed = feature.get("enumeratedShapes") or ""
    shapes = json.loads(listed.replace("x", ",")) if listed.startswith("[[") else []
    if not shapes and feature.get("shape", "[]") != "[]":
        shapes = [json.loads(feature["shape"])]
    datatype = _METADATA_DATATYPES.get(feature.get("dataType", ""), "FP32")
    return Feature(feature["name"], datatype, tuple(tuple(shape) for shape in shapes))


@dataclass(frozen=True, slots=True)
class Bucket:
    """One set of input shapes of one package; `rows` is their first axis, 0 without a batch axis."""

    path: Path
    shapes: Mapping[str, Shape]
    rows: int


def buckets_of(packages: Sequence[Package], *, batches: bool) -> list[Bucket]:
    """All buckets of all packages, the smallest first."""
    buckets = []
    for package in packages:
        for shapes in package.calls():
            first = {shape[0] if shape else 0 for shape in shapes.values()}
            if not batches:
                buckets.append(Bucket(package.path, shapes, 0))
            elif len(first) == 1:
                buckets.append(Bucket(package.path, shapes, first.pop()))
    return sorted(buckets, key=lambda bucket: bucket.rows)


def matching_buckets(buckets: Sequence[Bucket], shapes: Mapping[str, Shape]) -> list[Bucket]:
    """The buckets of these shapes, the batch axis aside. Raises: EngineError if there are none."""

    def without_batch(shapes: Mapping[str, Shape], bucket: Bucket) -> dict[str, Shape]:
        return {name: shape[1:] if bucket.rows else shape for name, shape in shapes.items()}

    def listed(shapes: Mapping[str, Shape]) -> str:
        return ", ".join(f"'{name}' {list(shape)}" for name, shape in shapes.items())

    fitting = [each for each in buckets if without_batch(each.shapes, each) == without_batch(shapes, each)]
    if not fitting:
        available = "; ".join(listed(bucket.shapes) for bucket in buckets)
        raise invalid(f"the model was not converted for inputs {listed(shapes)}: it takes {available}")
    return fitting


def split_rows(rows: int, buckets: Sequence[Bucket]) -> list[Bucket]:
    """The buckets that hold a batch: full ones of the largest size, and the smallest one that holds the remainder."""
    ordered = sorted(buckets, key=lambda bucket: bucket.rows)
    largest = ordered[-1]
    full, rest = divmod(rows, largest.rows)
    chosen = [largest] * full
    if rest:
        chosen.append(next(bucket for bucket in ordered if bucket.rows >= rest))
    return chosen


def file_tensors(config: Any, version_directory: Path) -> FileTensors:
    """What a version's packages declare. They batch, up to the largest bucket, if the buckets differ in their first
    axis alone; a package of one fixed shape does not. Raises: EngineError."""
    ct = library("coremltools", "coreml")
    packages = [read_package(ct, path) for path in find_packages(version_directory, config.default_model_filename)]
    calls = [shapes for package in packages for shapes in package.calls()]
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
    package = packages[0]
    axis = (-1,) if batches else ()
    inputs = [FileTensor(f.name, f.datatype, (*axis, *first[f.name][1 if batches else 0 :])) for f in package.inputs]
    unknown = [feature.name for feature in package.outputs if not feature.shapes]
    if unknown and not config.output:
        raise invalid(
            f"model '{config.name}' has to say its outputs in config.pbtxt: '{package.path.name}' does not tell the "
            f"shapes of {', '.join(unknown)}"
        )
    outputs = [
        FileTensor(f.name, f.datatype, (*axis, *(f.shapes[0] if f.shapes else ())[1 if batches else 0 :]))
        for f in package.outputs
    ]
    return FileTensors(inputs, outputs, most)
