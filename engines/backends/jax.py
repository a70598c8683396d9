"""The jax backend: a `model.py` with `apply(params, inputs) -> outputs`, and its parameters beside it.

`inputs` and `outputs` are dictionaries of arrays by the names of the configuration; `params` are the arrays of
`model.safetensors` or `model.npz`, as dictionaries of dictionaries where names have slashes ("block/norm/scale").
`apply` is compiled once for each shape: batches are padded to a power of two, so that there are few of them. What a
sequence carries from step to step are inputs and outputs too, kept between them by the configuration's implicit state.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engines.backends.batching import BatchedBackend, Batcher, power_of_two
from engines.backends.framework_values import without_bfloat16
from engines.backends.interfaces import Backend, InstanceSpec
from engines.backends.model_config import ModelSignature, Parameters, is_complete
from engines.backends.model_files import library, model_file, python_module
from engines.core.datatypes import Array, numpy_datatype
from engines.core.errors import internal, invalid

_log = logging.getLogger(__name__)

EXTRA = "jax"
INSTANCES_SHARE_A_PROCESS = True


_NARROW: dict[np.dtype[Any], Any] = {
    np.dtype(np.int64): np.int32,
    np.dtype(np.uint64): np.uint32,
    np.dtype(np.float64): np.float32,
}


class JaxBackend(BatchedBackend):
    """One copy of the parameters on one device, and the compiled function.

    Parameters of the configuration:
        ENABLE_X64        64-bit numbers are computed as such; without it they are 32 bits wide inside
        PADDED_INPUTS     JSON {input: value}: open axes of these are filled up with the value to a power of two, so
                          that lengths batch together and few are compiled; the model has to disregard the value
        COMPILE_AT_LOAD   false: nothing is compiled before the first request of its shape
    """

    def initialize(self, spec: InstanceSpec) -> None:
        self._jax = jax = library("jax", "jax")
        self._signature = signature = ModelSignature.of(spec.config)
        parameters = Parameters(spec.config)
        for tensor in (*signature.inputs, *signature.output_by_name.values()):
            if tensor.datatype == "BYTES":
                raise invalid(f"'{tensor.name}' is of strings, which jax does not have")
        self._is_wide = parameters.flag("ENABLE_X64")
        if self._is_wide:
            jax.config.update("jax_enable_x64", True)
        self._fillers = _fillers(parameters)
        path = model_file(spec.config, spec.version_directory, "model.py")
        try:
            apply = python_module(path, f"_model_{spec.model}").apply
        except AttributeError as error:
            raise invalid(f"'{path}' has no function apply(params, inputs)") from error
        except Exception as error:
            raise internal(f"failed to load model '{spec.model}': {type(error).__name__}: {error}") from error
        self._device = _device(jax, spec.kind, spec.device_id)
        self._params = jax.device_put(_load_params(path.parent), self._device)
        self._apply = jax.jit(apply)
        self._batcher = Batcher(
            self._run,
            signature,
            "jax failure",
            power_of_two(signature.max_batch_size) if signature.max_batch_size else None,
            self._padded if self._fillers else None,
        )
        self.placement = {"device": str(self._device)}
        _log.info("'%s' runs on %s", spec.name, self._device)
        if parameters.flag("COMPILE_AT_LOAD", True):
            self._compile()

    def _compile(self) -> None:
        """Run each bucket of the batch once, if no other axis is open."""
        if any(tensor.dims is not None and -1 in tensor.dims for tensor in self._signature.inputs):
            return
        limit = max(self._signature.max_batch_size, 1)
        for rows in (*(1 << bit for bit in range((limit - 1).bit_length())), limit):
            batch = (rows,) if self._signature.max_batch_size else ()
            self._run(
                {
                    tensor.name: np.zeros((*batch, *(tensor.dims or (1,))), numpy_datatype(tensor.datatype))
                    for tensor in self._signature.inputs
                }
            )

    def _padded(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        signature = self._signature
        first_axis = 1 if signature.max_batch_size else 0
        return {
            name: fill(array, signature.input_by_name[name].dims or (), self._fillers[name], first_axis)
            if name in self._fillers
            else array
            for name, array in inputs.items()
        }

    def _run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        values = {name: self._value(name, array) for name, array in inputs.items()}
        with self._jax.default_device(self._device):
            outputs = self._apply(self._params, values)
        if not isinstance(outputs, Mapping):
            raise internal(f"apply has to return a dictionary of outputs, not {type(outputs).__name__}")
        wanted = self._signature.output_by_name
        return {name: _array(value, wanted[name].datatype) for name, value in outputs.items() if name in wanted}

    def _value(self, name: str, array: Array) -> Array:
        tensor = self._signature.input_by_name.get(name)
        if tensor is not None and tensor.datatype == "BF16":
            viewed: Array = array.view(self._jax.numpy.bfloat16.dtype)
            return viewed
        narrow = _NARROW.get(array.dtype)
        if narrow is None or self._is_wide:
            return array
        if array.size and array.dtype.kind in "iu":
            limits = np.iinfo(narrow)
            if array.min() < limits.min or array.max() > limits.max:
                raise invalid(f"input '{name}' does not fit 32 bits: parameter ENABLE_X64 lets jax compute with 64")
        return array.astype(narrow)

    def finalize(self) -> None:
        self._params = self._apply = None


def create() -> Backend:
    return JaxBackend()


def complete(config: Any, directory: Path, options: Mapping[str, str] | None = None) -> None:
    """Raises: EngineError if inputs or outputs are open: a function does not declare them."""
    if not is_complete(config):
        raise invalid(f"model '{config.name}' has to say its inputs and outputs in config.pbtxt: a jax function cannot")


def fill(array: Array, dims: tuple[int, ...], value: float, first_axis: int) -> Array:
    """Pad each open axis to a power of two: -1 in `dims`, whose first one is the array's axis `first_axis`."""
    widths = [(0, 0)] * array.ndim
    for axis, size in enumerate(dims, first_axis):
        if size == -1:
            length = array.shape[axis]
            widths[axis] = (0, (1 << max(length - 1, 0).bit_length()) - length)
    return np.pad(array, widths, constant_values=value)


