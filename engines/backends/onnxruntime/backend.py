"""An instance of an ONNX model."""

from __future__ import annotations

import ctypes
import json
import logging
from typing import Any

import numpy as np

from engines.backends.batching import BatchedBackend, Batcher
from engines.backends.framework_values import decoded, strings
from engines.backends.interfaces import InstanceSpec
from engines.backends.model_config import ModelSignature, fair_share_of_cores
from engines.backends.model_files import library
from engines.backends.onnxruntime import providers, sessions
from engines.backends.onnxruntime.providers import cached
from engines.backends.onnxruntime.sessions import check, onnx_file
from engines.core.datatypes import Array

_log = logging.getLogger(__name__)
_ONNX_BFLOAT16 = 16  # TensorProto.BFLOAT16


class OnnxRuntimeBackend(BatchedBackend):
    """One session. `placement` reports which operators run on which provider."""

    placement: dict[str, Any]

    def initialize(self, spec: InstanceSpec) -> None:
        self._ort = ort = library("onnxruntime", "onnx")
        path = onnx_file(spec.config, spec.version_directory)
        chosen = providers.choose(
            ort.get_available_providers(),
            spec.kind,
            spec.device_id,
            spec.config,
            lambda: sessions.has_fixed_shapes(ort, path),
        )
        threads = fair_share_of_cores(spec.config)
        with cached(chosen, path, ort.__version__) as complete:
            self._session = sessions.create_session(ort, path, spec.config, complete, threads, spec.host_options)
        check(spec.config, self._session)
        self._signature = ModelSignature.of(spec.config)
        self._batcher = Batcher(self._run, self._signature, "onnx runtime error")
        outputs = sessions.tensors(self._session.get_outputs())
        self._names = [tensor.name for tensor in outputs if tensor.name in self._signature.output_by_name]
        every = [*sessions.tensors(self._session.get_inputs()), *outputs]
        # numpy has no bfloat16: such tensors go in and out as onnxruntime's own values.
        self._has_bfloat16 = any(tensor.datatype == "BF16" for tensor in every)
        self.placement = providers.placement(self._session)
        _log.info("'%s' runs on %s", spec.name, json.dumps(self.placement))

    def _run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        feeds = {
            name: strings(decoded(name, array), array.shape) if array.dtype == object else array
            for name, array in inputs.items()
        }
        values = self._run_values(feeds) if self._has_bfloat16 else self._session.run(self._names, feeds)
        return {name: _array(value) for name, value in zip(self._names, values, strict=True)}

    def _run_values(self, inputs: dict[str, Array]) -> list[Array]:
        ort_value = self._ort.OrtValue
        feeds = {}
        for name, array in inputs.items():
            tensor = self._signature.input_by_name[name]
            if tensor.datatype == "BF16":
                array = np.ascontiguousarray(array)
                feeds[name] = ort_value.ortvalue_from_numpy_with_onnx_type(array, _ONNX_BFLOAT16)
            else:
                feeds[name] = ort_value.ortvalue_from_numpy(array)
        values = self._session.run_with_ort_values(self._names, feeds)
        return [_bfloat16_bits(value) for value in values]

    def finalize(self) -> None:
        self._session = None


def _array(value: Any) -> Array:
    array = np.asarray(value)
    if array.dtype.kind in "OU":
        return strings([str(element).encode() for element in array.reshape(-1)], array.shape)
    return array


def _bfloat16_bits(value: Any) -> Array:
    """An OrtValue as an array; bfloat16 as uint16."""
    if "bfloat16" not in value.data_type():
        array: Array = value.numpy()
        return array
    shape = tuple(value.shape())
    num_bytes = 2 * int(np.prod(shape))
    # The value owns the memory: copy it.
    bits = ctypes.string_at(value.data_ptr(), num_bytes) if num_bytes else b""
    return np.frombuffer(bits, np.dtype(np.uint16)).reshape(shape)
