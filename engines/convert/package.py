"""CoreML packages: a source traced for its shapes and converted by coremltools; their entry in a model repository."""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format

from engines.backends.model_files import library
from engines.convert.sources import ModelSource
from engines.convert.tensors import Array, ConversionError, first_line, full_shape, random_inputs
from gateway.protocol.datatypes import CONFIG_DATATYPES
from gateway.protocol.protobuf import message

PRECISIONS = ("fp16", "fp32")
# Enumerated shapes of several inputs are understood from macOS 15 on, all else that is used here from 14 on.
_TARGET, _TARGET_OF_SEVERAL = "macOS14", "macOS15"

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ConvertedPackage:
    """A package that was written, and the batch sizes that it takes (0: it has no batch axis)."""

    path: Path
    rows: tuple[int, ...]
    outputs: tuple[str, ...]


def make(
    ct: Any,
    source: ModelSource,
    directory: Path,
    rows: Sequence[int],
    precision: str,
    enumerated: bool,
    progress: Progress,
) -> list[ConvertedPackage]:
    """Write a source's packages into a directory: one for each batch size, or a single one with enumerated shapes.
    Raises: ConversionError."""
    directory.mkdir(parents=True, exist_ok=True)
    if enumerated and len(rows) > 1:
        progress(f"converting for batches of {', '.join(map(str, rows))}")
        return [_one(ct, source, directory / "model.mlpackage", tuple(rows), precision)]
    packages = []
    for count in rows:
        progress(f"converting for a batch of {count}" if count else "converting")
        name = f"model-{count}.mlpackage" if len(rows) > 1 else "model.mlpackage"
        packages.append(_one(ct, source, directory / name, (count,), precision))
    return packages


def _one(ct: Any, source: ModelSource, path: Path, rows: tuple[int, ...], precision: str) -> ConvertedPackage:
    torch = library("torch", "torch")
    example = random_inputs(source.inputs, rows[0])
    try:
        with quiet(), torch.no_grad():
            tensors = tuple(torch.from_numpy(example[tensor.name]) for tensor in source.inputs)
            results = source.function(*tensors)
            traced = torch.jit.trace(_traceable(torch, source), tensors, check_trace=False)
    except Exception as error:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in example.items())
        raise ConversionError(f"the source does not run on {shapes}: {first_line(error)}") from error
    names = source.outputs or tuple(f"OUTPUT__{index}" for index in range(len(results)))
    # Integers keep their datatype; the outputs of others are FP32, whatever CoreML computes in.
    outputs = [
        ct.TensorType(name=name, dtype=np.float32) if value.is_floating_point() else ct.TensorType(name=name)
        for name, value in zip(names, results, strict=True)
    ]
    several = len(rows) > 1 and len(source.inputs) > 1
    try:
        with quiet():
            model = ct.convert(
                traced,
                convert_to="mlprogram",
                inputs=[_input(ct, tensor, rows) for tensor in source.inputs],
                outputs=outputs,
                compute_precision=getattr(ct.precision, {"fp16": "FLOAT16", "fp32": "FLOAT32"}[precision]),
                minimum_deployment_target=getattr(ct.target, _TARGET_OF_SEVERAL if several else _TARGET),
                skip_model_load=True,
            )
            model.short_description = f"{source.config.name}, converted from {source.path.name} by pointsman"
            model.save(str(path))
    except Exception as error:
        raise ConversionError(f"coremltools cannot convert it: {first_line(error)}") from error
    return ConvertedPackage(path, rows, names)


def _input(ct: Any, tensor: Any, rows: tuple[int, ...]) -> Any:
    shapes = [full_shape(tensor, count) for count in rows]
    shape = shapes[0] if len(shapes) == 1 else ct.EnumeratedShapes(shapes=shapes, default=shapes[0])
    dtype = np.float32 if tensor.coreml_datatype == "FP32" else np.int32
    return ct.TensorType(name=tensor.name, shape=shape, dtype=dtype)


def _traceable(torch: Any, source: ModelSource) -> Any:
    """The source as a module whose arguments are its inputs, which is what torch traces."""

    class Traceable(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.source = source.module  # so that its weights are known to be parameters
            self.training = False  # of this module alone: an exported module has no eval()

        def forward(self, *tensors: Any) -> Any:
            return source.function(*tensors)

    return Traceable().requires_grad_(False)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the version warnings of coremltools and torch, and coremltools' progress bars."""
    bar = library("tqdm", "coreml").tqdm
    original = bar.__init__

    def silent(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **{**options, "disable": True})

    bar.__init__ = silent
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
        bar.__init__ = original


_DATATYPES = {"float32": "FP32", "float64": "FP64", "float16": "FP16", "bool": "BOOL"}


def coreml_config(source: ModelSource, name: str, rows: Sequence[int], sample: Mapping[str, Array]) -> Any:
    """The configuration of the converted model. Clients see the source's datatypes, where CoreML has 32 bits.
    `sample` is an output of the source, for outputs that its configuration lacks."""
    config = message("inference.ModelConfig")(name=name, backend="coreml", max_batch_size=max(rows))
    for tensor in source.inputs:
        config.input.add(name=tensor.name, data_type=CONFIG_DATATYPES.index(tensor.datatype), dims=tensor.dims)
    if source.config.output:
        config.output.extend(source.config.output)
    else:
        axis = 1 if source.batches else 0
        for output, array in sample.items():
            datatype = _DATATYPES.get(array.dtype.name, array.dtype.name.upper())
            config.output.add(name=output, data_type=CONFIG_DATATYPES.index(datatype), dims=array.shape[axis:])
    if config.max_batch_size > 1:
        preferred = sorted(count for count in rows if count > 1)
        config.dynamic_batching.preferred_batch_size.extend(preferred)
        config.dynamic_batching.max_queue_delay_microseconds = 1000
    return config


def fallback_config(source_config: Any, name: str) -> Any:
    """The configuration of an ONNX model that onnxruntime serves: by CoreML where it has that, else as anywhere."""
    config = message("inference.ModelConfig")()
    config.CopyFrom(source_config)
    config.name = name
    config.backend = "onnxruntime"
    config.ClearField("platform")
    config.ClearField("default_model_filename")
    accelerators = config.optimization.execution_accelerators.cpu_execution_accelerator
    if not any(accelerator.name == "coreml" for accelerator in accelerators):
        accelerator = accelerators.add(name="coreml")
        accelerator.parameters["ModelFormat"] = "MLProgram"
        accelerator.parameters["MLComputeUnits"] = "ALL"
    return config


def write_entry(entry: Path, config: Any, labels_from: Path) -> None:
    """Write config.pbtxt, and bring along the label files that it names."""
    entry.mkdir(parents=True, exist_ok=True)
    for output in config.output:
        if output.label_filename and (labels_from / output.label_filename).exists():
            shutil.copyfile(labels_from / output.label_filename, entry / output.label_filename)
    (entry / "config.pbtxt").write_text(text_format.MessageToString(config))
