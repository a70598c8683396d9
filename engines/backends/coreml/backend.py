"""An instance of a CoreML model."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from engines.backends.batching import BatchedBackend, Batcher, join
from engines.backends.coreml import disk_cache, packages
from engines.backends.coreml.disk_cache import CompiledModel, compile_once
from engines.backends.coreml.placement import UNITS, Placement, Predict, devices_of, measure
from engines.backends.interfaces import InstanceSpec
from engines.backends.model_config import ModelSignature, Parameters
from engines.backends.model_files import library
from engines.core.datatypes import Array, numpy_datatype
from engines.core.errors import EngineError, ErrorCode, invalid

_log = logging.getLogger(__name__)
_UNITS = ("auto", *UNITS)


class CoreMLBackend(BatchedBackend):
    """The packages of a version, each loaded for the units on which it is fastest. `placement` holds a report by
    package.

    Parameters of the configuration:
        COMPUTE_UNITS     CPU_ONLY, CPU_AND_GPU, CPU_AND_NE, ALL, or auto (the default): what measuring finds fastest
        metal             true: as CPU_AND_GPU
        neural_engine     true: as CPU_AND_NE
    """

    placement: dict[str, Any]

    def __init__(self, ct: Any = None, cache: Path | None = None) -> None:
        """`ct` is coremltools or a replacement; `cache` is the directory of compiled models and placements."""
        self._ct = ct
        self._cache = cache

    def initialize(self, spec: InstanceSpec) -> None:
        ct = self._ct if self._ct is not None else on_a_mac()
        cache = self._cache or disk_cache.cache_directory()
        self._signature = signature = ModelSignature.of(spec.config)
        paths = packages.find_packages(spec.version_directory, spec.config.default_model_filename)
        described = [packages.read_package(ct, path) for path in paths]
        _check(signature, described, spec.model)
        self._features = {feature.name: feature for package in described for feature in package.inputs}
        self._buckets = packages.buckets_of(described, batches=signature.max_batch_size > 0)
        units = _configured_units(Parameters(spec.config), spec.kind)
        stored = disk_cache.DiskCache(cache, disk_cache.machine())
        self._models: dict[Path, CompiledModel] = {}
        self.placement = {}
        for path in paths:
            digest = disk_cache.digest(path)
            compiled = compile_once(ct, path, digest, cache)
            placed = self._place(ct, path, compiled, digest, units, stored)
            self._models[path] = CompiledModel(ct, compiled, placed.units)
            self.placement[path.name] = asdict(placed)
        self._batcher = Batcher(self._run, signature, "CoreML failure")
        _log.info("'%s' runs on %s", spec.name, json.dumps(self.placement))

    def _place(
        self, ct: Any, path: Path, compiled: Path, digest: str, units: str, stored: disk_cache.DiskCache
    ) -> Placement:
        if units != "auto":
            return Placement(units)
        if (placed := stored.load(digest)) is not None:
            return placed
        bucket = max((each for each in self._buckets if each.path == path), key=lambda each: each.rows, default=None)
        if bucket is None:
            return Placement("ALL")
        sample = {name: self._sample(name, shape) for name, shape in bucket.shapes.items()}

        def load(units: str) -> Predict:
            model = CompiledModel(ct, compiled, units)
            return lambda: model.predict([sample])

        placed = measure(load, lambda units: devices_of(ct, compiled, units))
        stored.store(digest, placed)
        return placed

    def _sample(self, name: str, shape: tuple[int, ...]) -> Array:
        """An input to time a prediction with: ones, valid as indices and as numbers."""
        return np.ones(shape, _as_coreml(self._features[name].datatype))

    def _run(self, inputs: dict[str, Array]) -> dict[str, Array]:
        values = {name: self._value(name, array) for name, array in inputs.items()}
        fitting = packages.matching_buckets(self._buckets, {name: array.shape for name, array in values.items()})
        if not fitting[0].rows:
            (answer,) = self._models[fitting[0].path].predict([values])
            return self._as_configured(answer)
        rows = len(next(iter(values.values())))
        answers = []
        start = 0
        # Neighbours of the same package and shape go to CoreML together.
        for first, run in groupby(packages.split_rows(rows, fitting)):
            batch = []
            for bucket in run:
                end = min(start + bucket.rows, rows)
                batch.append({name: join([array[start:end]], bucket.rows) for name, array in values.items()})
                start = end
            answers += [self._as_configured(answer) for answer in self._models[first.path].predict(batch)]
        if len(answers) == 1:
            return {name: array[:rows] for name, array in answers[0].items()}
        return {name: np.concatenate([answer[name] for answer in answers])[:rows] for name in answers[0]}

    def _value(self, name: str, array: Array) -> Array:
        """An input as CoreML accepts it: without 64-bit integers, FP16 as FP32."""
        dtype = _as_coreml(self._features[name].datatype) if name in self._features else array.dtype
        if array.dtype == dtype:
            return array
        if dtype.kind == "i" and array.size and (array.max() > 2**31 - 1 or array.min() < -(2**31)):
            raise invalid(f"input '{name}' does not fit the 32 bits that CoreML has for whole numbers")
        return array.astype(dtype)

    def _as_configured(self, answer: Mapping[str, Any]) -> dict[str, Array]:
        wanted = self._signature.output_by_name
        return {
            name: np.asarray(value).astype(numpy_datatype(wanted[name].datatype), copy=False)
            for name, value in answer.items()
            if name in wanted
        }

    def finalize(self) -> None:
        self._models = {}


def on_a_mac() -> Any:
    """Import coremltools. Raises: EngineError if this is not a Mac, or it is not installed."""
    if sys.platform != "darwin":
        raise EngineError(
            ErrorCode.UNSUPPORTED,
            'CoreML models run on macOS alone. There, with pip install "pointsman[coreml]"; here, serve the model that '
            "it was converted from by the pytorch or onnxruntime backend",
        )
    return library("coremltools", "coreml")


def _as_coreml(datatype: str) -> np.dtype[Any]:
    return np.dtype(np.float32) if datatype == "FP16" else numpy_datatype(datatype)


def _configured_units(parameters: Parameters, kind: str) -> str:
    units = parameters.one_of("COMPUTE_UNITS", _UNITS, "auto")
    if units != "auto":
        return units
    if parameters.flag("neural_engine"):
        return "CPU_AND_NE"
    return "CPU_AND_GPU" if parameters.flag("metal") else "auto"


def _check(signature: ModelSignature, described: Sequence[packages.Package], model: str) -> None:
    """Compare the configuration's names with each package's. Raises: EngineError."""
    for package in described:
        for what, wanted, provided in (
            ("input", signature.input_by_name, package.inputs),
            ("output", signature.output_by_name, package.outputs),
        ):
            names = {feature.name for feature in provided}
            missing = names - wanted.keys() if what == "input" else set()
            unknown = wanted.keys() - names
            if missing or unknown:
                raise invalid(
                    f"unable to load model '{model}', configuration has {what}s {', '.join(sorted(wanted))}, "
                    f"'{package.path.name}' has {', '.join(sorted(names))}"
                )
