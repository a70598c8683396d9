"""A conversion from end to end."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engines.backends.model_files import library
from engines.convert import package, sources, verification
from engines.convert.tensors import ConversionError, TensorShape, random_inputs
from engines.core.errors import EngineError


@dataclass(frozen=True, slots=True)
class ConversionRequest:
    """A conversion: `model` is the file or repository entry, `rows` are batch sizes, `repository` gets the entry `name`
    (None: the source's name)."""

    model: Path
    repository: Path
    name: str | None = None
    version: int = 1
    shapes: tuple[TensorShape, ...] = ()
    rows: tuple[int, ...] = ()
    precision: str = "fp16"
    enumerated: bool = False
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """The written files. `check` is None for a fallback, which is the unchanged model."""

    entry: Path
    files: tuple[Path, ...]
    check: verification.VerificationResult | None


DEFAULT_ROWS = (1, 4, 16)


def steps(request: ConversionRequest) -> int:
    """How often a conversion calls `progress`."""
    rows = request.rows or DEFAULT_ROWS
    return 4 + (1 if request.enumerated else len(rows))


def convert(request: ConversionRequest, progress: package.Progress) -> Result:
    """Convert a model to CoreML, check it, and write the entry. Raises: ConversionError; an entry that was begun is
    removed again."""
    progress("reading the model")
    try:
        with package.quiet():
            ct = library("coremltools", "coreml")
    except EngineError as error:
        raise ConversionError(error.message) from error
    path, config = sources.find(request.model)
    source = sources.load(path, config, request.shapes)
    rows = _rows(source, request)
    name = request.name or source.config.name
    with _new_version(request, name) as (place, version):
        packages = package.make(ct, source, version, rows, request.precision, request.enumerated, progress)
        progress("reading the packages again")
        problems = verification.structure_problems(ct, packages, source)
        if problems:
            raise ConversionError("the packages are not what was asked for: " + "; ".join(problems))
        progress("comparing with the source")
        checked = verification.check(ct, source, packages, request.precision)
        if not checked.passed:
            raise ConversionError(
                f"the converted model is off by {checked.worst:.2%} of an output's largest element, and "
                f"{request.precision} explains {checked.tolerance:.2%}",
                "try --precision fp32" if request.precision == "fp16" else "",
            )
        progress("writing config.pbtxt")
        sample = {} if source.config.output else source.reference(random_inputs(source.inputs, rows[0]))
        package.write_entry(place, package.coreml_config(source, name, rows, sample), _folder(request))
    return Result(place, tuple(each.path for each in packages), checked)


def fall_back(request: ConversionRequest, progress: package.Progress) -> Result:
    """Write the entry of an ONNX model for the onnxruntime backend, with CoreML as its accelerator. Raises:
    ConversionError."""
    progress("reading the model")
    path, config = sources.find(request.model)
    if path.suffix != ".onnx":
        raise ConversionError(f"--fallback is for ONNX models, and '{path.name}' is none: it can be converted")
    sources.describe_onnx(path, config)
    name = request.name or config.name
    with _new_version(request, name) as (place, version):
        progress("copying it")
        version.mkdir(parents=True)
        shutil.copyfile(path, version / "model.onnx")
        for weights in path.parent.glob(f"{path.name}.data*"):  # external weights lie beside it, under the model's name
            shutil.copyfile(weights, version / weights.name)
        progress("writing config.pbtxt")
        package.write_entry(place, package.fallback_config(config, name), _folder(request))
    return Result(place, (version / "model.onnx",), None)


def _folder(request: ConversionRequest) -> Path:
    """Where the label files are."""
    return request.model if request.model.is_dir() else request.model.parent


def _rows(source: sources.ModelSource, request: ConversionRequest) -> tuple[int, ...]:
    if not source.batches:
        if request.rows:
            raise ConversionError(f"--batch: '{source.path.name}' has no batch axis, or one of a fixed size")
        return (0,)
    return tuple(sorted(set(request.rows or DEFAULT_ROWS)))


@contextmanager
def _new_version(request: ConversionRequest, name: str) -> Iterator[tuple[Path, Path]]:
    """The entry and the version's directory, which must not be there yet; removed again after an error."""
    place = request.repository / name
    version = place / str(request.version)
    if version.exists():
        if not request.overwrite:
            raise ConversionError(f"'{version}' is there already", "--overwrite replaces it, --version writes another")
        shutil.rmtree(version)
    try:
        yield place, version
    except BaseException:
        shutil.rmtree(version, ignore_errors=True)
        if place.exists() and not any(place.iterdir()):
            place.rmdir()
        raise


def parse_rows(text: str) -> tuple[int, ...]:
    """`1,4,16`. Raises: ConversionError."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ConversionError(f"--batch {text}: has to be batch sizes, as 1,4,16")
    return tuple(int(part) for part in parts)
