"""Warm-up: the requests of `model_warmup`, run on each instance before it serves.

Source: Triton core `src/backend_model_instance.cc` GenerateWarmupData, WarmUp; the configuration's `ModelWarmup`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from engines.core.calls import InferenceCall
from engines.core.errors import invalid
from engines.core.messages import InferRequest, InferResponse, TensorData
from engines.scheduling.interfaces import Instance
from gateway.protocol.datatypes import ELEMENT_BYTES, config_datatype

_FOLDER = "warmup"
_LENGTH_BYTES = 4  # an empty element of BYTES


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """One `ModelWarmup`: `batch_size` requests, run as one batch, `count` times."""

    name: str
    batch_size: int
    count: int
    request: InferRequest
    controls: tuple[TensorData, ...]


def samples(config: Any, directory: Path) -> list[WarmupSample]:
    """The warm-up samples of the model in `directory`. Raises: EngineError, INVALID_ARG."""
    return [_sample(config, warmup, directory) for warmup in config.model_warmup if warmup.batch_size]


async def warm_up(instances: Sequence[Instance], samples: Sequence[WarmupSample]) -> None:
    """Run the samples on all instances at the same time. Raises: EngineError, INVALID_ARG where one fails."""

    async def run_all(instance: Instance) -> None:
        for sample in samples:
            for _ in range(max(1, sample.count)):
                await _run(instance, sample)

    if samples:
        await asyncio.gather(*map(run_all, instances))


async def _run(instance: Instance, sample: WarmupSample) -> None:
    loop = asyncio.get_running_loop()
    is_done: asyncio.Future[None] = loop.create_future()
    ends: list[asyncio.Future[None]] = []
    errors: list[str] = []
    calls = []
    for _ in range(sample.batch_size):
        end: asyncio.Future[None] = loop.create_future()
        call = InferenceCall(sample.request, _sink(end, errors))
        call.controls = sample.controls
        ends.append(end)
        calls.append(call)
    instance.execute(calls, lambda: None if is_done.done() else is_done.set_result(None))
    await asyncio.gather(is_done, *ends)
    if errors:
        raise invalid(f"failed to run warmup sample '{sample.name}': {''.join(f'{error}; ' for error in errors)}")


def _sink(end: asyncio.Future[None], errors: list[str]) -> Any:
    def answered(response: InferResponse | None, is_final: bool) -> None:
        if response is not None and response.error is not None:
            errors.append(response.error.message)
        if is_final and not end.done():
            end.set_result(None)

    return answered


def _sample(config: Any, warmup: Any, directory: Path) -> WarmupSample:
    declared = {io.name for io in config.input}
    inputs: list[TensorData] = []
    controls: list[TensorData] = []
    for name, wanted in sorted(warmup.inputs.items()):
        if -1 in wanted.dims:
            raise invalid(f"warmup setting expects all variable-size dimensions are specified for input '{name}'")
        batch = (1,) if config.max_batch_size and name in declared else ()
        datatype = config_datatype(wanted.data_type)
        tensor = TensorData(name, datatype, (*batch, *wanted.dims), _data(name, wanted, datatype, directory))
        (inputs if name in declared else controls).append(tensor)
    return WarmupSample(
        warmup.name,
        warmup.batch_size,
        warmup.count,
        InferRequest(config.name, inputs=tuple(inputs)),
        tuple(controls),
    )


def _data(name: str, wanted: Any, datatype: str, directory: Path) -> bytes:
    size = prod(wanted.dims) * ELEMENT_BYTES.get(datatype, _LENGTH_BYTES)
    match wanted.WhichOneof("input_data_type"):
        case "zero_data":
            return bytes(size)
        case "random_data":
            # Random lengths are not valid BYTES. Random floats may be NaN, as in Triton.
            return bytes(size) if datatype == "BYTES" else os.urandom(size)
        case "input_data_file":
            return _file_data(wanted.input_data_file, datatype, size, directory)
    raise invalid(f"warmup setting expects input '{name}' to have input_data_type set")


def _file_data(file: str, datatype: str, size: int, directory: Path) -> bytes:
    try:
        data = (directory / _FOLDER / file).read_bytes()
    except OSError as error:
        raise invalid(f"failed to read warmup data file '{file}': {error.strerror}") from error
    if datatype == "BYTES":
        return data
    if len(data) < size:
        raise invalid(
            f"warmup setting expects {size} bytes, but the data provided from {file}only has {len(data)} bytes"
        )
    return data[:size]
