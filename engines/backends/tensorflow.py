"""The tensorflow backend: SavedModels (`model.savedmodel`), by their serving signature.

Source: Triton tensorflow_backend, README: `TF_SIGNATURE_DEF` and `TF_GRAPH_TAG` select the function, by default
`serving_default` and `serve`. tensorflow-metal, if installed, makes a Mac's GPU a device like CUDA.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engines.backends.batching import BatchedBackend, Batcher
from engines.backends.framework_values import datatype_of_name, without_bfloat16
from engines.backends.interfaces import Backend, InstanceSpec
from engines.backends.model_config import (
    FileTensor,
    FileTensors,
    ModelSignature,
    Parameters,
    complete_from,
    fair_share_of_cores,
)
from engines.backends.model_files import library, model_file
from engines.core.datatypes import Array
from engines.core.errors import internal, invalid

_log = logging.getLogger(__name__)

EXTRA = "tensorflow"
INSTANCES_SHARE_A_PROCESS = True


class TensorFlowBackend(BatchedBackend):
    """One signature of a SavedModel on one device."""

    def initialize(self, spec: InstanceSpec) -> None:
        self._tf = tf = library("tensorflow", "tensorflow")
        self._signature = ModelSignature.of(spec.config)
        parameters = Parameters(spec.config)
        threads = parameters.number("TF_NUM_INTRA_THREADS") or fair_share_of_cores(spec.config)
        try:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
        except RuntimeError:
            _log.info("the number of threads stays as it is: tensorflow has already started them")
        self._device = _device(tf, spec.kind, spec.device_id)
        with tf.device(self._device):
            path = model_file(spec.config, spec.version_directory, "model.savedmodel")
            self._model, self._function = _load(tf, path, parameters)
        _, inputs = self._function.structured_input_signature
        for what, configured, declared in (
            ("input", self._signature.input_by_name, inputs),
            ("output", self._signature.output_by_name, self._function.structured_outputs),
        ):
            for name in configured:
                if name not in declared:
                    raise invalid(
                        f"unexpected inference {what} '{name}', allowed {what}s are: {', '.join(sorted(declared))}"
                    )
        self._batcher = Batcher(self._run, self._signature, "TensorFlow failure")
        self.placement = {"device": str(self._device)}
        _log.info("'%s' runs on %s", spec.name, self._device)

    def _run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        tf = self._tf
        with tf.device(self._device):
            tensors = {name: tf.constant(self._value(name, array)) for name, array in inputs.items()}
            outputs = self._function(**tensors)
        wanted = self._signature.output_by_name
        return {name: without_bfloat16(np.asarray(value.numpy())) for name, value in outputs.items() if name in wanted}

    def _value(self, name: str, array: Array) -> Array:
        tensor = self._signature.input_by_name.get(name)
        if tensor is not None and tensor.datatype == "BF16":
            viewed: Array = array.view(self._tf.bfloat16.as_numpy_dtype)
            return viewed
        return array

    def finalize(self) -> None:
        self._model = self._function = None


def create() -> Backend:
    return TensorFlowBackend()


def complete(config: Any, directory: Path, options: Mapping[str, str] | None = None) -> None:
    """Fill in inputs, outputs and max_batch_size from the serving signature. Raises: EngineError."""
    complete_from(config, directory, _file_tensors)


def _file_tensors(config: Any, version_directory: Path) -> FileTensors:
    tf = library("tensorflow", "tensorflow")
    path = model_file(config, version_directory, "model.savedmodel")
    with tf.device("/CPU:0"):
        _, function = _load(tf, path, Parameters(config))
    _, inputs = function.structured_input_signature
    return FileTensors(_declared(inputs), _declared(function.structured_outputs))


def _load(tf: Any, path: Path, parameters: Parameters) -> tuple[Any, Any]:
    """A model and its serving function; the model must live as long as the function."""
    tag, name = parameters.text("TF_GRAPH_TAG", "serve"), parameters.text("TF_SIGNATURE_DEF", "serving_default")
    try:
        model = tf.saved_model.load(str(path), tags=[tag])
    except Exception as error:
        raise internal(f"failed to load '{path}': {str(error).partition(chr(10))[0]}") from error
    if name not in model.signatures:
        raise invalid(f"'{path}' has no signature '{name}', it has {', '.join(model.signatures) or 'none'}")
    return model, model.signatures[name]


def _declared(tensors: Mapping[str, Any]) -> list[FileTensor]:
    return [
        FileTensor(name, datatype_of_name(spec.dtype.name), tuple(size or -1 for size in spec.shape))
        for name, spec in tensors.items()
    ]


def _device(tf: Any, kind: str, device_id: int) -> str:
    gpus = tf.config.list_physical_devices("GPU") if kind != "KIND_CPU" else []
    if kind == "KIND_GPU" and not gpus:
        _log.warning("an instance of KIND_GPU runs on the CPU: tensorflow finds no GPU here")
    return f"/GPU:{device_id if device_id < len(gpus) else 0}" if gpus else "/CPU:0"
