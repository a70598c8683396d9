"""A stand-in for coremltools on any machine: the part of it that the coreml backend uses.

It checks what coremltools checks: a compiled model is a directory that must not exist before, inputs have to be there
by name, of float32 or int32, and of a shape that the package was made for; several inputs at once are a list. The
predictions themselves come from a function, by the same names.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

Compute = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


class FakeCoreMLTools:
    """`compute` predicts; `unusable` are compute units that cannot load a model; `work` is the share of each device by
    units. The calls are recorded."""

    def __init__(self, ct: Any, compute: Compute, unusable: tuple[str, ...] = (), work: Any = None) -> None:
        self.ComputeUnit = ct.ComputeUnit
        self.utils = SimpleNamespace(load_spec=ct.utils.load_spec)
        self.models = SimpleNamespace(
            CompiledMLModel=self._load,
            utils=SimpleNamespace(compile_model=self._compile),
            compute_plan=SimpleNamespace(MLComputePlan=SimpleNamespace(load_from_path=self._plan)),
        )
        self._compute = compute
        self._unusable = unusable
        self._work = work or {}
        self.compiled: list[str] = []
        self.loaded: list[str] = []
        self.calls: list[list[dict[str, tuple[int, ...]]]] = []  # shapes of each input of each predict()

    def _compile(self, path: str, destination_path: str) -> str:
        shutil.copytree(path, Path(destination_path) / "whole.mlpackage")
        self.compiled.append(Path(path).name)
        return destination_path

    def _load(self, path: str, units: Any) -> _Loaded:
        assert isinstance(path, str) and path.endswith(".mlmodelc"), "coremltools wants the path of a compiled model"
        if units.name in self._unusable:
            raise RuntimeError(f"Error compiling for {units.name}")
        self.loaded.append(units.name)
        return _Loaded(self, self.utils.load_spec(str(Path(path) / "whole.mlpackage")).description)

    def _plan(self, path: str, compute_units: Any) -> Any:
        shares = self._work.get(compute_units.name)
        if shares is None:
            raise ValueError("MLComputePlan is not supported.")
        classes = {name: type(f"ML{name}ComputeDevice", (), {}) for name in shares}
        operations = list(shares)
        block = SimpleNamespace(operations=operations)
        return SimpleNamespace(
            model_structure=SimpleNamespace(program=SimpleNamespace(functions={"main": SimpleNamespace(block=block)})),
            get_compute_device_usage_for_mlprogram_operation=lambda name: SimpleNamespace(
                preferred_compute_device=classes[name]()
            ),
            get_estimated_cost_for_mlprogram_operation=lambda name: SimpleNamespace(weight=shares[name]),
        )


class _Loaded:
    def __init__(self, tools: FakeCoreMLTools, description: Any) -> None:
        self._tools = tools
        self._description = description

    def predict(self, data: Any) -> Any:
        batch = data if isinstance(data, list) else [data]
        self._tools.calls.append([{name: array.shape for name, array in inputs.items()} for inputs in batch])
        answers = [self._one(inputs) for inputs in batch]
        return answers if isinstance(data, list) else answers[0]

    def _one(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        for feature in self._description.input:
            if feature.name not in inputs:
                raise RuntimeError(f"Feature {feature.name} is required but not specified.")
            array = inputs[feature.name]
            if array.dtype not in (np.float32, np.int32):
                raise RuntimeError(f"value type not convertible: {array.dtype}")
            multi = feature.type.multiArrayType
            shapes = [tuple(shape.shape) for shape in multi.enumeratedShapes.shapes] or [tuple(multi.shape)]
            if array.shape not in shapes:
                raise RuntimeError(f"MultiArray shape {array.shape} does not match the shape {shapes} specified")
        return {name: np.asarray(value) for name, value in self._tools._compute(inputs).items()}