def _fillers(parameters: Parameters) -> dict[str, float]:
    text = parameters.text("PADDED_INPUTS", "{}")
    try:
        return {str(name): value + 0 for name, value in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise invalid(
            f"parameter 'PADDED_INPUTS' is {text}, and has to be a JSON object of numbers by input"
        ) from error


def _device(jax: Any, kind: str, device_id: int) -> Any:
    """KIND_CPU is the CPU; all else the machine's first choice."""
    if kind == "KIND_CPU":
        return jax.devices("cpu")[0]
    devices = jax.devices()
    return devices[device_id] if device_id < len(devices) else devices[0]


def _load_params(directory: Path) -> dict[str, Any]:
    """A model's arrays, as dictionaries of dictionaries."""
    arrays: Mapping[str, Any] = {}
    if (path := directory / "model.safetensors").exists():
        arrays = library("safetensors.numpy", "jax").load_file(str(path))
    elif (path := directory / "model.npz").exists():
        with np.load(path) as file:
            arrays = dict(file)
    return nested(arrays)


def nested(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Names with slashes as dictionaries of dictionaries."""
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *branches, leaf = name.split("/")
        at = tree
        for branch in branches:
            at = at.setdefault(branch, {})
        at[leaf] = array
    return tree


def _array(value: Any, datatype: str) -> Array:
    """An output as an array; 32 bits become the configured 64."""
    array = np.asarray(value)
    if datatype == "BF16":
        return without_bfloat16(array)
    wanted = numpy_datatype(datatype)
    if _NARROW.get(wanted) == array.dtype:
        return array.astype(wanted)
    return array
