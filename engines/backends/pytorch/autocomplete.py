"""A configuration from a torch.export archive: the names, dtypes and shapes of the graph's inputs and outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engines.backends.config_completion import DEFAULT_MAX_BATCH_SIZE, Found, fill_in, is_complete
from engines.backends.model_files import last_version, library, model_file
from engines.backends.pytorch.models import NAMES, is_compiled
from engines.core.errors import invalid


def complete(config: Any, directory: Path) -> None:
    if not is_complete(config):
        complete_from_file(config, model_file(config, last_version(directory), *NAMES))


def complete_from_file(config: Any, path: Path) -> None:
    """Complete a configuration from a file, wherever it is.

    Raises: EngineError where it is none that tells its tensors.
    """
    if path.suffix != ".pt2" or is_compiled(path):
        raise invalid(
            f"model '{config.name}' has to say its inputs and outputs in config.pbtxt: of torch's files only a "
            "torch.export archive (model.pt2) tells them"
        )
    torch = library("torch", "torch")
    program = torch.export.load(str(path))
    nodes = {node.name: node for node in program.graph.nodes}
    returned = program.graph_signature.user_outputs
    inputs = [_found(torch, name, nodes[name]) for name in program.graph_signature.user_inputs if name in nodes]
    outputs = [_found(torch, f"OUTPUT__{index}", nodes[name]) for index, name in enumerate(returned) if name in nodes]
    fill_in(config, inputs, outputs, DEFAULT_MAX_BATCH_SIZE)


def _found(torch: Any, name: str, node: Any) -> Found:
    value = node.meta["val"]
    dims = tuple(size if isinstance(size, int) else -1 for size in value.shape)
    return Found(name, _datatype(torch, value.dtype), dims)


def _datatype(torch: Any, dtype: Any) -> str:
    names = {"bool": "BOOL", "float16": "FP16", "float32": "FP32", "float64": "FP64", "bfloat16": "BF16"}
    name = str(dtype).removeprefix("torch.")
    return names.get(name, name.upper())
