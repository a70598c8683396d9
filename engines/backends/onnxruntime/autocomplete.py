"""A configuration from an ONNX model, and whether a configuration and a model agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engines.backends.config_completion import Found, default_max_batch_size, fill_in, is_complete
from engines.backends.model_files import last_version, library, model_file
from engines.backends.onnxruntime import sessions
from engines.backends.signature import ModelSignature, TensorSpec
from engines.core.errors import invalid


def onnx_file(config: Any, version_directory: Path) -> Path:
    """The model's file; a directory stands for the `model.onnx` in it, with its external weights."""
    path = model_file(config, version_directory, "model.onnx")
    return path / "model.onnx" if path.is_dir() else path


def complete(config: Any, directory: Path, options: Mapping[str, str]) -> None:
    if not is_complete(config):
        complete_from_file(config, onnx_file(config, last_version(directory)), default_max_batch_size(options))


def complete_from_file(config: Any, path: Path, max_batch_size: int) -> None:
    """Complete a configuration from a file, wherever it is. Raises: EngineError."""
    session = sessions.inspect(library("onnxruntime", "onnx"), path)
    inputs, outputs = sessions.tensors(session.get_inputs()), sessions.tensors(session.get_outputs())
    fill_in(config, inputs, outputs, max_batch_size)


def check(config: Any, session: Any) -> None:
    """Hold a configuration against the model.

    Raises: EngineError in Triton's words where they differ.
    """
    signature, model = ModelSignature.of(config), config.name
    inputs = {tensor.name: tensor for tensor in sessions.tensors(session.get_inputs())}
    defaults = {tensor.name: tensor for tensor in sessions.tensors(session.get_overridable_initializers())}
    outputs = {tensor.name: tensor for tensor in sessions.tensors(session.get_outputs())}
    required = [tensor for tensor in signature.inputs if tensor.name not in defaults]
    if len(required) != len(inputs):
        raise invalid(
            f"unable to load model '{model}', configuration expects {len(required)} inputs, "
            f"model provides {len(inputs)}"
        )
    _compare("input", signature.inputs, inputs | defaults, signature.max_batch_size, model)
    _compare("output", tuple(signature.output_by_name.values()), outputs, signature.max_batch_size, model)


def _compare(
    what: str, wanted: Sequence[TensorSpec], provided: Mapping[str, Found], max_batch_size: int, model: str
) -> None:
    for tensor in wanted:
        found = provided.get(tensor.name)
        if found is None:
            allowed = ", ".join(sorted(provided))
            raise invalid(f"unexpected inference {what} '{tensor.name}', allowed {what}s are: {allowed}")
        if found.datatype != tensor.datatype:
            raise invalid(
                f"unable to load model '{model}', configuration expects datatype TYPE_{_config_name(tensor.datatype)} "
                f"for {what} '{tensor.name}', model provides TYPE_{_config_name(found.datatype)}"
            )
        if found.dims and tensor.dims is not None:
            _compare_dims(tensor.name, found.dims, tensor.dims, max_batch_size, model)


def _compare_dims(name: str, found: tuple[int, ...], dims: tuple[int, ...], max_batch_size: int, model: str) -> None:
    start = f"model '{model}', tensor '{name}': "
    if max_batch_size and found[0] != -1:
        raise invalid(
            f"{start}for the model to support batching the shape should have at least 1 dimension and the first "
            f"dimension must be -1; but shape expected by the model is {_shape(found)}"
        )
    full = (-1, *dims) if max_batch_size else dims
    if len(full) == len(found) and all(has in (-1, want) for has, want in zip(found, full, strict=True)):
        return
    expects = f"{start}the model expects {len(found)} dimensions (shape {_shape(found)}) but the model configuration "
    if max_batch_size:
        raise invalid(
            f"{expects}specifies {len(full)} dimensions (an initial batch dimension because max_batch_size > 0 "
            f"followed by the explicit tensor shape, making complete shape {_shape(full)})"
        )
    raise invalid(f"{expects}specifies {len(full)} dimensions (shape {_shape(full)})")


def _shape(dims: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, dims))}]"


def _config_name(datatype: str) -> str:
    return "STRING" if datatype == "BYTES" else datatype
