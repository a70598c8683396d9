"""An instance of a torch model."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engines.backends.batching import BatchedBackend, Batcher
from engines.backends.interfaces import InstanceSpec
from engines.backends.model_config import ModelSignature
from engines.backends.model_files import library, model_file
from engines.backends.pytorch import devices, models
from engines.backends.pytorch.argument_names import input_positions, outputs_of
from engines.backends.pytorch.devices import to_array, to_torch, torch_dtype
from engines.backends.pytorch.settings import Settings, apply_to_process, run_context
from engines.core.datatypes import Array
from engines.core.errors import EngineError

_log = logging.getLogger(__name__)
_MOVED = "'%s' runs on the CPU, as it fails on %s: %s"
_shared: dict[tuple[Path, str], models.TorchModel] = {}
_shared_lock = threading.Lock()


class PyTorchBackend(BatchedBackend):
    """One copy of a model on one device."""

    def initialize(self, spec: InstanceSpec) -> None:
        self._torch = torch = library("torch", "torch")
        self._settings = settings = Settings(spec)
        self._signature = ModelSignature.of(spec.config)
        self._batcher = Batcher(self._run, self._signature, "PyTorch execute failure")
        datatypes = {tensor.datatype for tensor in (*self._signature.inputs, *self._signature.outputs)}
        self._use(devices.choose(torch, spec.kind, spec.device_id, settings.device, datatypes))
        self._is_settled = self._device.type not in devices.INCOMPLETE or devices.is_named(settings.device)
        self._cpu_model = None
        path = model_file(spec.config, spec.version_directory, *models.NAMES)
        if path.suffix == ".pt" and (path.with_name("model.py")).exists():
            path = path.with_name("model.py")  # an eager class with its weights in model.pt
        self._load_model: Callable[[], Any] = lambda: self._on_device(lambda: self._load(path, spec))
        self._load_with_fallback(spec.name)
        names = [tensor.name for tensor in self._signature.inputs]
        self._positions = (
            {} if self._model.arguments.takes_dict else input_positions(names, self._model.arguments, spec.model)
        )
        self._name = spec.name
        self.placement = {"device": str(self._device), "form": self._model.form}
        _log.info("'%s' runs %s on %s", spec.name, self._model.form, self._device)

    def _use(self, device: Any) -> None:
        self._device, self._on_device = device, devices.caller(device.type)

    def _load_with_fallback(self, name: str) -> None:
        """Load the model; on the CPU if the device of its kind cannot hold it."""
        try:
            self._model = self._load_model()
        except Exception as error:
            if self._is_settled:
                raise
            device, self._is_settled = self._device, True
            self._use(self._torch.device("cpu"))
            try:
                self._model = self._load_model()
            except Exception:
                raise error from None
            _log.warning(_MOVED, name, device, error)

    def _load(self, path: Path, spec: InstanceSpec) -> models.TorchModel:
        torch, settings = self._torch, self._settings
        apply_to_process(torch, settings)
        key = (path, str(self._device))
        with _shared_lock:
            if settings.share_weights and key in _shared:
                return _shared[key]
            with run_context(torch, settings, self._device):
                model = models.load(
                    torch, path, self._device, name=spec.model, method=settings.method,
                    keep_device=spec.kind == "KIND_MODEL" and not settings.device,
                )  # fmt: skip
                if spec.kind == "KIND_MODEL" and not settings.device:
                    self._device = _model_device(model, self._device)
                if settings.channels_last and model.module is not None:
                    model.module.to(memory_format=torch.channels_last)
            if settings.compile_options is not None:
                model = models.compiled(torch, model, settings.compile_options)
            if settings.share_weights:
                _shared[key] = model
            return model

    def _run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        if not self._is_settled:
            return self._try(inputs)
        outputs: dict[str, Array] = self._on_device(lambda: self._run_model(inputs))
        return outputs

    def _try(self, inputs: dict[str, Array]) -> dict[str, Array]:
        """Run a model that has not succeeded yet on its device, which lacks some operations. If the run fails there and
        succeeds on the CPU (in the warm-up, too), the model stays on the CPU. A run that fails on both is the request's
        fault and decides nothing: the copy on the CPU is loaded once, and stays until one of the two succeeds."""
        device, model = self._device, self._model
        try:
            outputs: dict[str, Array] = self._on_device(lambda: self._run_model(inputs))
        except EngineError:  # of inputs or outputs
            raise
        except Exception as error:
            self._use(self._torch.device("cpu"))
            try:
                outputs = self._run_on_cpu(inputs)
            except Exception:
                self._use(device)
                self._model = model
                raise error from None
            self.placement = {**self.placement, "device": str(self._device)}
            _log.warning(_MOVED, self._name, device, error)
        self._is_settled, self._cpu_model = True, None
        return outputs

    def _run_on_cpu(self, inputs: dict[str, Array]) -> dict[str, Array]:
        if self._cpu_model is None:
            self._is_settled = True  # a failed load is not repeated
            self._cpu_model = self._load_model()
            self._is_settled = False
        self._model = self._cpu_model
        return self._run_model(inputs)

    def _run_model(self, inputs: dict[str, Array]) -> dict[str, Array]:
        torch, settings, model = self._torch, self._settings, self._model
        with run_context(torch, settings, self._device):
            tensors = {name: self._tensor(name, array) for name, array in inputs.items()}
            if model.arguments.takes_dict:
                result = model.call({0: tensors})
            else:
                result = model.call({self._positions[name]: tensor for name, tensor in tensors.items()})
            specs = self._signature.output_by_name
            outputs = outputs_of(
                result, [tensor.name for tensor in (*self._signature.outputs, *self._signature.state_outputs)]
            )
            if settings.autocast_dtype is not None:
                outputs = {name: self._as_configured(value, specs[name].datatype) for name, value in outputs.items()}
            arrays = {name: to_array(torch, value) for name, value in outputs.items()}
        if settings.clean_cache and self._device.type in ("cuda", "mps"):
            getattr(torch, self._device.type).empty_cache()
        return arrays

    def _tensor(self, name: str, array: Array) -> Any:
        tensor = self._signature.input_by_name.get(name)
        value = to_torch(self._torch, name, array, tensor.datatype if tensor else "", self._device)
        if self._settings.channels_last and getattr(value, "ndim", 0) == 4:
            value = value.contiguous(memory_format=self._torch.channels_last)
        return value

    def _as_configured(self, value: Any, datatype: str) -> Any:
        """Autocast chooses the dtype of results: convert them to the configured one."""
        dtype = torch_dtype(self._torch, datatype)
        if dtype is None or not value.is_floating_point() or not dtype.is_floating_point:
            return value
        return value.to(dtype)

    def finalize(self) -> None:
        def release() -> None:
            self._model = self._cpu_model = None
            if self._device.type in ("cuda", "mps"):
                getattr(self._torch, self._device.type).empty_cache()

        self._on_device(release)

    _model: Any
    _cpu_model: Any


def _model_device(model: models.TorchModel, default: Any) -> Any:
    """The device of a KIND_MODEL model's first parameter."""
    parameters = model.module.parameters() if model.module is not None else iter(())
    return next((parameter.device for parameter in parameters), default)
