"""The model repository of the engine host's benchmark: the tests' adder and identity, and a more expensive network.

The network is a tower of wide layers, as recommenders and embedders have them: a single row is bound by the memory
bandwidth of the weights, so that further rows of a batch are nearly free. It is written twice, as ONNX and as
TorchScript, and each is served with dynamic batching and without.
"""

import importlib.util
import itertools
import shutil
from pathlib import Path

from bench.host_messages import FEATURES
from bench.processes import SCRIPTS

TEST_MODELS = SCRIPTS.parent / "tests" / "models"
PYTHON_MODELS = ("adder", "identity_fp32")

NUM_LAYERS = 4
SCORES = 16
MAX_BATCH = 64

BATCHING = "dynamic_batching { max_queue_delay_microseconds: 1000 }\n"

CONFIG = """backend: "{backend}"
max_batch_size: {max_batch}
input [ {{ name: "{input}", data_type: TYPE_FP32, dims: [ {features} ] }} ]
output [ {{ name: "{output}", data_type: TYPE_FP32, dims: [ {scores} ] }} ]
instance_group [ {{ kind: KIND_CPU, count: 1 }} ]
{batching}"""


def write_repository(folder: Path) -> list[str]:
    """Fill the folder with all models whose library is installed, and return their names."""
    for name in PYTHON_MODELS:
        shutil.copytree(TEST_MODELS / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    names = list(PYTHON_MODELS)
    if importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("onnx"):
        names += _write_tower(folder, "onnx", "onnxruntime", "model.onnx")
    if importlib.util.find_spec("torch"):
        names += _write_tower(folder, "torch", "pytorch", "model.pt")
    return names


def _write_tower(folder: Path, kind: str, backend: str, file: str) -> list[str]:
    names = []
    for name, batching in ((f"{kind}_alone", ""), (f"{kind}_batched", BATCHING)):
        version = folder / name / "1"
        version.mkdir(parents=True)
        config = CONFIG.format(
            backend=backend,
            max_batch=MAX_BATCH,
            input="features",
            output="scores",
            features=FEATURES,
            scores=SCORES,
            batching=batching,
        )
        (version.parent / "config.pbtxt").write_text(config)
        {"onnx": write_onnx, "torch": write_torch}[kind](version / file)
        names.append(name)
    return names


def write_onnx(path: Path) -> None:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    widths = [FEATURES] * NUM_LAYERS + [SCORES]
    nodes, weights, before = [], [], "features"
    for index, (rows, columns) in enumerate(itertools.pairwise(widths)):
        matrix = rng.standard_normal((rows, columns), dtype=np.float32) / np.sqrt(rows, dtype=np.float32)
        weights.append(numpy_helper.from_array(matrix, f"weights_{index}"))
        is_last = index == len(widths) - 2
        nodes.append(
            helper.make_node("MatMul", [before, f"weights_{index}"], ["scores" if is_last else f"sum_{index}"])
        )
        if not is_last:
            nodes.append(helper.make_node("Relu", [f"sum_{index}"], [f"hidden_{index}"]))
            before = f"hidden_{index}"
    graph = helper.make_graph(
        nodes,
        "tower",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", FEATURES])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", SCORES])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def write_torch(path: Path) -> None:
    import torch
    from torch import nn

    torch.manual_seed(0)
    widths = [FEATURES] * NUM_LAYERS + [SCORES]
    layers: list[nn.Module] = []
    for rows, columns in itertools.pairwise(widths):
        layers += [nn.Linear(rows, columns), nn.ReLU()]
    module = nn.Sequential(*layers[:-1]).eval()
    torch.jit.trace(module, torch.zeros(1, FEATURES)).save(str(path))
