"""The models that can be converted, each as a function of torch tensors, with its tensors' names and sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from engines.backends.model_config import DEFAULT_MAX_BATCH_SIZE, ModelSignature, fill_in, is_complete
from engines.backends.model_files import last_version, library
from engines.backends.onnxruntime.sessions import file_tensors as onnx_tensors
from engines.backends.pytorch import models
from engines.backends.pytorch.argument_names import input_positions, outputs_of
from engines.convert.tensors import Array, ConversionError, TensorShape, first_line, with_sizes
from engines.core.errors import EngineError
from gateway.protocol.datatypes import CONFIG_DATATYPES
from gateway.protocol.protobuf import message

ONNX_ADVICE = (
    "serve it by the onnxruntime backend with the CoreML provider (--fallback writes that entry), or install "
    "onnx2torch and try again"
)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model to convert. `function` takes torch tensors in the order of `inputs`, and calls `module`; `reference` is
    the model without CoreML, arrays to arrays. `outputs` are their names, None where only a run shows their number."""

    path: Path
    module: Any
    function: Callable[..., Any]
    reference: Callable[[Mapping[str, Array]], dict[str, Array]]
    inputs: tuple[TensorShape, ...]
    outputs: tuple[str, ...] | None
    config: Any

    @property
    def batches(self) -> bool:
        return bool(self.config.max_batch_size)


def find(path: Path) -> tuple[Path, Any]:
    """The model's file, and its configuration as far as there is one: `path` is the file, or an entry of a model
    repository. Raises: ConversionError."""
    config = message("inference.ModelConfig")()
    if not path.is_dir():
        if not path.is_file():
            raise ConversionError(f"'{path}' is neither a model's file nor an entry of a model repository")
        config.name = path.stem
        return path, config
    if (path / "config.pbtxt").exists():
        try:
            text_format.Parse((path / "config.pbtxt").read_text(), config)
        except text_format.ParseError as error:
            raise ConversionError(f"{path / 'config.pbtxt'}: {error}") from error
    config.name = config.name or path.resolve().name
    try:
        version = last_version(path)
    except EngineError as error:
        raise ConversionError(error.message) from error
    names = [config.default_model_filename] if config.default_model_filename else [*models.NAMES, "model.onnx"]
    for name in names:
        if (version / name).is_file():
            return version / name, config
    raise ConversionError(f"'{version}' has none of {', '.join(names)}")


def load(path: Path, config: Any, extra_shapes: Sequence[TensorShape]) -> ModelSource:
    """Load a model. `extra_shapes` are of inputs that neither file nor configuration describes, in order. Raises:
    ConversionError."""
    try:
        if path.suffix == ".onnx":
            return _onnx(path, config, extra_shapes)
        return _torch(path, config, extra_shapes)
    except EngineError as error:
        raise ConversionError(error.message) from error


def describe_onnx(path: Path, config: Any) -> None:
    """Complete a configuration from an ONNX file. Raises: ConversionError."""
    try:
        if not is_complete(config):
            fill_in(config, onnx_tensors(path, DEFAULT_MAX_BATCH_SIZE))
    except EngineError as error:
        raise ConversionError(error.message) from error


def _onnx(path: Path, config: Any, extra_shapes: Sequence[TensorShape]) -> ModelSource:
    describe_onnx(path, config)
    signature = ModelSignature.of(config)
    inputs = tuple(with_sizes(_shapes(signature), extra_shapes))
    onnx = library("onnx", "onnx")
    try:
        onnx2torch = library("onnx2torch", "onnx")
    except EngineError as error:
        raise ConversionError(
            f"coremltools reads no ONNX (since 6.0), and onnx2torch is not installed: {path.name} cannot be converted",
            ONNX_ADVICE,
        ) from error
    try:
        model = onnx.load(str(path))
        module = onnx2torch.convert(model).eval()
    except Exception as error:
        raise ConversionError(f"onnx2torch cannot convert {path.name}: {first_line(error)}", ONNX_ADVICE) from error
    ort = library("onnxruntime", "onnx")
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    outputs = tuple(tensor.name for tensor in signature.outputs)

    def reference(arrays: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(outputs, session.run(list(outputs), dict(arrays)), strict=True))

    # The module's arguments are the graph's inputs in their order, which need not be the configuration's.
    weights = {initializer.name for initializer in model.graph.initializer}
    order = [node.name for node in model.graph.input if node.name not in weights]
    by_name = {tensor.name: tensor for tensor in inputs}
    produced = [node.name for node in model.graph.output]

    def function(*tensors: Any) -> Any:
        results = module(*tensors)
        values = dict(zip(produced, results if isinstance(results, (tuple, list)) else [results], strict=True))
        return tuple(values[name] for name in outputs)

    return ModelSource(path, module, function, reference, tuple(by_name[name] for name in order), outputs, config)


def _torch(path: Path, config: Any, extra_shapes: Sequence[TensorShape]) -> ModelSource:
    torch = library("torch", "torch")
    is_weights = path.suffix == ".pt" and path.with_name("model.py").exists()
    model = models.load(
        torch, path.with_name("model.py") if is_weights else path, torch.device("cpu"), name=config.name
    )
    if not config.input and model.form == "torch.export":
        fill_in(config, models.file_tensors(path, config.name))
    if not config.input:
        names = [aliases[0] for aliases in model.arguments.names]
        if not extra_shapes:
            raise ConversionError(
                f"'{path.name}' does not tell the sizes of its inputs",
                "say them, without the batch: " + " ".join(f"--shape {name}=3,224,224" for name in names),
            )
        config.max_batch_size = config.max_batch_size or DEFAULT_MAX_BATCH_SIZE
        for tensor in extra_shapes:
            config.input.add(name=tensor.name, data_type=CONFIG_DATATYPES.index(tensor.datatype), dims=tensor.dims)
    signature = ModelSignature.of(config)
    inputs = tuple(with_sizes(_shapes(signature), extra_shapes))
    outputs = tuple(tensor.name for tensor in signature.outputs) or None
    names = [tensor.name for tensor in inputs]
    positions = {} if model.arguments.takes_dict else input_positions(names, model.arguments, config.name)

    def function(*tensors: Any) -> Any:
        by_name = dict(zip(names, tensors, strict=True))
        if model.arguments.takes_dict:
            result = model.call({0: by_name})
        else:
            result = model.call({positions[name]: tensor for name, tensor in by_name.items()})
        return tuple(outputs_of(result, outputs or output_names(result)).values())

    def reference(arrays: Mapping[str, Array]) -> dict[str, Array]:
        with torch.no_grad():
            results = function(*(torch.from_numpy(arrays[name]) for name in names))
        return dict(zip(outputs or output_names(results), (value.numpy() for value in results), strict=True))

    return ModelSource(path, model.module, function, reference, inputs, outputs, config)


def _shapes(signature: ModelSignature) -> list[TensorShape]:
    return [TensorShape(tensor.name, tensor.datatype, tensor.dims or ()) for tensor in signature.inputs]


def output_names(result: Any) -> tuple[str, ...]:
    """Names of the outputs of a model without names."""
    return tuple(f"OUTPUT__{index}" for index in range(len(result) if isinstance(result, (tuple, list)) else 1))
