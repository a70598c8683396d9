"""Compares a package with its source on random inputs, on a Mac, where CoreML runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engines.convert.package import ConvertedPackage
from engines.convert.sources import ModelSource
from engines.convert.tensors import Array, random_inputs

# The allowed error of an output, as a share of its largest element.
TOLERANCES = {"fp16": 2e-2, "fp32": 1e-4}
TRIES = 3


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """`worst` is the largest error of an output, as a share of the largest element, None where nothing was run, for
    `reason`; `tolerance` is the allowed error."""

    worst: float | None
    tolerance: float
    reason: str = ""

    @property
    def passed(self) -> bool:
        """A check that was not run passes."""
        return self.worst is None or self.worst <= self.tolerance


def check(
    ct: Any, source: ModelSource, converted: Sequence[ConvertedPackage], precision: str, *, platform: str = sys.platform
) -> VerificationResult:
    """Run each package at each of its batch sizes beside the source."""
    tolerance = TOLERANCES[precision]
    if platform != "darwin":
        return VerificationResult(
            None, tolerance, "CoreML runs on macOS alone: the packages were not compared with the source"
        )
    worst = 0.0
    for package in converted:
        model = ct.models.MLModel(str(package.path))
        for rows in package.rows:
            for seed in range(TRIES):
                inputs = random_inputs(source.inputs, rows, seed)
                arguments = {
                    tensor.name: _as_coreml(inputs[tensor.name], tensor.coreml_datatype) for tensor in source.inputs
                }
                worst = max(worst, error_of(model.predict(arguments), source.reference(inputs)))
    return VerificationResult(worst, tolerance)


def _as_coreml(array: Array, datatype: str) -> Array:
    return array.astype(np.float32 if datatype == "FP32" else np.int32)


def error_of(answers: dict[str, Array], expected: dict[str, Array]) -> float:
    """The largest error of any output, as a share of that output's largest element."""
    worst = 0.0
    for name, wanted in expected.items():
        got = np.asarray(answers[name], np.float64)
        wanted = wanted.astype(np.float64)
        if got.shape != wanted.shape or not np.isfinite(got).all():
            return float("inf")
        scale = max(float(np.abs(wanted).max(initial=0.0)), 1e-6)
        worst = max(worst, float(np.abs(got - wanted).max(initial=0.0)) / scale)
    return worst


def structure_problems(ct: Any, converted: Sequence[ConvertedPackage], source: ModelSource) -> list[str]:
    """Names and shapes in the packages that differ from the request; this works without a Mac."""
    from engines.backends.coreml import packages
    from engines.convert.tensors import full_shape

    problems = []
    for package in converted:
        read = packages.read_package(ct, Path(package.path))
        shapes = {feature.name: set(feature.shapes) for feature in read.inputs}
        wanted = {tensor.name: {full_shape(tensor, rows) for rows in package.rows} for tensor in source.inputs}
        if shapes != wanted:
            problems.append(f"{package.path.name}: inputs are {shapes}, and should be {wanted}")
        names = {feature.name for feature in read.outputs}
        if names != set(package.outputs):
            problems.append(
                f"{package.path.name}: outputs are {sorted(names)}, and should be {sorted(package.outputs)}"
            )
    return problems
