"""Folders quantized by mlx-lm, compared with mlx-lm itself."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from engines.core.errors import EngineError
from engines.paged.ops.reference import Ops
from engines.paged.weights.loader import load_model
from tests.engines.paged.support.paging import Pages
from tests.engines.paged.support.tiny_models import FAMILIES, tiny_model

pytest.importorskip("mlx_lm")
TOKENS = [(5 * at * at + 1) % 320 for at in range(30)]
Predicate = Callable[[str, Any], bool | dict[str, int]]


def published(folder: Path, target: Path) -> Path:
    """The folder with its config in the form of transformers 4, the only one that mlx-lm reads."""
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    if config["model_type"] == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
    (target / "config.json").write_text(json.dumps(config))
    return target


def mlx_folder(folder: Path, target: Path, bits: int, group: int, predicate: Predicate | None = None) -> Path:
    """The output of `mlx_lm.convert --quantize`."""
    from mlx_lm.utils import load, quantize_model, save

    model, tokenizer, config = load(str(published(folder, target.parent / "published")), return_config=True)
    model, config = quantize_model(model, config, group, bits, quant_predicate=predicate)
    save(target, folder, model, tokenizer, config)
    return target


def mlx_logits(folder: Path) -> Tensor:
    import mlx.core as mx
    from mlx_lm.utils import load

    model, _ = load(str(folder))
    return torch.from_numpy(numpy.array(model(mx.array([TOKENS]))[0].astype(mx.float32)))


def our_logits(folder: Path) -> Tensor:
    with torch.inference_mode():
        return Pages(load_model(folder, Ops("cpu")).decoder).step({"a": TOKENS})["a"]


def differing(path: str, module: Any) -> bool | dict[str, int]:
    """Queries and keys at 4 bits, values at 8 in smaller groups, outputs dense, as in mixed recipes."""
    if "v_proj" in path:
        return {"bits": 8, "group_size": 32}
    return hasattr(module, "to_quantized") and "o_proj" not in path


@pytest.mark.parametrize("family, bits, group, predicate", [
    *[(family, 4, 32, None) for family in FAMILIES],
    ("llama", 4, 64, None),
    ("qwen3", 8, 64, None),
    ("qwen3", 4, 64, differing),
    ("llama", 3, 32, None),
    ("llama", 6, 64, None),
    ("qwen3_moe", 5, 32, None),
    ("llama", 2, 64, None),
])  # fmt: skip
def test_logits_equal_those_of_mlx(family: str, bits: int, group: int, predicate: Predicate | None, tmp_path: Path):
    """A folder quantized by mlx-lm loads unchanged, and has the logits that mlx-lm computes."""
    fields = {"mlp_only_layers": []} if family == "qwen2_moe" else {}  # mlx-lm has experts in every layer of it
    folder = mlx_folder(tiny_model(family, **fields), tmp_path / "mlx", bits, group, predicate)
    expected = mlx_logits(folder)
    assert float((our_logits(folder) - expected).abs().max()) < 1e-4 * float(expected.abs().max())


def edit_quantization(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization"] |= fields
    path.write_text(json.dumps(config))


@pytest.mark.parametrize("fields, options, problem", [
    ({"bits": 8}, {}, r"embed_tokens.weight: its shape is \[320, 8\]; by config.json it should be \[320, 16\]"),
    ({"group_size": 32}, {}, r"embed_tokens.scales: its shape is \[320, 1\]; by config.json it should be \[320, 2\]"),
    ({"group_size": 128}, {}, "embed_tokens.weight: rows of 64 are no multiple of the group, 128"),
    ({}, {"quantize": "int8"}, "is quantized already, to 4 bits; leave 'int8' out"),
])  # fmt: skip
def test_quantization_that_does_not_fit(fields: dict[str, Any], options: dict[str, Any], problem: str, tmp_path: Path):
    """A config that does not match the file's words fails with the tensor's name, and nothing is quantized twice."""
    folder = mlx_folder(tiny_model("llama"), tmp_path / "mlx", 4, 64)
    copy = shutil.copytree(folder, tmp_path / "copy")
    edit_quantization(copy, **fields)
    with pytest.raises(EngineError, match=problem):
        load_model(copy, Ops("cpu"), **options)
