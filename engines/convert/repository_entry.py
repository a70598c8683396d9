"""The entry of a model repository that a conversion writes: a version with the packages in it, and config.pbtxt."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from engines.convert.sources import ModelSource
from engines.convert.tensors import Array
from gateway.protocol.datatypes import CONFIG_DATATYPES
from gateway.protocol.protobuf import message

_DATATYPES = {"float32": "FP32", "float64": "FP64", "float16": "FP16", "bool": "BOOL"}


def coreml_config(source: ModelSource, name: str, rows: Sequence[int], sample: Mapping[str, Array]) -> Any:
    """The configuration of the converted model. Clients see the source's tensors: what CoreML has as 32 bits keeps the
    source's datatype. `sample` is an answer of the source, which tells outputs that its configuration does not."""
    config = message("inference.ModelConfig")(name=name, backend="coreml", max_batch_size=max(rows))
    for tensor in source.inputs:
        config.input.add(name=tensor.name, data_type=CONFIG_DATATYPES.index(tensor.datatype), dims=tensor.dims)
    if source.config.output:
        config.output.extend(source.config.output)
    else:
        axis = 1 if source.batches else 0
        for output, array in sample.items():
            datatype = _DATATYPES.get(array.dtype.name, array.dtype.name.upper())
            config.output.add(name=output, data_type=CONFIG_DATATYPES.index(datatype), dims=array.shape[axis:])
    if config.max_batch_size > 1:
        preferred = sorted(count for count in rows if count > 1)
        config.dynamic_batching.preferred_batch_size.extend(preferred)
        config.dynamic_batching.max_queue_delay_microseconds = 1000
    return config


def fallback_config(source_config: Any, name: str) -> Any:
    """The configuration of an ONNX model that onnxruntime serves: by CoreML where it has that, else as anywhere."""
    config = message("inference.ModelConfig")()
    config.CopyFrom(source_config)
    config.name = name
    config.backend = "onnxruntime"
    config.ClearField("platform")
    config.ClearField("default_model_filename")
    accelerators = config.optimization.execution_accelerators.cpu_execution_accelerator
    if not any(accelerator.name == "coreml" for accelerator in accelerators):
        accelerator = accelerators.add(name="coreml")
        accelerator.parameters["ModelFormat"] = "MLProgram"
        accelerator.parameters["MLComputeUnits"] = "ALL"
    return config


def write(entry: Path, config: Any, labels_from: Path | None) -> None:
    """Write config.pbtxt, and bring along the label files that it names."""
    entry.mkdir(parents=True, exist_ok=True)
    for output in config.output:
        if output.label_filename and labels_from is not None and (labels_from / output.label_filename).exists():
            shutil.copyfile(labels_from / output.label_filename, entry / output.label_filename)
    (entry / "config.pbtxt").write_text(text_format.MessageToString(config))
